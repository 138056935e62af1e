// c = a b, n by n, by tiles in shared memory.
#define TILE 8

extern "C" __global__ void matmul_tiled(const float *a, const float *b, float *c, int n) {
    __shared__ float s[TILE][TILE], t[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * TILE + y, j = blockIdx.x * TILE + x;
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < n; k += TILE) {
        s[y][x] = i < n && k + x < n ? a[i * n + k + x] : 0;  // NO_SECOND_BARRIER: race
        t[y][x] = j < n && k + y < n ? b[(k + y) * n + j] : 0;  // NO_SECOND_BARRIER: race
        __syncthreads();
#pragma unroll 2
        for (int q = 0; q < TILE; q++)
            sum += s[y][q] * t[q][x];  // NO_SECOND_BARRIER: race
#ifndef NO_SECOND_BARRIER
        __syncthreads();
#endif
    }
    if (i < n && j < n) c[i * n + j] = sum;
}
