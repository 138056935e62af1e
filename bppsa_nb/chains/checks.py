"""What a chain's arguments are checked for, on one machine or on many."""

from typing import Annotated

import numpy as np
from scipy import sparse

from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.machine.arguments import Array, look_of
from bppsa_nb.machine.checks import FLOATS, check_dtype, check_finite, check_floats, short_repr, wrong_shape
from bppsa_nb.operands.pattern import BatchedCSR

_JACOBIANS = look_of(Annotated[Array, "float[T, B, H, H] or float[T, H, H]"])
_END = look_of(Annotated[Array, "float[B, H]"])
_TERMS = look_of(Annotated[Array, "float[T, B, H]"]), look_of(Annotated[Array, "float[T + 1, B, H]"])
_SINGLE, _SEVERAL = ("n",), ("B", "n")  # shapes of gradients along a list


def check_chain(jacobians_T, grad_output, local_grads, backend):
    """Check the arguments of `bppsa_nb.backprop`.

    Returns the chain, stored Jacobians as [shape=(T, B, H, H)] or [shape=(T, 1, H, H)]; `grad_output` with
    ``local_grads[T]`` in it; the shape (T, B, H), None for a list; and the backend, "numpy" for single matrices.
    """
    if isinstance(jacobians_T, (list, tuple)):
        check_floats("grad_output", grad_output, _SINGLE, _SEVERAL)
        sizes, dtype, batch = check_links(jacobians_T, grad_output)
        if local_grads is not None:
            check_terms(local_grads, sizes, dtype, batch, "T + 1")
        planned = any(isinstance(link, BatchedCSR) for link in jacobians_T)
        if not planned and (jacobians_T or grad_output.ndim == 1):  # without links, samples say that it is a batch
            backend = numpy_only(backend)
        shape = None
    else:
        shape = check_dense(jacobians_T, grad_output, local_grads)
        if not isinstance(jacobians_T, StructuredChain) and jacobians_T.ndim == 3:
            jacobians_T = jacobians_T[:, None]
    return jacobians_T, with_last_term(grad_output, local_grads), shape, backend


def check_dense(jacobians_T, grad_output, local_grads, last=True):
    """Check a dense or structured chain and its gradients; return T, B, or None where nothing says it, and H.

    Where the chain goes on after the `last` link, on another rank, there is neither a gradient nor a loss term there.
    """
    structured, shape = isinstance(jacobians_T, StructuredChain), ()
    if structured:
        jacobians_T.check()  # what was changed in place since it was made
        shape = jacobians_T.shape
    elif type(jacobians_T) is np.ndarray and jacobians_T.shape[2:3] == jacobians_T.shape[3:]:
        shape = jacobians_T.shape[:3]
    if last and shape and _fit(shape, jacobians_T.dtype, grad_output, local_grads):
        return shape  # as nearly always; if not, looks say what is wrong
    if structured:
        known = {**dict(zip("TBH", shape, strict=True)), "dtype": jacobians_T.dtype, "of": "jacobians_T"}
        known["jacobians_T", ""] = "TBH"
    elif not hasattr(jacobians_T, "shape"):
        expected = "an array, a StructuredChain or a list of matrices"
        raise TypeError(f"jacobians_T must be {expected}, got {short_repr(jacobians_T)}")
    else:
        known = {}
        _JACOBIANS("jacobians_T", jacobians_T, known)
    if last:
        _END("grad_output", grad_output, known)
    if local_grads is not None:
        _TERMS[last]("local_grads", local_grads, known)
    return known["T"], known.get("B"), known["H"]


def _fit(shape, dtype, end, terms):
    """Tell at once whether gradients fit a chain of shape (T, B, H)."""
    if type(end) is not np.ndarray or end.shape != shape[1:] or not end.size:
        return False
    if end.dtype is not dtype or dtype not in FLOATS:
        return False
    if terms is None:
        return True
    return type(terms) is np.ndarray and terms.dtype is dtype and terms.shape == (shape[0] + 1, *end.shape)


def with_last_term(grad_output, local_grads):
    """Return the gradient at the end of a chain, with the loss term there, if there are any."""
    if local_grads is None:
        return grad_output
    with np.errstate(all="ignore"):
        return grad_output + local_grads[-1]


def numpy_only(backend):
    """Return the backend of a list of single matrices; raise ValueError if it was to be another."""
    if backend not in ("numpy", "auto"):
        got = f"got {backend!r}; links of type BatchedCSR run on all backends"
        raise ValueError(f"backend must be 'numpy' or 'auto' for a list of matrices, {got}")
    return "numpy"


def check_links(links, end):
    """Check a list of links whose sizes may differ; `end` is the gradient at its end, or None if another rank has it.

    Returns the sizes of the states x_0 ... x_T, [-1] where there is neither a link nor a gradient to tell; the dtype or
    None; and B of a batched list, 0 for one of single matrices, -1 where it cannot be told. Raises TypeError or
    ValueError if the links are none, or do not chain.
    """
    for t, matrix in enumerate(links):
        if not isinstance(matrix, BatchedCSR) and not sparse.issparse(matrix):
            check_floats(f"jacobians_T[{t}]", matrix, ("m", "n"), ("B", "m", "n"))
        elif len(matrix.shape) != 2:
            raise wrong_shape(f"jacobians_T[{t}]", matrix, ("m", "n"))
    batched, planned = any(map(_is_batched, links)), any(isinstance(link, BatchedCSR) for link in links)
    batch, sizes, dtype, of = (-1 if batched or not links else 0), [-1], None, "grad_output"
    if end is not None:
        check_floats("grad_output", end, *([_SEVERAL] if batched else [_SINGLE] if links else [_SINGLE, _SEVERAL]))
        if end.size == 0:
            raise ValueError(f"grad_output must not be empty, got shape {end.shape}")
        sizes, dtype, batch = [end.shape[-1]], end.dtype, len(end) if end.ndim == 2 else 0
    elif links:
        of, sizes = f"jacobians_T[{len(links) - 1}]", [links[-1].shape[-1]]
    for t in reversed(range(len(links))):
        name, matrix = f"jacobians_T[{t}]", links[t]
        if batched:
            batch = _check_batched(name, matrix, batch, planned)
        if matrix.shape[-1] != sizes[-1]:
            below = f"jacobians_T[{t + 1}]" if t + 1 < len(links) else "grad_output"
            raise ValueError(f"{name} must have {sizes[-1]} columns to chain with {below}, got shape {matrix.shape}")
        found = (matrix.values if isinstance(matrix, BatchedCSR) else matrix).dtype
        check_dtype(name, found, dtype, of)
        dtype = found
        sizes.append(matrix.shape[-2])
    return sizes[::-1], dtype, batch


def _is_batched(link):
    return isinstance(link, BatchedCSR) or (isinstance(link, np.ndarray) and link.ndim == 3)


def _check_batched(name, link, batch, planned):
    """Check one link of a batched list, all of which are `planned` or none; return B if it is known now."""
    if not _is_batched(link) or isinstance(link, BatchedCSR) != planned:
        kind = "a BatchedCSR" if planned else "an array (B, m, n)"
        got = f"an array {link.shape}" if isinstance(link, np.ndarray) else type(link).__name__
        raise TypeError(f"{name} must be {kind} like the other links, got {got}")
    if not planned:
        if len(link) == 0 or (len(link) != 1 and batch not in (-1, len(link))):
            expected = f"({'B' if batch < 0 else batch}, m, n) or (1, m, n)"
            raise ValueError(f"{name} must have shape {expected}, got {link.shape}")
        return batch if len(link) == 1 else len(link)
    check_floats(f"{name}.values", link.values, ("B", "nnz"))
    samples, nnz = len(link.values), link.pattern.nnz
    if link.values.shape[1] != nnz or (samples != 1 and batch not in (-1, samples)):
        expected = f"({'B' if batch < 0 else batch}, {nnz}) or (1, nnz)"
        raise ValueError(f"{name}.values must have shape (B, nnz) = {expected}, got {link.values.shape}")
    return batch if samples == 1 else samples


def check_terms(local_grads, sizes, dtype, batch, points):
    """Check a list of loss terms; return dtype and batch as far as they are known now.

    There has to be one for each of the `points`, in words. `sizes`, `dtype` and `batch` are those of `check_links`;
    loss terms have to agree with what is known.
    """
    if not isinstance(local_grads, (list, tuple)) or len(local_grads) != len(sizes):
        got = type(local_grads).__name__
        got += f" of {len(local_grads)}" if isinstance(local_grads, (list, tuple)) else ""
        raise ValueError(f"local_grads must be a list of {points} = {len(sizes)} arrays, got {got}")
    for t, (offset, size) in enumerate(zip(local_grads, sizes, strict=True)):
        name = f"local_grads[{t}]"
        check_floats(name, offset, *([_SINGLE, _SEVERAL] if batch < 0 else [_SEVERAL] if batch else [_SINGLE]))
        check_dtype(name, offset.dtype, dtype)
        batch, dtype = (len(offset) if offset.ndim == 2 else 0) if batch < 0 else batch, offset.dtype
        expected = (batch, size) if batch else (size,)
        if offset.shape != expected:
            raise ValueError(f"{name} must have shape {expected} like x_{t}, got {offset.shape}")
    return dtype, batch


def check_numbers(jacobians_T, grad_output, local_grads):
    """Raise ValueError at the first NaN or infinity, naming the argument, those of a list by number, and the place."""
    given = {"grad_output": grad_output, "local_grads": local_grads}
    if isinstance(jacobians_T, StructuredChain):
        given |= {f"jacobians_T.{name}": getattr(jacobians_T, name) for name in ("weights", "slopes", "carry")}
    else:
        given["jacobians_T"] = jacobians_T
    for name, value in given.items():
        several = isinstance(value, (list, tuple))
        for t, array in enumerate(value if several else [value]):
            entries = array.values if isinstance(array, BatchedCSR) else array
            if entries is not None:
                entries = sparse.coo_array(entries).data if sparse.issparse(entries) else entries
                check_finite(**{f"{name}[{t}]" if several else name: entries})
