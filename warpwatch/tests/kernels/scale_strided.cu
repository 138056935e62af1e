// x *= factor, a loop whose stride is the grid, so that any grid does.
extern "C" __global__ void scale_strided(double *x, double factor, long long n) {
#ifdef WRONG_STRIDE
    long long stride = gridDim.x / blockDim.x;  // 0
#else
    long long stride = (long long)gridDim.x * blockDim.x;
#endif
#pragma unroll 1
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)  // WRONG_STRIDE: endless
        x[i] *= factor;                                                            // WRONG_STRIDE: endless
}
