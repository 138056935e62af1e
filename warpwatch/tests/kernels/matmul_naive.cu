// c = a b; a is (n, m), b is (m, k).
extern "C" __global__ void matmul_naive(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c,
                                        int n, int m, int k) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || j >= k) return;
    float sum = 0;
#ifdef ONE_TOO_FAR
#define END q <= m
#else
#define END q < m
#endif
#pragma unroll 1
    for (int q = 0; END; q++) sum += a[i * m + q] * b[q * k + j];  // ONE_TOO_FAR: out of bounds
    c[i * k + j] = sum;
}
