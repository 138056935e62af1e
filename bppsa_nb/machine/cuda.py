"""What kernels and their launchers need to know of a GPU; streams, whose launches can be recorded as a graph."""

import numpy as np
from numba import cuda

from bppsa_nb.machine import backends

inline = cuda.jit(device=True, inline="always")  # what kernels call
SHARED_BYTES = 48 * 1024  # what every CUDA device grants a block without being asked for more
MAX_THREADS = 512  # of a block, here


def shared_bytes(count, dtype, what):
    """Return how many bytes of shared memory a block needs for so many numbers.

    Raises
    ------
    ValueError
        If it does not get them; `what` says what they are.
    """
    size = count * dtype.itemsize
    if size > SHARED_BYTES:
        raise ValueError(
            f"hidden_size: {what} numbers take {size} bytes, but a thread block has {SHARED_BYTES} bytes of shared "
            "memory; use backend='cpu'"
        )
    return size


def require(size, what):
    """Raise unless the device has memory for an array.

    Raises
    ------
    MemoryError
        If it does not.
    """
    free = cuda.current_context().get_memory_info().free
    if size > free:
        raise MemoryError(f"{what} takes {size / 2**30:.1f} GiB, but the device has {free / 2**30:.1f} GiB left")


def on_device(array):
    """Return a device array as it is, and a host array copied to the device."""
    return array if hasattr(array, "copy_to_host") else cuda.to_device(np.ascontiguousarray(array))


def new_stream():
    """Make a stream that launches can be recorded on; on the simulator, where there are none, 0."""
    if backends.simulated():
        return 0
    from cuda.core import Device

    cuda.current_context()  # Numba's context, which is the device's own
    device = Device()
    device.set_current()
    return device.create_stream()


def wait(stream):
    """Return when all that was issued to a stream is done."""
    if stream:
        stream.sync()


def follow(stream, other):
    """Let what is issued to a stream from now on wait for what another one has so far, and be part of its recording."""
    if stream is not other:
        stream.wait(other)


def record(launch, stream):
    """Record launches as a CUDA graph, ready to be launched on the stream."""
    builder = stream.create_graph_builder()
    builder.begin_building()
    launch(builder.stream)
    builder.end_building()
    graph = builder.complete()
    graph.upload(stream)
    return graph
