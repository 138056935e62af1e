"""What ranks are given, checked on each of them and then between them."""

from typing import NamedTuple

import numpy as np

from bppsa_nb.chains import checks as chain_checks
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.distributed.lists import ListRun
from bppsa_nb.distributed.runs import Run
from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import check_floats

METHODS = ("auto", "linear", "chunked")
_KINDS = ("of shape (T, B, H, H)", "of shape (T, H, H)", "a StructuredChain", "a list")
_DENSE, _SHARED, _STRUCTURED, _LIST = range(4)


class _Side(NamedTuple):
    """What a rank tells the others; -1 where it cannot know."""

    method: int
    kind: int
    itemsize: int  # of its numbers, in bytes
    batch: int  # 0 for a list of single matrices
    terms: int  # whether there are loss terms
    start: int  # sizes of the states at the run's ends
    stop: int
    sweep: int  # predicted nanoseconds of going back, and of the product
    multiply: int


def check(group, jacobians_T, grad_output, local_grads, method, backend, levels):
    """Check the arguments of `bppsa_nb.distributed.solve`.

    Parameters
    ----------
    group : bppsa_nb.distributed.ranks.Group
    jacobians_T, grad_output, local_grads, method, backend, levels
        As for `bppsa_nb.backprop`.

    Returns
    -------
    run : Run or ListRun
    grad_output : np.ndarray or None
        ``local_grads[-1]`` of the last rank included.
    method : {"linear", "chunked"}

    Raises
    ------
    TypeError, ValueError, RuntimeError
        What is wrong on this rank; ValueError if it is on another, or they do not go together.
    """
    with group.together(len(_Side._fields)) as tell:
        check_method(method, levels)
        _check_whose_gradient(group, grad_output)
        look = _check_list if isinstance(jacobians_T, (list, tuple)) else _check_dense
        backend, *side = look(jacobians_T, grad_output, local_grads, backend)
        if grad_output is not None and local_grads is not None:
            with np.errstate(all="ignore"):
                grad_output = grad_output + local_grads[-1]
        told = tell(METHODS.index(method), *side)
    every = [_Side(*side) for side in told.tolist()]
    itemsize, batch = _check_alike(every)
    if look is _check_list:
        affine = any(other.terms for other in every)
        run = ListRun(jacobians_T, batch, np.dtype(f"f{itemsize}"), backend, affine)
    else:
        run = Run(jacobians_T[:, None] if side[0] == _SHARED else jacobians_T, batch, backend)
    return run, grad_output, faster(every) if method == "auto" else method


def check_method(method, levels):
    """Raise ValueError unless a chain over ranks can be scanned so."""
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(map(repr, METHODS))} with comm, where every rank's run is a chunk, got "
            f"{method!r}"
        )
    if levels is not None:
        raise ValueError(f"levels is for method='truncated' only, which does not go with comm, got levels={levels!r}")


def _check_whose_gradient(group, grad_output):
    last = f"rank {group.size - 1}, which holds the end of the chain"
    if grad_output is None and group.rank == group.size - 1:
        raise ValueError(f"grad_output must be given on {last}, got None")
    if grad_output is not None and group.rank < group.size - 1:
        raise ValueError(f"grad_output must be None on all ranks but {last}, got {type(grad_output).__name__}")


def _check_dense(links, grad_output, local_grads, backend):
    """Check a dense or structured run; return its backend, and what to tell of it."""
    backend = backends.resolve(backend)
    if isinstance(links, StructuredChain):
        links.check()
        kind, (steps, batch, size) = _STRUCTURED, links.shape
    else:
        check_floats("jacobians_T", links, ("T", "B", "H", "H"), ("T", "H", "H"))
        kind, steps, size = _SHARED if links.ndim == 3 else _DENSE, len(links), links.shape[-1]
        batch = -1 if kind == _SHARED else links.shape[1]
        if links.shape[-2] != size or 0 in links.shape[1:]:
            raise ValueError(f"jacobians_T must hold square matrices, at least one per step, got shape {links.shape}")
    last = grad_output is not None
    if last:
        found = chain_checks.check_gradient(grad_output, links.dtype)
        batch = found[0] if batch < 0 else batch
        chain_checks.check_shape("grad_output", found, (batch, size), "to chain with jacobians_T")
    if local_grads is not None:
        check_floats("local_grads", local_grads, ("T + 1" if last else "T", "B", "H"))
        chain_checks.check_dtype("local_grads", local_grads.dtype, links.dtype, "jacobians_T")
        batch = local_grads.shape[1] if batch < 0 else batch
        points = "(T + 1, B, H)" if last else "(T, B, H), as on all ranks but the last"
        chain_checks.check_shape("local_grads", local_grads.shape, (steps + last, batch, size), points)
    seconds = Run(links[:, None] if kind == _SHARED else links, max(batch, 1), backend).seconds()
    nanoseconds = (int(1e9 * part) for part in seconds)
    return backend, kind, links.dtype.itemsize, batch, local_grads is not None, size, size, *nanoseconds


def _check_list(links, grad_output, local_grads, backend):
    """Check a run of links that may differ in size; return as `_check_dense`."""
    sizes, dtype, batch = chain_checks.check_links(links, grad_output)
    if local_grads is not None:
        here, points = (sizes, "T + 1") if grad_output is not None else (sizes[:-1], "T (on all ranks but the last)")
        dtype, batch = chain_checks.check_terms(local_grads, here, dtype, batch, points)
    backend = backends.resolve(chain_checks.numpy_only(backend) if batch == 0 else backend)
    itemsize = -1 if dtype is None else dtype.itemsize
    return backend, _LIST, itemsize, batch, local_grads is not None, sizes[0], sizes[-1], 0, 0


def _check_alike(every):
    """Raise ValueError unless what ranks told goes together; return the size of a number, and B."""
    check_same("method", [repr(METHODS[side.method]) for side in every])
    check_same("jacobians_T", [_KINDS[side.kind] for side in every])
    check_same("jacobians_T", [f"of float{8 * s.itemsize}" if s.itemsize > 0 else None for s in every])
    batched = [None if side.batch < 0 else side.batch for side in every]
    check_same("the batch", [None if b is None else f"of {b} samples" if b else "a single sample" for b in batched])
    below, size = None, -1
    for number, side in enumerate(every):
        if side.start < 0:  # neither a link nor a gradient
            continue
        if below is not None and side.start != size:
            raise ValueError(
                f"jacobians_T must chain from rank to rank: states of size {size} are at the end of rank {below}'s "
                f"run, and of size {side.start} at the start of rank {number}'s"
            )
        below, size = number, side.stop
    return max(side.itemsize for side in every), max(side.batch for side in every)


def check_same(name, every):
    """Raise ValueError unless the words of all ranks are the same; None of a rank that cannot know fits any.

    Parameters
    ----------
    name : str
        What they are about.
    every : list of str or None
    """
    known = [(rank, words) for rank, words in enumerate(every) if words is not None]
    for rank, words in known:
        if words != known[0][1]:
            raise ValueError(
                f"{name} must be the same on all ranks: it is {words} on rank {rank}, and {known[0][1]} on rank "
                f"{known[0][0]}"
            )


def faster(every):
    """Choose between one rank after the other, and all at once with products, by what the plan predicts.

    Parameters
    ----------
    every : list
        Of every rank, in anything with the fields `sweep` and `multiply`, what it predicts for its run.

    Returns
    -------
    {"linear", "chunked"}
    """
    first, *others = every[::-1]  # from the loss; there the gradient is known, and nobody needs the product at x_0
    reduced = max([first.sweep, *(side.multiply for side in others[:-1])])
    at_once = reduced + max((side.sweep for side in others), default=0)
    return "chunked" if at_once < sum(side.sweep for side in every) else "linear"
