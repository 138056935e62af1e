"""Whole device arrays: taken over from other libraries, filled, copied, added, looked at."""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from bppsa_nb.machine.checks import on_gpu
from bppsa_nb.machine.cuda import inline
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.machine.memory import materialized

W = np.uint64  # see `machine.cuda.dot_of`
_THREADS = 256
EACH = 4  # numbers of a long line for each thread: starting a block takes time
_BLOCKS = 1024  # at most, of a kernel whose threads look at many numbers


@inline
def mine():
    """Return the first of a thread's `EACH` numbers of a line, and how far the next one is."""
    threads = W(cuda.blockDim.x)
    return W(cuda.blockIdx.x) * W(EACH) * threads + W(cuda.threadIdx.x), threads


@inline
def taken(values, source, start, threads, stop):
    """Read a thread's numbers of a line, all before it writes any, so that none waits for another."""
    for k in range(EACH):
        q = start + W(k) * threads
        values[k] = source[q] if q < stop else values.dtype.type(0)


@cuda.jit
def _fill(line, value):
    """Set every number of a line to a value."""
    q, threads = mine()
    for _ in range(EACH):
        if q < W(line.shape[0]):
            line[q] = value
        q += threads


@cuda.jit
def _copy(source, target):
    """Copy a line of numbers."""
    values, (q, threads) = cuda.local.array(EACH, source.dtype), mine()
    taken(values, source, q, threads, W(source.shape[0]))
    for k in range(EACH):
        if q < W(source.shape[0]):
            target[q] = values[k]
        q += threads


@cuda.jit
def _add(line, other):
    """Add a line of numbers to another."""
    values, (q, threads) = cuda.local.array(EACH, line.dtype), mine()
    taken(values, other, q, threads, W(line.shape[0]))
    for k in range(EACH):
        if q < W(line.shape[0]):
            line[q] += values[k]
        q += threads


@cuda.jit
def _find_lost(line, found):
    """Set ``found[0]`` if a number is infinite, or not a number."""
    zero = line.dtype.type(0)
    for q in range(cuda.grid(1), line.shape[0], cuda.gridsize(1)):
        if line[q] - line[q] != zero:
            found[0] = 1


def over(kernel, array, stream=0, threads=_THREADS, each=1):
    """Configure a kernel to run with one thread for each number of a device array, or for `each` so many of them."""
    threads = min(threads, array.size)
    return kernel[-(-array.size // (threads * each)), threads, stream]


def line(array):
    """Return a device array as one line of numbers."""
    return array.reshape(array.size)


def fill(array, value, stream=0):
    """Launch the setting of every number of an array to a value."""
    over(_fill, array, stream, each=EACH)(line(array), value)


def copy(source, target, stream=0):
    """Launch the copying of an array to another of its shape."""
    over(_copy, source, stream, each=EACH)(line(source), line(target))


def put(array, target):
    """Copy an array, on the host or a GPU, to a device array of its shape."""
    if on_gpu(array):
        copy(array, target)
    else:
        target.copy_to_device(np.ascontiguousarray(array))


@cuda.jit
def _put_rows(source, target):
    """Copy rows of numbers to longer ones, to the beginning of each."""
    width, q = source.shape[1], cuda.grid(1)
    if q < source.size:
        target[q // width, q % width] = source[q // width, q % width]


def put_rows(source, target, stream=0):
    """Launch the copying of rows, the last axis of an array, to rows that are as long or longer."""
    rows = source.size // source.shape[-1]
    if source.shape == target.shape:
        copy(source, target, stream)
    else:
        over(_put_rows, source, stream)(*(array.reshape(rows, array.size // rows) for array in (source, target)))


def fetched(array, like):
    """Return a device array as it is, if another array is on a GPU as well; otherwise fetch it."""
    return array if on_gpu(like) else array.copy_to_host()


def add(array, other, stream=0):
    """Launch the addition of another array to an array, in place."""
    over(_add, array, stream, each=EACH)(line(array), line(other))


def all_finite(array):
    """Tell whether a device array holds neither NaN nor infinity; only the answer comes to the host."""
    if array.size == 0:
        return True
    found, threads = cuda.to_device(np.zeros(1, np.int32)), min(_THREADS, array.size)
    _find_lost[min(-(-array.size // threads), _BLOCKS), threads](line(array), found)
    return not found.copy_to_host()[0]


def as_device_array(name, array):
    """Take an array of any library over, without a copy, as Numba's.

    It is a TypeError if it is not in a GPU's memory, or Numba cannot read it (see `materialized`), a ValueError
    if its numbers do not stand one after the other.
    """
    if not on_gpu(array):
        raise TypeError(f"{name} must be in the GPU's memory, as other arguments are, got {type(array).__name__}")
    if not hasattr(array, "copy_to_host"):
        try:
            array = materialized(array)
            said = dict(array.__cuda_array_interface__)
        except (RuntimeError, TypeError) as error:  # PyTorch's, of a tensor that requires gradients, for one
            raise TypeError(f"{name} must be an array that Numba can read: {error}") from error
        shape, strides = said["shape"], said.get("strides")
        if strides and as_strided(np.empty(0, said["typestr"]), shape, strides).flags.c_contiguous:
            said["strides"] = None  # Numba does not take an axis of one for contiguous whatever its stride is
        array = cuda.from_cuda_array_interface(said, owner=array)
    if not array.flags["C_CONTIGUOUS"]:
        raise ValueError(f"{name} must be contiguous, row by row, got shape {array.shape} in another order")
    return array
