// Blocks add to an array one after the other: each waits for the flag of the block before, and raises its own.
#include <cuda/atomic>

extern "C" __global__ void handed_over(float *x, int *flags, int *seen) {
    const int t = threadIdx.x, b = blockIdx.x;
#ifdef NEAR
    cuda::atomic_ref<int, cuda::thread_scope_block> mine(flags[b]);
#else
    cuda::atomic_ref<int, cuda::thread_scope_device> mine(flags[b]);
#endif
    if (b) {
        cuda::atomic_ref<int, cuda::thread_scope_device> before(flags[b - 1]);
#ifdef NO_ACQUIRE
        while (!before.load(cuda::memory_order_relaxed)) {}
#else
        while (!before.load(cuda::memory_order_acquire)) {}  // by all threads
#endif
        seen[b * blockDim.x + t] = flags[b - 1];  // which others may still read atomically
    }
    const float old = x[t];  // NO_ACQUIRE: race
    x[t] = old + b + 1;  // NO_RELEASE: race
    __syncthreads();
    if (t) return;
#ifdef NO_RELEASE
    mine.store(1, cuda::memory_order_relaxed);
#else
    mine.store(1, cuda::memory_order_release);  // NEAR: race
#endif
}
