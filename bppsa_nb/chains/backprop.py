"""Gradients along a chain: check the input, pick the method and the backend, go back, and see that all is in range."""

from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np

from bppsa_nb.chains import checks
from bppsa_nb.chains import levels as listed
from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.chains.methods import go_back, in_range
from bppsa_nb.chains.plan import METHODS, known
from bppsa_nb.machine import backends, memory
from bppsa_nb.machine.arguments import Backend, Comm, Count, Method, checked
from bppsa_nb.machine.checks import all_finite, check_choice, is_finite, on_gpu
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.machine.process import over_ranks

_ON_HOST, _METHODS = (np.ndarray, type(None)), (*METHODS, "auto")
Kind = TypeVar("Kind")  # of arrays, NumPy's or another library's


@checked
def backprop(
    jacobians_T: Annotated[Any, "float[T, B, H, H] or float[T, H, H], a StructuredChain, or a list"],
    grad_output: Annotated[Kind, "float[B, H]"], *, local_grads: Annotated[Any, "float[T + 1, B, H]"] = None,
    method: Method = "auto", backend: Backend = "auto", levels: Count | None = None, comm: Comm = None,
) -> Kind:  # fmt: skip
    """Compute the gradients at every point of a chain x_0 -> x_1 -> ... -> x_T (Equations 3-5).

    ``g_T = grad_output + local_grads[T]`` and ``g_t = jacobians_T[t] @ g_{t+1} + local_grads[t]``.

    Parameters
    ----------
    jacobians_T
        Transposed Jacobians, ``jacobians_T[t, b] = (d x_{t+1} / d x_t)^T``: one for each step and sample, or for each
        step alone if all samples share them, or a `StructuredChain` of weights and diagonals. A list holds T links
        whose sizes chain and may differ: SciPy sparse matrices and arrays [shape=(n_t, n_{t+1})], or for a batch arrays
        [shape=(B, n_t, n_{t+1})] or [shape=(1, n_t, n_{t+1})], which run on backend ``"numpy"``; or `BatchedCSR`, which
        run on any, and whose products are planned once per pattern.
    grad_output
        Gradient of the loss at x_T; one sample is a batch of one. For a list [shape=(n,)], or [shape=(B, n)] where
        its links are of a batch.
    local_grads
        Loss terms that enter at every x_t; for a list, a list of T + 1 arrays.
    method
        ``"auto"`` takes the method that `explain` names. A structured chain's Jacobians are never stored by
        ``"linear"`` and ``"chunked"``; ``"blelloch"`` and ``"truncated"`` write them out.
    backend
        What computes. ``"auto"`` is a GPU if there is one, and otherwise compiled CPU code.
    levels
        The k of ``"truncated"``: k = 0 is the linear scan; k at or above the depth of the tree is the Blelloch scan.
    comm
        Ranks that hold runs of the chain, in the order of time: rank 0 begins at x_0, the last rank ends at x_T. All of
        them must call, each with its own run (of any length, 0 included) in `jacobians_T`. `grad_output` is given on
        the last rank, and None on the others. `local_grads` has one entry per link, and on the last rank one more: the
        term at a point where runs meet is given by the rank whose run starts there. Methods are ``"linear"``, rank
        after rank, and ``"chunked"``: every rank reduces its run to one product, MPI scans the products, every rank
        goes back along its run (Equation 6, with n / p links on each). ``"auto"`` is ``"chunked"`` where p is more than
        H + 1, for a product of H × H matrices is as much work as H products with a vector; for a list, ``"linear"``.
        Where samples share their Jacobians, H is over B. Backends may differ.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)] or list of np.ndarray
        Gradients at x_0 ... x_T, in the dtype of the input (float32 or float64), in the library that `grad_output` came
        from: arrays of PyTorch, JAX and others with DLPack are taken and given back without copies. If all arrays are
        on a GPU (contiguous, of Numba, CuPy, PyTorch or any library with ``__cuda_array_interface__``), so is the
        result, and nothing passes through the host, not even for checks. With `comm`, the gradients at the points of
        this rank's run, both ends included.

    Notes
    -----
    Matrix products carry exact powers of two, so that they neither overflow nor underflow. Where the entries of one
    product are too far apart even for that, the linear scan computes the answer instead (logged at level INFO).
    Gradients that really overflow are infinite or NaN, as they are in the linear scan. Along a structured chain,
    backend ``"cpu"`` counts numbers below the smallest normal one (1.2e-38 in float32) as zero, whether they come in,
    as weights, slopes, carries or gradients, or come up on the way.

    Examples
    --------
    >>> import numpy as np
    >>> jacobians_T = np.full((3, 1, 1, 1), 2.0)
    >>> backprop(jacobians_T, np.ones((1, 1)), method="blelloch").ravel()
    array([8., 4., 2., 1.])
    """
    links = getattr(jacobians_T, "slopes", jacobians_T)
    if type(links) is type(grad_output) is np.ndarray and type(local_grads) in _ON_HOST and comm is None:
        return _backprop(jacobians_T, grad_output, local_grads, method, backend, levels)
    given = {"jacobians_T": jacobians_T, "grad_output": grad_output, "local_grads": local_grads}
    parts = [memory.as_numpy(name, array) for name, array in given.items()]
    convert = memory.converter_to("grad_output", grad_output)
    if comm is not None:
        how = {"local_grads": parts.pop(), "method": method, "backend": backend, "levels": levels, "comm": comm}
        return convert(over_ranks("solver").solve(*parts, **how).gradients)
    gpu = any(on_gpu(getattr(part, "slopes", part)) for part in parts)
    run = implementation("bppsa_nb.chains.methods", "cuda").backprop if gpu else _backprop
    return convert(run(*parts, method, backend, levels))


def _backprop(jacobians_T, grad_output, local_grads, method, backend, levels):
    """Compute what `backprop` computes, of NumPy's arrays."""
    chain, end, shape, backend = checks.check_chain(jacobians_T, grad_output, local_grads, backend)
    weights = chain.num_weights if isinstance(chain, StructuredChain) else 0  # 0 stands for stored Jacobians
    method, backend, levels = choose(method, backend, levels, shape, end.dtype, weights)
    run, finite = (listed.go_back, is_finite) if shape is None else (go_back, all_finite)
    with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
        if method == "linear":
            gradients = run(chain, end, local_grads, backend, method)
        else:
            gradients = in_range(partial(run, chain, end, local_grads, backend), method, levels)
        if not finite(gradients):
            checks.check_numbers(jacobians_T, grad_output, local_grads)
    return gradients


def choose(method, backend, levels, shape, dtype, weights=0):
    """Check method, backend and levels as given to `backprop`; return them, ``"auto"`` replaced by what it takes.

    `shape` is (T, B, H) of a dense or structured chain, None for a list; `weights` is K, 0 for a dense one.
    """
    if type(method) is not str or method not in _METHODS:
        check_choice("method", method, _METHODS)
    if method == "truncated":
        if levels is None or levels < 0:
            raise ValueError(f"levels must be an integer of at least 0 with method='truncated', got {levels!r}")
    elif levels is not None:
        raise ValueError(f"levels is for method='truncated' only, got levels={levels!r} with method={method!r}")
    backend = backends.resolve(backend)
    if method == "auto":
        # Of Jacobians in a list, one multiplies vectors at a time: the linear scan does the least work.
        method = "linear" if shape is None else known(*shape, dtype, backend, weights).method
    return method, backend, levels
