// y = a x for a matrix in CSR, a thread for a row.
extern "C" __global__ void spmv(const int *starts, const int *columns, const double *values, const double *x, double *y,
                                int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    double sum = 0;
#pragma unroll 1
    for (int k = starts[row]; k < starts[row + 1]; k++) sum += values[k] * x[columns[k]];
    y[row] = sum;
}
