"""Memory of arrays: whether large ones fit, how compiled code wants them laid out, and those of other libraries.

Other libraries' are taken as NumPy's, and results are given back in the library that they came from: on the host by
DLPack, on a GPU by ``__cuda_array_interface__``. No number is copied, but where compiled code must not write to what it
was given, as to JAX's.
"""

import math
import sys
from operator import attrgetter

import numpy as np

from bppsa_nb.machine.checks import on_gpu

LINE = 64  # bytes of a cache line
_is_contiguous = attrgetter("flags.carray")  # and writable


def contiguous(*arrays):
    """Return arrays in the one layout that compiled code exists for: C-contiguous and writable; copies where needed."""
    if all(map(_is_contiguous, arrays)):
        return arrays
    return tuple(np.require(array, requirements=["C", "W"]) for array in arrays)


def aligned(shape, dtype):
    """Make an array without values that begins where a cache line does: vectors that cross two take longer to load."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.__array_interface__["data"][0] % LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def available():
    """Return how many bytes a program can still have by Linux's own estimate, None where the system has none."""
    try:
        with open("/proc/meminfo", "rb") as file:
            _, found, rest = file.read().partition(b"MemAvailable:")
    except FileNotFoundError:  # another system
        return None
    return 1024 * int(rest.split(maxsplit=1)[0]) if found else None


def require(size, what):
    """Raise MemoryError unless `size` bytes are available for `what`: Linux promises what it does not have.

    Where the system does not say, nothing is checked, and NumPy raises by itself.
    """
    free = available()
    if free is not None and size > free:
        raise MemoryError(f"{what} takes {size / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are available")


def keep_freed_memory():
    """Tell the C library to reuse the memory of large arrays rather than hand it back to the system.

    Every training step needs the same few large arrays again. Memory that went back to the system in between is
    fetched anew, page by page, which takes longer than a time loop does. glibc keeps chunks up to the size of
    the largest one it has seen freed, 32 MiB at most; so one is freed here, untouched and therefore free of
    charge. Other C libraries do not mind.
    """
    np.empty(2**25 - 2**13, np.uint8)


_HOST = 1  # kDLCPU


def is_foreign(array):
    """Tell whether an array is another library's, on the host."""
    if isinstance(array, np.ndarray) or on_gpu(array) or not hasattr(array, "__dlpack_device__"):
        return False
    if getattr(array, "is_deleted", bool)():  # JAX's, which does not say so here
        raise RuntimeError("it was deleted, or donated to a compiled function")
    return array.__dlpack_device__()[0] == _HOST


def as_numpy(name, array):
    """Return an array of another library on the host as NumPy's, anything else as it is; a list's entries one by one.

    If its library does not give it away, there is a TypeError: a PyTorch tensor that requires gradients, for one.
    """
    if isinstance(array, (list, tuple)):
        return [as_numpy(f"{name}[{i}]", each) for i, each in enumerate(array)]
    try:
        return np.from_dlpack(materialized(array)) if is_foreign(array) else array
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array that NumPy can read, got {_library(array)}'s: {error}") from error


def materialized(array):
    """Return an array whose memory holds its numbers: PyTorch puts off minus signs, of which memory knows nothing.

    If there is no such memory, as behind a masked tensor, there is a TypeError or a RuntimeError.
    """
    if not hasattr(array, "resolve_neg"):
        return array
    if array.numel() and array.data_ptr() == 0:
        raise TypeError(f"a {type(array).__name__} has no memory of its own")
    return array.resolve_conj().resolve_neg()


def converter_to(name, like):
    """Return what gives an array, or a list of arrays, to the library that an argument came from, NumPy's as they are.

    If that library is not known to take it, a TypeError names the argument.
    """
    gpu, library = on_gpu(like), sys.modules.get(_library(like))
    if gpu and not hasattr(like, "copy_to_host"):  # which Numba's have, and what stands in for them
        if _library(like) == "torch":
            return lambda array: library.as_tensor(array, device=like.device)
        if _library(like) == "cupy":
            return library.asarray
    if gpu or not is_foreign(like):
        return lambda array: array
    give = getattr(library.numpy if _library(like) == "jax" else library, "from_dlpack", None)
    if give is None:
        raise TypeError(f"{name} must be of a library that takes results back, got {_library(like)}'s: no from_dlpack")
    return lambda array: list(map(give, array)) if isinstance(array, list) else give(array)


def _library(array):
    """Name the library of an array: that of the first of its classes whose library takes arrays, or else of its own."""
    names = [kind.__module__.split(".")[0] for kind in type(array).__mro__]
    names = ["jax" if name == "jaxlib" else name for name in names]
    known = (name for name in names if name == "jax" or hasattr(sys.modules.get(name), "from_dlpack"))
    return next(known, names[0])
