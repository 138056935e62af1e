"""What ranks are given, checked on each of them and then between them."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bppsa_nb.chains import checks as chain_checks
from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.distributed import predict, ranks
from bppsa_nb.distributed.segments import DenseSegment, ListSegment
from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import check_array, check_finite

METHODS = ("auto", "linear", "chunked")
_SHARED, _LIST = "of shape (T, H, H)", "a list"


class _Part(NamedTuple):
    """What a rank sends the others about its segment; None where it cannot know."""

    kind: str
    dtype: str | None
    batch: int | None  # 0 for a list of single matrices
    terms: bool  # whether there are loss terms
    start: int | None  # sizes of the states at the segment's ends
    stop: int | None
    costs: tuple | None = None  # see predict.rank_costs


def check(group, jacobians_T, grad_output, local_grads, method, backend, levels):
    """Check the arguments of `bppsa_nb.distributed.solve` on this rank, and that those of all ranks fit.

    Returned are the segment, `grad_output` with ``local_grads[-1]`` of the last rank included, and the method, "linear"
    or "chunked". Raised is what is wrong on this rank, or ValueError if it is on another.
    """
    with group.collective_check() as gather:
        check_method(method, levels)
        last = f"rank {group.size - 1}, which holds the end of the chain"
        if grad_output is None and group.rank == group.size - 1:
            raise ValueError(f"grad_output must be given on {last}, got None")
        if grad_output is not None and group.rank < group.size - 1:
            raise ValueError(f"grad_output must be None on all ranks but {last}, got {type(grad_output).__name__}")
        look = _check_list if isinstance(jacobians_T, (list, tuple)) else _check_dense
        backend, part = look(jacobians_T, grad_output, local_grads, backend)
        if grad_output is not None:
            grad_output = chain_checks.with_last_term(grad_output, local_grads)
        if method == "auto" and part.kind != _LIST:
            part = part._replace(costs=DenseSegment(jacobians_T, part.batch or 1, backend).costs())
        methods, *every = zip(*gather((method, *part)), strict=True)  # plain tuples are pickled at once
    every = [_Part(*part) for part in zip(*every, strict=True)]
    ranks.check_same("method", list(map(repr, methods)))
    dtype, batch = _check_alike(every)
    if part.kind == _LIST:
        segment = ListSegment(jacobians_T, batch, dtype, backend, any(other.terms for other in every))
    else:
        segment = DenseSegment(jacobians_T, batch, backend)
    if method == "auto":
        # Of Jacobians in a list, one multiplies vectors at a time: the linear scan does the least work.
        method = "linear" if part.kind == _LIST else predict.choose(tuple(other.costs for other in every))
    return segment, grad_output, method


def check_method(method, levels):
    """Raise ValueError unless a chain over ranks can be scanned so."""
    if not isinstance(method, str) or method not in METHODS:
        known = f"{', '.join(map(repr, METHODS))} with comm, where every rank's segment is a chunk"
        raise ValueError(f"method must be one of {known}, got {method!r}")
    if levels is not None:
        raise ValueError(f"levels is for method='truncated' only, which does not go with comm, got levels={levels!r}")


def check_grad_logits(group, grad_logits, model, batch, part):
    """Raise unless the gradient at the logits is given on the last rank alone, which has the last `part`."""
    if group.rank == group.size - 1:
        check_array("grad_logits", grad_logits, model.dtype, (batch, model.num_classes))
        check_finite(grad_logits=grad_logits)
    elif grad_logits is not None:
        where = f"rank {group.size - 1}, which has the last {part}"
        raise ValueError(f"grad_logits must be None on all ranks but {where}, got {type(grad_logits).__name__}")


def _check_dense(links, grad_output, local_grads, backend):
    """Check a dense or structured segment; return its backend and its `_Part`."""
    _, batch, H = chain_checks.check_dense(links, grad_output, local_grads, grad_output is not None)
    kind = "a StructuredChain" if isinstance(links, StructuredChain) else "of shape (T, B, H, H)"
    kind = _SHARED if getattr(links, "ndim", 4) == 3 else kind
    return backends.resolve(backend), _Part(kind, links.dtype.name, batch, local_grads is not None, H, H)


def _check_list(links, grad_output, local_grads, backend):
    """Check a segment of links that may differ in size; return as `_check_dense`."""
    sizes, dtype, batch = chain_checks.check_links(links, grad_output)
    if local_grads is not None:
        here, points = (sizes, "T + 1") if grad_output is not None else (sizes[:-1], "T (on all ranks but the last)")
        dtype, batch = chain_checks.check_terms(local_grads, here, dtype, batch, points)
    backend = backends.resolve(chain_checks.numpy_only(backend) if batch == 0 else backend)
    start, stop = (None, None) if sizes[0] < 0 else (sizes[0], sizes[-1])
    known = None if batch < 0 else batch
    return backend, _Part(_LIST, dtype and dtype.name, known, local_grads is not None, start, stop)


def _check_alike(every):
    """Raise ValueError unless the parts of all ranks fit; return the dtype, and B."""
    ranks.check_same("jacobians_T", [part.kind for part in every])
    ranks.check_same("jacobians_T", [None if part.dtype is None else f"of {part.dtype}" for part in every])
    words = {None: None, 0: "a single sample"}
    ranks.check_same("the batch", [words.get(part.batch, f"of {part.batch} samples") for part in every])
    ends = [(rank, part.start, part.stop) for rank, part in enumerate(every) if part.start is not None]
    for (below, _, size), (rank, start, _) in pairwise(ends):
        if start != size:
            ends = f"states of size {size} are at the end of rank {below}'s segment, and of size {start}"
            raise ValueError(f"jacobians_T must chain from rank to rank: {ends} at the start of rank {rank}'s")
    # The last rank, which has the gradient at the end, knows both.
    return np.dtype(every[-1].dtype), every[-1].batch
