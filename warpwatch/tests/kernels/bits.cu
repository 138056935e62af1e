// What integers can do, an operation a row of out.
extern "C" __global__ void bits(const unsigned *x, const unsigned *y, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = x[i], b = y[i];
    unsigned long long wide = (unsigned long long)a << 32 | b;
    unsigned results[] = {(unsigned)__popc(a), (unsigned)__clz(a), (unsigned)__ffs(a), __brev(a), __umulhi(a, b),
                          (unsigned)__mulhi((int)a, (int)b), __byte_perm(a, b, 0x1604), __funnelshift_l(a, b, a & 31),
                          a / (b | 1), (unsigned)((int)a % (int)(b | 1)), (unsigned)((int)a >> (b & 31)),
                          (unsigned)__clzll(wide), (unsigned)__popcll(wide), (unsigned)(wide / (a | 1)),
                          __usad(a, b, 7), (unsigned)max((int)a, (int)b), min(a, b), (unsigned)(short)a,
                          (unsigned)(signed char)b, a * a + b};
#pragma unroll
    for (int q = 0; q < 20; q++) out[q * n + i] = results[q];
}
