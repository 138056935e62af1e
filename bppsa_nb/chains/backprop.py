"""Gradients along a chain: check the input, pick the method and the backend, run the scan."""

import logging
import math

import numpy as np
from scipy import sparse

from bppsa_nb.chains import structured
from bppsa_nb.chains.checks import (
    check_dtype,
    check_finite,
    check_gradient,
    check_links,
    check_shape,
    check_terms,
    is_finite,
    parts,
)
from bppsa_nb.chains.plan import METHODS, chunk_length, explain
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import check_choice, check_floats, is_integer
from bppsa_nb.machine.parts import over_ranks
from bppsa_nb.operands.batched import BatchedCSR, Planned
from bppsa_nb.operands.dense import CSR, Affine, Dense
from bppsa_nb.operands.scaled import RangeLost, Scaled
from bppsa_nb.scan import scan

__all__ = ["StructuredChain", "backprop", "explain"]
_log = logging.getLogger(__name__)


def backprop(jacobians_T, grad_output, *, local_grads=None, method="auto", backend="auto", levels=None, comm=None):
    """Compute the gradients at every point of a chain x_0 -> x_1 -> ... -> x_T (Equations 3-5).

    ``g_T = grad_output + local_grads[T]`` and ``g_t = jacobians_T[t] @ g_{t+1} + local_grads[t]``.

    Parameters
    ----------
    jacobians_T : np.ndarray [shape=(T, B, H, H)] or [shape=(T, H, H)], StructuredChain, or list
        Transposed Jacobians: ``jacobians_T[t, b] = (d x_{t+1} / d x_t)^T``, or shared by the batch; or the weights
        and diagonals that they are made of. A list holds T SciPy sparse matrices or 2-d arrays
        [shape=(n_t, n_{t+1})] whose sizes chain and may differ, which run on backend ``"numpy"``, or T
        `BatchedCSR`, which run on any; their products are planned once per pattern.
    grad_output : np.ndarray [shape=(B, H)]
        Gradient of the loss at x_T; one sample is a batch of one. For a list [shape=(n,)], or [shape=(B, n)] with
        `BatchedCSR`.
    local_grads : np.ndarray [shape=(T + 1, B, H)], optional
        Loss terms that enter at every x_t; for a list, a list of T + 1 arrays.
    method : {"auto", "linear", "blelloch", "truncated", "chunked"}
        ``"auto"`` takes what `explain` names. A structured chain's Jacobians are never stored by ``"linear"`` and
        ``"chunked"``; ``"blelloch"`` and ``"truncated"`` write them out.
    backend : {"auto", "numpy", "cpu", "cuda"}
    levels : int, optional
        The k of ``"truncated"``: k = 0 is the linear scan, the tree's depth and beyond is Blelloch's.
    comm : mpi4py.MPI.Intracomm, optional
        Ranks that hold runs of the chain, in the order of time: rank 0 begins at x_0, the last rank ends at x_T. All of
        them call, each with its own run (of any length, 0 included) in `jacobians_T`. `grad_output` is given on the
        last rank, and None on the others. `local_grads` has one entry per link, and on the last rank one more: the
        term at a point where runs meet is given by the rank whose run starts there. Methods are ``"linear"``, rank
        after rank, and ``"chunked"``: every rank reduces its run to one product, MPI scans the products, every rank
        goes back along its run (Equation 6, with n / p links on each). Backends may differ.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)] or list of np.ndarray
        Gradients at x_0 ... x_T, in the dtype of the input (float32 or float64). With `comm` at the points of this
        rank's run, both ends included.

    Raises
    ------
    TypeError
        For dtypes other than float32 and float64, a mixture of the two, or objects of another type.
    ValueError
        For shapes that do not chain, an empty batch, NaN or infinity, an unknown method or backend. With `comm`
        whatever one rank raises, the others raise as a ValueError that names it.
    RuntimeError
        For ``backend="cuda"`` without a GPU.
    MemoryError
        If Jacobians written out, or products of chunks, do not fit.

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
    if comm is not None:
        how = {"local_grads": local_grads, "method": method, "backend": backend, "levels": levels}
        return over_ranks("solver").solve(jacobians_T, grad_output, **how, comm=comm).gradients
    weights = 0
    if isinstance(jacobians_T, StructuredChain):
        run = _prepare_structured(jacobians_T, grad_output, local_grads)
        shape, weights = jacobians_T.shape, max(len(jacobians_T.weights), 1)  # 0 would stand for stored Jacobians
    elif not isinstance(jacobians_T, (list, tuple)):
        shape, run = _prepare_arrays(jacobians_T, grad_output, local_grads)
    else:
        shape, run = None, _prepare_list(jacobians_T, grad_output, local_grads)
        batched = any(isinstance(link, BatchedCSR) for link in jacobians_T)
        if not batched and (jacobians_T or grad_output.ndim == 1):  # without links, samples say that it is a batch
            backend = numpy_only(backend)
    method, backend, levels = choose(method, backend, levels, shape, grad_output.dtype, weights)
    with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
        gradients = in_range(lambda *how: run(backend, *how), method, levels)
        if not is_finite(gradients):
            check_finite(grad_output=grad_output, local_grads=local_grads, **parts(jacobians_T))
    return gradients


def in_range(run, method, levels):
    """Run ``run(method, levels)``, or the linear scan where matrix products leave the range of the dtype."""
    if method != "linear":
        try:
            gradients = run(method, levels)
        except RangeLost:
            gradients = None
        if gradients is not None and is_finite(gradients):
            return gradients
        _log.info("products of Jacobians leave the range of their dtype; using the linear scan")
    return run("linear", None)


def choose(method, backend, levels, shape, dtype, weights=0):
    """Check how to scan, and settle what is left to ``"auto"``.

    Parameters
    ----------
    method, backend, levels
        As given to `backprop`.
    shape : tuple of int or None
        (T, B, H) of a dense or structured chain; None for a list.
    dtype : np.dtype
    weights : int
        K of a structured chain; 0 for a dense one.

    Returns
    -------
    method : {"linear", "blelloch", "truncated", "chunked"}
    backend : {"numpy", "cpu", "cuda"}
    levels : int or None
    """
    check_choice("method", method, (*METHODS, "auto"))
    if method == "truncated":
        if not is_integer(levels) or levels < 0:
            raise ValueError(f"levels must be an integer >= 0 with method='truncated', got {levels!r}")
        levels = int(levels)
    elif levels is not None:
        raise ValueError(f"levels is for method='truncated' only, got levels={levels!r} with method={method!r}")
    backend = backends.resolve(backend)
    if method == "auto":
        # Of Jacobians in a list, one multiplies vectors at a time: the linear scan does the least work.
        method = "linear" if shape is None else explain(*shape, dtype=dtype, backend=backend, weights=weights).method
    return method, backend, levels


def numpy_only(backend):
    """Return the backend of a list of single matrices; raise ValueError if it was to be another."""
    check_choice("backend", backend, (*backends.BACKENDS, "auto"))
    if backend not in ("numpy", "auto"):
        raise ValueError(
            f"backend must be 'numpy' or 'auto' for a list of SciPy matrices and arrays, got {backend!r}; "
            "links of type BatchedCSR run on all backends"
        )
    return "numpy"


def _prepare_arrays(jacobians_T, grad_output, local_grads):
    check_floats("jacobians_T", jacobians_T, ("T", "B", "H", "H"), ("T", "H", "H"))
    batch, hidden = check_gradient(grad_output, jacobians_T.dtype)
    shared = jacobians_T.ndim == 3
    steps = jacobians_T.shape[0]
    expected = (steps, hidden, hidden) if shared else (steps, batch, hidden, hidden)
    check_shape("jacobians_T", jacobians_T.shape, expected, f"to chain with grad_output {grad_output.shape}")
    grad_output = _with_last_term(grad_output, local_grads, steps)
    if shared:
        jacobians_T = jacobians_T[:, None]

    def run(backend, method, levels):
        return scan_dense(jacobians_T, grad_output, local_grads, backend, method, levels)

    return (steps, batch, hidden), run


def _prepare_structured(chain, grad_output, local_grads):
    chain.check()  # what was changed in place since it was made
    batch, hidden = check_gradient(grad_output, chain.dtype)
    expected = f"{chain.shape[1:]} to chain with {chain}"
    if (batch, hidden) != chain.shape[1:]:
        raise ValueError(f"grad_output must have shape {expected}, got {grad_output.shape}")
    grad_output = _with_last_term(grad_output, local_grads, chain.shape[0])

    def run(backend, method, levels):
        return scan_structured(chain, grad_output, local_grads, backend, method, levels)

    return run


def _with_last_term(grad_output, local_grads, steps):
    """Check the loss terms of a dense chain, and add the last one to the gradient."""
    if local_grads is None:
        return grad_output
    check_floats("local_grads", local_grads, ("T + 1", "B", "H"))
    check_dtype("local_grads", local_grads.dtype, grad_output.dtype)
    check_shape("local_grads", local_grads.shape, (steps + 1, *grad_output.shape), "(T + 1, B, H)")
    with np.errstate(all="ignore"):
        return grad_output + local_grads[steps]


def scan_dense(jacobians_T, grad_output, local_grads, backend, method, levels):
    length = _length(method, (len(jacobians_T), *grad_output.shape), grad_output.dtype, backend, 0)
    if backend == "numpy":
        operands = list(map(Dense, jacobians_T))
        return np.stack(scan_operands(operands, grad_output, local_grads, method, levels, length))
    if backend == "cpu":
        from bppsa_nb.chains import stored_cpu as cpu

        return cpu.backprop(jacobians_T, grad_output, local_grads, method, levels, length)
    from bppsa_nb.chains import structured_cuda as cuda
    from bppsa_nb.chains.stored_cuda import scan_levels

    if method == "linear":
        return cuda.sweep(jacobians_T, grad_output, local_grads)
    if method == "chunked":
        return cuda.chunked(jacobians_T, grad_output, local_grads, length)
    return scan_levels(jacobians_T, grad_output, local_grads, levels)


def scan_structured(chain, grad_output, local_grads, backend, method, levels):
    """Go back along a structured chain; the checked core of `backprop`, as models use it.

    Parameters
    ----------
    chain : StructuredChain
    grad_output : np.ndarray [shape=(B, H)]
        ``local_grads[T]`` included.
    local_grads : np.ndarray [shape=(T + 1, B, H)] or None
    backend, method, levels
        As `choose` returns them.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]

    Raises
    ------
    RangeLost
        If a product could not keep its entries in range.
    """
    if backend == "numpy":
        twin = structured
    elif backend == "cpu":
        from bppsa_nb.chains import structured_cpu as twin
    else:
        from bppsa_nb.chains import structured_cuda as twin
    if method == "linear":
        return twin.sweep(chain, grad_output, local_grads)
    if method == "chunked":
        length = _length(method, chain.shape, chain.dtype, backend, max(len(chain.weights), 1))
        return twin.chunked(chain, grad_output, local_grads, length)
    if backend == "cuda":  # where Jacobians are written out on the device, and stay there
        return twin.scan(chain, grad_output, local_grads, levels)
    return scan_dense(twin.jacobians_T(chain), grad_output, local_grads, backend, method, levels)


def _length(method, shape, dtype, backend, weights):
    return chunk_length(*shape, dtype, backend, weights) if method == "chunked" else None


def list_chunk(method, count):
    """Return how many of a list's links make a chunk: about as many as there are chunks; None for other methods."""
    return math.isqrt(count) + 1 if method == "chunked" else None


def _prepare_list(jacobians_T, grad_output, local_grads):
    check_floats("grad_output", grad_output, ("n",), ("B", "n"))
    sizes, dtype, batch = check_links(jacobians_T, grad_output)
    lead = grad_output.shape[:-1]
    if local_grads is not None:
        check_terms(local_grads, sizes, dtype, batch, "T + 1")
        with np.errstate(all="ignore"):
            grad_output = grad_output + local_grads[-1]

    def run(backend, method, levels):
        operands = [list_operand(link, backend) for link in jacobians_T]
        gradients = scan_operands(operands, grad_output, local_grads, method, levels, list_chunk(method, len(operands)))
        return [np.array(g).reshape(*lead, -1) for g in gradients]

    return run


def list_operand(link, backend):
    """Return the operand that a link of a list is."""
    if isinstance(link, BatchedCSR):
        return Planned.of(link, backend)
    return CSR(sparse.csr_array(link)) if sparse.issparse(link) else Dense(link)


def scan_operands(matrices, grad_output, local_grads, method, levels, length):
    """Scan over operand objects: links in the order of time in, gradients in the order of time out."""
    # The linear scan multiplies no matrices, so it needs no scaling.
    links = matrices if method == "linear" else [Scaled(matrix) for matrix in matrices]
    if local_grads is not None:
        links = list(map(Affine, links, local_grads))  # the last term is in the gradient
    return scan([grad_output, *reversed(links)], method, levels, length)[::-1]  # Equation 5's array starts at the loss
