// out = in^T, in is (rows, columns).
extern "C" __global__ void transpose_naive(const double *in, double *out, int rows, int columns) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
#ifdef SQUARE
    if (x < columns && y < columns)
#else
    if (x < columns && y < rows)
#endif
        out[x * rows + y] = in[y * columns + x];  // SQUARE: out of bounds
}
