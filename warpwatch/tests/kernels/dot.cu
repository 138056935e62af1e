// out += x . y in double precision, the sums of warps in shared memory.
extern "C" __global__ void dot(const double *x, const double *y, double *out, int n) {
    __shared__ double warps[32];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    double sum = i < n ? x[i] * y[i] : 0;
#pragma unroll 1
    for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (t % 32 == 0) warps[t / 32] = sum;
    __syncthreads();
#ifdef ALL_WARPS
    int count = 32;
#else
    int count = blockDim.x / 32;
#endif
    if (t == 0) {
        sum = 0;
#pragma unroll 1
        for (int w = 0; w < count; w++) sum += warps[w];  // ALL_WARPS: uninitialized
        atomicAdd(out, sum);
    }
}
