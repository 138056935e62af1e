// Functions of float numbers, one a row of out; the last four in the GPU's own approximations.
extern "C" __global__ void elementary(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], positive = fabsf(v) + 0.1f;
    float results[] = {logf(positive), tanhf(v), atanf(v), erff(v), expm1f(v), cbrtf(v), sqrtf(positive), 1 / positive,
                       rintf(v), floorf(v), truncf(v), fmaf(v, v, -v), copysignf(2, v), fminf(v, 0.5f), ldexpf(v, 3),
                       __sinf(v), __cosf(v), __log2f(positive), __fdividef(v, positive)};
#pragma unroll
    for (int q = 0; q < 19; q++) out[q * n + i] = results[q];
}
