// out[row] = softmax(x[row]), a block for a row; `all` passes a block's largest value and its sum to all threads.
extern "C" __global__ void softmax(const float *x, float *out, int n) {
    __shared__ float s[128], all;
    int t = threadIdx.x;
    x += blockIdx.x * n, out += blockIdx.x * n;
    float most = __int_as_float(0xff800000), sum = 0;
#pragma unroll 1
    for (int i = t; i < n; i += 128) most = fmaxf(most, x[i]);
    s[t] = most;
    __syncthreads();
    if (t == 0) {
#pragma unroll 1
        for (int q = 1; q < 128; q++) most = fmaxf(most, s[q]);  // NO_BARRIER: race
        all = most;  // NO_BARRIER: race
    }
#ifndef NO_BARRIER
    __syncthreads();
#endif
    most = all;  // NO_BARRIER: race
#pragma unroll 1
    for (int i = t; i < n; i += 128) sum += expf(x[i] - most);
    s[t] = sum;  // NO_BARRIER: race
    __syncthreads();
#pragma unroll 1
    for (int d = 64; d; d /= 2) {
        if (t < d) s[t] += s[t + d];
        __syncthreads();
    }
#pragma unroll 1
    for (int i = t; i < n; i += 128) out[i] = expf(x[i] - most) / s[0];
}
