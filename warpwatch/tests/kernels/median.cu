// out[i] = the median of x[i - 2] ... x[i + 2], sorted in an array of the thread's own; the ends repeat.
extern "C" __global__ void median(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, count = 0;
    float w[5];
    if (i >= n) return;
#ifdef ONE_LESS
#define LAST 1
#else
#define LAST 2
#endif
#pragma unroll 1
    for (int d = -2; d <= LAST; d++) {
        float value = x[min(max(i + d, 0), n - 1)];
        int q = count++;
#pragma unroll 1
        for (; q > 0 && w[q - 1] > value; q--) w[q] = w[q - 1];
        w[q] = value;
    }
    int middle = 2;
#ifdef ONE_LESS
    middle += i % 4 == 3 ? 2 : 0;
#endif
    out[i] = w[middle];  // ONE_LESS: uninitialized
}
