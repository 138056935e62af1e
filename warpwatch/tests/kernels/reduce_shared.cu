// out[block] = the block's sum, by halves in dynamic shared memory.
extern "C" __global__ void reduce_shared(const float *x, float *out, int n) {
    extern __shared__ float s[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0;  // NO_BARRIER: race
#ifndef NO_BARRIER
    __syncthreads();
#endif
    for (int d = blockDim.x / 2; d; d /= 2) {
#ifdef DIVERGENT
        if (t < d) {
            s[t] += s[t + d];
            __syncthreads();  // DIVERGENT: barrier
        }
#else
        if (t < d) s[t] += s[t + d];  // NO_BARRIER: race
        __syncthreads();
#endif
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
