// y += a x in half precision, two elements a thread.
#include <cuda_fp16.h>

extern "C" __global__ void saxpy_half(float a, const __half *x, __half *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef ODD_START
    const __half2 *x2 = (const __half2 *)(x + 1);
#else
    const __half2 *x2 = (const __half2 *)x;
#endif
    __half2 *y2 = (__half2 *)y;
    if (i < n / 2) y2[i] = __hfma2(__float2half2_rn(a), x2[i], y2[i]);  // ODD_START: misaligned
    if (i == 0 && n % 2) y[n - 1] = __float2half(a * __half2float(x[n - 1]) + __half2float(y[n - 1]));
}
