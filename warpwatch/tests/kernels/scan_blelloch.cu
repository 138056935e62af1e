// x[i] = x[0] + ... + x[i - 1] in a block of half as many threads, Blelloch: up, and down.
extern "C" __global__ void scan_blelloch(float *x, int n) {
    extern __shared__ float s[];
    int t = threadIdx.x;
    s[t] = x[t], s[t + n / 2] = x[t + n / 2];
    for (int d = 1; d < n; d *= 2) {
        __syncthreads();
        int r = 2 * d * (t + 1) - 1;
        if (r < n) s[r] += s[r - d];
    }
    __syncthreads();
    if (t == 0) s[n - 1] = 0;
    for (int d = n / 2; d; d /= 2) {
#ifndef NO_BARRIER
        __syncthreads();
#endif
        int r = 2 * d * (t + 1) - 1;
        if (r < n) {
            float left = s[r - d];  // NO_BARRIER: race
            s[r - d] = s[r];        // NO_BARRIER: race
            s[r] += left;           // NO_BARRIER: race
        }
    }
    __syncthreads();
    x[t] = s[t], x[t + n / 2] = s[t + n / 2];
}
