"""What launchers of kernels need to know of a GPU."""

import numpy as np
from numba import cuda

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
