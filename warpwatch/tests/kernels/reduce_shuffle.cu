// out += the sum of x, by shuffles in a warp, and a sum of warps by the first of them.
extern "C" __global__ void reduce_shuffle(const float *x, float *out, int n) {
    __shared__ float warps[32];
    float sum = 0;
#pragma unroll 1
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
#pragma unroll 1
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x > 0) return;
#ifdef NOT_ATOMIC
    *out += sum;  // NOT_ATOMIC: race
#else
    atomicAdd(out, sum);
#endif
}
