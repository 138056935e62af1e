// out[i] = table[index[i]]; the table's first 32 numbers are kept in shared memory: the address is generic.
extern "C" __global__ void gather_cached(const float *table, const int *index, float *out, int n) {
    __shared__ float cache[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 32) cache[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    if (i >= n) return;
#ifdef BEHIND_THE_CACHE
    const float *from = index[i] <= 32 ? cache : table;
#else
    const float *from = index[i] < 32 ? cache : table;
#endif
    out[i] = from[index[i]];  // BEHIND_THE_CACHE: out of bounds
}
