// out = the sum of x in one launch: the block that comes last adds what the others left.
__device__ unsigned arrived;

extern "C" __global__ void sum_last_block(const float *x, volatile float *parts, float *out, int n) {
    __shared__ float s[64];
    __shared__ bool last;
    int t = threadIdx.x;
    float sum = 0;
#pragma unroll 1
    for (int i = blockIdx.x * 64 + t; i < n; i += 64 * gridDim.x) sum += x[i];
    s[t] = sum;
    __syncthreads();
    if (t == 0) {
        sum = 0;
#pragma unroll 1
        for (int q = 0; q < 64; q++) sum += s[q];
        parts[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && t == 0) {
        sum = 0;
#pragma unroll 1
        for (int b = 0; b < gridDim.x; b++) sum += parts[b];
        *out = sum;
    }
}
