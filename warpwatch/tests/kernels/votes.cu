// What a warp can say together: sums, matches and votes of its lanes' keys (0 ... 3), and a count over the block.
extern "C" __global__ void votes(const unsigned *keys, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    unsigned key = keys[i];
    out[i] = __reduce_add_sync(~0u, key);
    out[n + i] = __match_any_sync(~0u, key);
    out[2 * n + i] = __all_sync(~0u, key < 3) + 2 * __any_sync(~0u, key == 0);
    out[3 * n + i] = __syncthreads_count(key == 1) + 1000 * __syncthreads_or(key == 7);
    out[4 * n + i] = __shfl_sync(~0u, key, key, 8);
    out[5 * n + i] = __reduce_max_sync(~0u, key);
}
