// out = in^T for a whole number of tiles; a column more in shared memory keeps columns in different banks.
extern "C" __global__ void transpose_padded(const int *in, int *out, int n) {
    __shared__ int tile[16][17];
    int x = threadIdx.x, y = threadIdx.y;
    tile[y][x] = in[(blockIdx.y * 16 + y) * n + blockIdx.x * 16 + x];
    __syncthreads();
#ifdef INTO_THE_PAD
    y++;
#endif
    int value = tile[x][y];  // INTO_THE_PAD: uninitialized
    out[(blockIdx.x * 16 + threadIdx.y) * n + blockIdx.y * 16 + x] = value;
}
