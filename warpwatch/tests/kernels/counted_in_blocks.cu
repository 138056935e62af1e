// counts[0] += threads of the launch, counts[1 + b] += those of block b.
extern "C" __global__ void counted_in_blocks(int *counts) {
#ifdef NEAR
    atomicAdd_block(&counts[0], 1);  // NEAR: race
#else
    atomicAdd(&counts[0], 1);
#endif
    atomicAdd_block(&counts[1 + blockIdx.x], 1);
}
