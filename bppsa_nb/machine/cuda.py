"""What kernels and their launchers need to know of a GPU; streams, whose launches can be recorded as a graph."""

import gc
import os
from contextlib import contextmanager, suppress

import numpy as np

from bppsa_nb.machine import backends
from bppsa_nb.machine.cuda_compiler import cuda

# What kernels call. Numba's own inlining is for what makes an array and returns it: it copies all that calls, for each
# call, which takes seconds.
inline, inline_early = cuda.jit(device=True, forceinline=True), cuda.jit(device=True, inline="always")
SHARED_BYTES = 48 * 1024  # what every CUDA device grants a block without being asked for more
MAX_THREADS = 512  # of a block, here
WARP = 32  # threads that go on together
REGISTERS = 128  # of a thread's 255, of four bytes each: what it may keep weights in
_ANY_KERNEL = 256  # threads for which a block has registers, though each may have 255 of its 65,536


def shared_bytes(count, itemsize, what):
    """Return how many bytes of shared memory so many numbers take; a ValueError says `what` takes too many."""
    size = count * itemsize
    if size > SHARED_BYTES:
        there = f"a thread block has {SHARED_BYTES} bytes of shared memory; use backend='cpu'"
        raise ValueError(f"{what} take {size} bytes, but {there}")
    return size


def in_registers(count, dtype):
    """Tell whether a thread can keep so many weights in registers."""
    return count * dtype.itemsize <= 4 * REGISTERS


def row_of(size):
    """Return how far apart rows lie in shared memory whose numbers are read four at a time, by a thread for each row.

    Four times an odd number: rows begin in groups of banks of their own, and where loads of four may.
    """
    fours = -(-size // 4)
    return 4 * (fours + 1 - fours % 2)


def dot_of(count, real):
    """Make a dot product of `count` numbers in registers with as many in shared memory, from `offset` on, and `start`.

    It is four sums that do not wait for each other. Indices are unsigned, or known when it is compiled: others, Numba
    would have to look at, for those below zero count from the end. Kernels leave the size of what they share to their
    launch.
    """
    whole, zero, U = count - count % 4, real(0), np.uint32

    @inline
    def dot(start, registers, shared, offset):
        a, b, c, d = start, zero, zero, zero
        for q in range(0, whole, 4):
            a += registers[q] * shared[offset + U(q)]
            b += registers[q + 1] * shared[offset + U(q + 1)]
            c += registers[q + 2] * shared[offset + U(q + 2)]
            d += registers[q + 3] * shared[offset + U(q + 3)]
        for q in range(whole, count):
            a += registers[q] * shared[offset + U(q)]
        return (a + b) + (c + d)

    return dot


@inline
def base_of(threads):
    """Return 0 as an offset into shared memory, in a block of so many threads, by way of the thread's number.

    So the compiler keeps the address in a register. Of a known offset it would find the address anew for every read.
    """
    return np.uint32(cuda.threadIdx.x) // np.uint32(threads) * np.uint32(4)


@inline
def reduced(shared, tid, threads, add):
    """Return the sum, or the largest, of a number of every thread, of which there are a power of two."""
    half = threads // 2
    while half > 0:
        cuda.syncthreads()
        if tid < half:
            other = shared[tid + half]
            shared[tid] = shared[tid] + other if add else max(shared[tid], other)
        half //= 2
    cuda.syncthreads()
    return shared[0]


def fitted(kernel, threads, *arguments):
    """Return a kernel, and how many threads a block of it may have: so many, or as many as it has registers for."""
    if threads <= _ANY_KERNEL or backends.emulated():
        return kernel, threads
    kernel = kernel.specialize(*arguments)  # compiled by now, so that the registers are known
    return kernel, min(threads, kernel.get_max_threads_per_block())


def launch(kernel, blocks, threads, stream, shared, *arguments):
    """Launch a kernel with so many threads a block, or with as many as it has registers for."""
    kernel, threads = fitted(kernel, threads, *arguments)
    kernel[blocks, threads, stream, shared](*arguments)


def require(size, what):
    """Raise MemoryError unless the device has memory for an array; `what` says which."""
    free = cuda.current_context().get_memory_info().free
    if size > free:
        raise MemoryError(f"{what} takes {size / 2**30:.1f} GiB, but the device has {free / 2**30:.1f} GiB left")


def on_device(array):
    """Return a device array as it is, and a host array copied to the device.

    NumPy takes an axis of one for contiguous whatever its stride is, zero included; Numba does not.
    """
    if hasattr(array, "copy_to_host"):
        return array
    return cuda.to_device(np.ascontiguousarray(array).reshape(array.size).reshape(array.shape))


def new_stream():
    """Make a stream that launches can be recorded on.

    It waits for the legacy stream, on which `cuda.to_device` copies: that returns while the last bytes of memory
    that is not pinned are still on their way.
    """
    if backends.emulated():
        from warpwatch.streams import Stream

        return Stream()
    from cuda.core import Device, StreamOptions

    cuda.current_context()  # Numba's context, which is the device's own
    device = Device()
    device.set_current()
    return device.create_stream(options=StreamOptions(nonblocking=False))


def follow(stream, other):
    """Let what is issued to a stream from now on wait for what another one has so far, and be part of its recording."""
    if stream is not other:
        stream.wait(other)


def records():
    """Tell whether launches are recorded: they are on a GPU, unless the environment has ``BPPSA_NB_CUDA_GRAPH=0``."""
    return os.environ.get("BPPSA_NB_CUDA_GRAPH", "1") != "0" and not backends.emulated()


def record(issue, stream):
    """Record what `issue` launches on a stream as a CUDA graph, to be launched there; an error ends it."""
    builder = stream.create_graph_builder()
    with _nothing_freed():
        builder.begin_building()
        try:
            issue(builder.stream)
        except BaseException:
            with suppress(Exception):  # of what was cut short; the error that counts is on its way
                builder.end_building()
            raise
        builder.end_building()
    graph = builder.complete()
    graph.upload(stream)
    return graph


@contextmanager
def _nothing_freed():
    """Free no device memory in a block, which would end a recording: neither Numba nor the garbage collector."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with cuda.defer_cleanup():
            yield
    finally:
        if collects:
            gc.enable()
