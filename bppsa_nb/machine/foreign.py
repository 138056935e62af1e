"""Arrays of other libraries: taken as NumPy's, and results given back in the library that they came from.

On the host they pass by DLPack, on a GPU by ``__cuda_array_interface__``; no number is copied, but where compiled code
must not write to what it was given, as to JAX's.
"""

import sys

import numpy as np

from bppsa_nb.machine.checks import on_gpu

_HOST = 1  # kDLCPU


def foreign(array):
    """Tell whether an array is another library's, on the host."""
    if isinstance(array, np.ndarray) or on_gpu(array) or not hasattr(array, "__dlpack_device__"):
        return False
    return array.__dlpack_device__()[0] == _HOST


def taken(name, array):
    """Return an array of another library on the host as NumPy's, anything else as it is; a list's entries one by one.

    Raises
    ------
    TypeError
        If its library does not give it away: a PyTorch tensor that requires gradients, or is sparse, for one.
    """
    if isinstance(array, list):
        return [taken(f"{name}[{i}]", each) for i, each in enumerate(array)]
    try:
        return np.from_dlpack(array) if foreign(array) else array
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array that NumPy can read, got {_library(array)}'s: {error}") from error


def returned(array, like):
    """Give an array, or a list of arrays, to the library that another array came from; NumPy's and Numba's stay.

    Raises
    ------
    TypeError
        If that library is not known to take it.
    """
    if isinstance(array, list):
        return [returned(each, like) for each in array]
    library = sys.modules.get(_library(like))
    if on_gpu(like):
        if hasattr(like, "copy_to_host"):  # Numba's, or its simulator's
            return array
        if _library(like) == "torch":
            return library.as_tensor(array, device=like.device)
        if _library(like) == "cupy":
            return library.asarray(array)
        return array
    if not foreign(like):
        return array
    make = getattr(library.numpy if _library(like) == "jax" else library, "from_dlpack", None)
    if make is None:
        raise TypeError(f"results cannot be given to {_library(like)}: it has no from_dlpack")
    return make(array)


def _library(array):
    name = type(array).__module__.split(".")[0]
    return "jax" if name == "jaxlib" else name
