// c = a + b, a thread for an element; the last block may stand over the end.
extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef OFF_BY_ONE
    if (i > n) return;
#else
    if (i >= n) return;
#endif
    c[i] = a[i] + b[i];  // OFF_BY_ONE: out of bounds
}
