// total += 1 for each block, a thread of each at a time, behind a lock.
__device__ int taken = 0;

extern "C" __global__ void lock(int *total) {
    if (threadIdx.x) return;
    while (atomicCAS(&taken, 0, 1));
    __threadfence();
    *(volatile int *)total += 1;
    __threadfence();
    atomicExch(&taken, 0);
}
