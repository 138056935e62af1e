// out = in^T, n by n, by tiles of 16 by 16 that 16 by 4 threads bring.
extern "C" __global__ void transpose_tiled(const float *in, float *out, int n) {
    __shared__ float tile[16][16];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
#pragma unroll 1
    for (int j = 0; j < 16; j += 4)
        if (x < n && y + j < n) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];  // NO_BARRIER: race
#ifndef NO_BARRIER
    __syncthreads();
#endif
    x = blockIdx.y * 16 + threadIdx.x, y = blockIdx.x * 16 + threadIdx.y;
#pragma unroll 1
    for (int j = 0; j < 16; j += 4)
        if (x < n && y + j < n) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];  // NO_BARRIER: race
}
