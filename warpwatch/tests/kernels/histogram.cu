// counts[b] += how many bytes of x are b, counted in shared memory first.
extern "C" __global__ void histogram(const unsigned char *x, unsigned *counts, int n) {
    __shared__ unsigned here[256];
#ifndef NOT_CLEARED
    for (int b = threadIdx.x; b < 256; b += blockDim.x) here[b] = 0;
#endif
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
#ifdef NOT_ATOMIC
        here[x[i]]++;  // NOT_ATOMIC: race
#else
        atomicAdd(&here[x[i]], 1);  // NOT_CLEARED: uninitialized
#endif
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x)
        if (here[b]) atomicAdd(&counts[b], here[b]);
}
