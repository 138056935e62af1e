// Sorts the 2^k elements of a block.
extern "C" __global__ void bitonic_sort(short *x) {
    extern __shared__ short s[];
    int t = threadIdx.x, n = blockDim.x;
    x += blockIdx.x * n;
    s[t] = x[t];
    __syncthreads();
    for (int size = 2; size <= n; size *= 2)
        for (int d = size / 2; d; d /= 2) {
            int other = t ^ d;
            if (other > t) {
                short a = s[t], b = s[other];                                        // NO_BARRIER: race
                if ((t & size) ? a < b : a > b) s[t] = b, s[other] = a;               // NO_BARRIER: race
            }
#ifdef NO_BARRIER
        }
    __syncthreads();
#else
            __syncthreads();
        }
#endif
    x[t] = s[t];
}
