// y = a x, a is (rows, columns), a warp for a row, four numbers a load.
extern "C" __global__ void matvec_warp(const float *a, const float *x, float *y, int rows, int columns) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float4 *a4 = (const float4 *)(a + row * columns), *x4 = (const float4 *)x;
    float sum = 0;
#pragma unroll 1
    for (int j = lane; j < columns / 4; j += 32) {
#ifdef ROWS_SHIFTED
        float4 p = *(const float4 *)((const float *)(a4 + j) + row % 2), q = x4[j];  // ROWS_SHIFTED: misaligned
#else
        float4 p = a4[j], q = x4[j];
#endif
        sum += p.x * q.x + p.y * q.y + p.z * q.z + p.w * q.w;
    }
#pragma unroll 1
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) y[row] = sum;
}
