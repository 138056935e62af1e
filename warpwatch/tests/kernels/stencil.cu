// out[i] = the sum of x[i - 3] ... x[i + 3], zeros beyond the ends; a block brings three places more at either side.
#define R 3
#define THREADS 64

extern "C" __global__ void stencil(const int *x, int *out, int n) {
    __shared__ int s[THREADS + 2 * R];
    int t = threadIdx.x, i = blockIdx.x * THREADS + t;
    s[t + R] = i < n ? x[i] : 0;
    if (t < R) {
#ifdef NO_GUARD
        s[t] = x[i - R];  // NO_GUARD: out of bounds
#else
        s[t] = i >= R ? x[i - R] : 0;
#endif
#ifndef NO_RIGHT_HALO
        s[t + THREADS + R] = i + THREADS < n ? x[i + THREADS] : 0;
#endif
    }
    __syncthreads();
    int sum = 0;
#pragma unroll 1
    for (int d = 0; d <= 2 * R; d++) sum += s[t + d];  // NO_RIGHT_HALO: uninitialized
    if (i < n) out[i] = sum;
}
