"""Bodies as kernels: counterpart of `bppsa_nb.machine.items`."""

from functools import cache

from bppsa_nb.machine import items
from bppsa_nb.machine.cuda import inline, on_device, reduced
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.machine.pointwise import with_own

LANES = 128  # threads of a block, a power of two
send = on_device


@inline
def each(first, last):
    """Return this thread's item, if there are so many."""
    first = cuda.grid(1)
    return first, min(first + 1, last)


@inline
def rows(first, last):
    """Return this block's item, which lane this thread is, and how many there are."""
    return cuda.blockIdx.x, cuda.blockIdx.x + 1, cuda.threadIdx.x, cuda.blockDim.x


@inline
def total(value, array):
    """Return the sum of all lanes' values, which have the dtype of an array."""
    shared = cuda.shared.array(0, array.dtype)
    shared[cuda.threadIdx.x] = value
    return reduced(shared, cuda.threadIdx.x, cuda.blockDim.x, True)


@cache
def kernel_of(body):
    """Return a body as a kernel."""
    return cuda.jit(with_own(body, {items.each: each, items.rows: rows, items.total: total}))


def run_each(body, count, *arrays, **_):
    """Have a body handle so many items, one per thread."""
    if count:
        kernel_of(body)[-(-count // LANES), LANES](*arrays, 0, count)


def run_rows(body, count, *arrays, **_):
    """Have a body handle so many items, one per block."""
    if count:
        kernel_of(body)[count, LANES, 0, 8 * LANES](*arrays, 0, count)


def empty(shape, dtype):
    """Return a device array without values."""
    return cuda.device_array(shape, dtype)


def host(array):
    """Return a NumPy array of a device array."""
    return array.copy_to_host()
