// Each block writes its positive numbers, in their order, to its part of out, and how many they are to counts.
extern "C" __global__ void compact(const int *x, int *out, int *counts, int n) {
    __shared__ int warps[32];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
#ifdef EARLY_RETURN
    if (i >= n) return;
#endif
    bool keep = i < n && x[i] > 0;
    unsigned votes = __ballot_sync(__activemask(), keep);
    if (t % 32 == 0) warps[t / 32] = __popc(votes);
    __syncthreads();  // EARLY_RETURN: note
    int place = __popc(votes & ((1u << t % 32) - 1));
#pragma unroll 1
    for (int w = 0; w < t / 32; w++) place += warps[w];
    if (keep) out[blockIdx.x * blockDim.x + place] = x[i];
    if (t == blockDim.x - 1) counts[blockIdx.x] = place + keep;
}
