// x[i] = x[0] + ... + x[i] in a block, Hillis and Steele: what is read and what is written take turns.
extern "C" __global__ void scan_hillis_steele(int *x) {
    extern __shared__ int s[];
    int t = threadIdx.x, n = blockDim.x;
    int *from = s;
#ifdef IN_PLACE
    int *to = s;
#else
    int *to = s + n;
#endif
    x += blockIdx.x * n;
    from[t] = x[t];
    __syncthreads();
#pragma unroll 1
    for (int d = 1; d < n; d *= 2) {
        to[t] = t >= d ? from[t] + from[t - d] : from[t];  // IN_PLACE: race
        __syncthreads();
        int *other = from;
        from = to, to = other;
    }
    x[t] = from[t];
}
