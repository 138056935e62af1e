// Numbers of one type as those of another, one conversion a row of out: rounding, the ends of the range, NaN.
#include <cuda_fp16.h>

extern "C" __global__ void conversions(const double *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i], w = isnan(v) ? 1 : v;  // what a NaN's bits become is nobody's business
    float f = (float)w;
    int results[] = {__double2int_rn(v), __double2int_rz(v), __double2int_ru(v), __double2int_rd(v),
                     (int)__float2uint_rn(f), __float_as_int(f), __float_as_int(__double2float_rd(w)),
                     __float_as_int(__double2float_ru(w)), __half_as_short(__double2half(w)),
                     __float_as_int(__int2float_rz(__double2int_rz(v))), __float_as_int(__saturatef((float)v)),
                     (int)(__double2ll_rn(v) >> 16), __double2hiint(v), __double2loint(v), isnan(v) != 0,
                     signbit(v) != 0};
#pragma unroll
    for (int q = 0; q < 16; q++) out[q * n + i] = results[q];
}
