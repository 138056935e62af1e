// x[i] = x[i]^k by a function that calls itself.
__device__ __noinline__ double power(double base, int k) { return k ? base * power(base, k - 1) : 1; }

extern "C" __global__ void called(double *x, int k) { x[threadIdx.x] = power(x[threadIdx.x], k); }
