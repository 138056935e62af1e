"""The segment of a chain that one rank holds: checked, gone back along, and reduced to one operand for the scan.

That operand takes the gradient at the segment's end to the one at its start. The segment at the loss needs no product:
its operand is its gradient, and ⋄ with it is a product of a matrix and a vector.
"""

from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from bppsa_nb.chains import checks as chain_checks
from bppsa_nb.chains import counts
from bppsa_nb.chains import levels as listed
from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.chains.methods import go_back, multiply
from bppsa_nb.machine import backends
from bppsa_nb.operands import rows
from bppsa_nb.operands.kinds import Affine, Scaled
from bppsa_nb.scan.operator import IDENTITY, diamond

METHODS = ("auto", "linear", "chunked")


class ScaledRows:
    """Products of transposed Jacobians, (B, H, H), or (1, H, H) for all samples: ``2**exponents[b, j] * rows[b, j]``.

    A power of two for every row keeps products in range, or raises DynamicRangeError; see `bppsa_nb.operands.rows`.
    """

    def __init__(self, matrices, exponents):
        self.matrices, self.exponents = matrices, exponents

    def __matmul__(self, other):
        if isinstance(other, np.ndarray):  # (B, H)
            return rows.apply(self.matrices, self.exponents, other[:, None])[:, 0]
        product, powers = rows.apply_scaled(self.matrices, self.exponents, other.matrices)
        return ScaledRows(*rows.normalize(product, other.exponents + powers[..., 0]))


class DenseSegment:
    """Consecutive links of a chain: an array (T, B, H, H) or (T, H, H), or a StructuredChain; T may be 0."""

    def __init__(self, links, batch, backend):
        self.structured = isinstance(links, StructuredChain)
        self.links = links if self.structured or links.ndim == 4 else links[:, None]
        self.backend = backend
        steps, self.matrices, size = self.links.shape[:3]
        self.shape = steps, batch, size

    def sweep(self, grad_output, local_grads):
        """Go back from the gradient (B, H) at the segment's end: gradients (T + 1, B, H).

        Loss terms (T, B, H), or None, are those below the end; a term more, at the end, does not count.
        """
        return go_back(self.links, grad_output, local_grads, self.backend, "linear")

    def reduce(self, grad_output, local_grads):
        """Reduce to one operand, an affine map; loss terms are those of `sweep`, those at the end (B, H) or None too.

        DynamicRangeError is raised if the product could not keep its entries in range.
        """
        steps, batch, size = self.shape
        if steps == 0 and grad_output is None:
            return IDENTITY
        end = np.zeros((batch, size), self.links.dtype) if grad_output is None else grad_output
        if grad_output is not None or local_grads is not None:
            end = self.sweep(end, local_grads)[0].copy()  # the others' memory is needed again
        return Affine(self._product(), end)

    def _product(self):
        steps, _, size = self.shape
        if steps == 0:
            half = np.full((1, size, size), 0.5 * np.eye(size), self.links.dtype)
            return ScaledRows(half, np.ones((1, size), int))
        # Side by side as many chunks as there are workers for, of which the last may be shorter.
        count = max(1, min(counts.workers(self.backend) // self.matrices, steps // (2 * size)))
        length = -(-steps // count)
        whole = steps // length * length
        found = [multiply(self.links, steps // length, length, self.backend)]
        if whole < steps:
            found.append(multiply(self.part(whole, steps), 1, steps - whole, self.backend))
        matrices, exponents = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return reduce(diamond, map(ScaledRows, matrices[::-1], exponents[::-1]))

    def part(self, start, stop):
        """Return some of the links."""
        return self.links.part(start, stop) if self.structured else self.links[start:stop]


class ListSegment:
    """As `DenseSegment`, of a list; `batch` is 0 for single matrices, `affine` says if any rank has loss terms."""

    def __init__(self, links, batch, dtype, backend, affine):
        self._links, self._dtype, self.backend, self._affine = links, dtype, backend, affine
        self._lead = (batch,) if batch else ()

    @cached_property
    def _operands(self):  # made where an error can be raised on all ranks
        return [listed.operand(link, self.backend) for link in self._links]

    def sweep(self, grad_output, local_grads):
        """Go back one link after the other; return a list of gradients."""
        return listed.scan_operands(self._operands, grad_output, local_grads, "linear")

    def reduce(self, grad_output, local_grads):
        """Reduce to one operand, with loss terms if any rank has some: all operands of a scan are of one kind."""
        operands = map(Scaled, reversed(self._operands))
        if local_grads is not None:
            operands = map(Affine, operands, reversed(local_grads[: len(self._links)]))
        found = reduce(diamond, operands, IDENTITY)
        if self._affine and local_grads is None and self._links:
            found = Affine(found, np.zeros((*self._lead, self._links[0].shape[-2]), self._dtype))
        return found


def check(group, jacobians_T, grad_output, local_grads, method, backend, levels):
    """Check the arguments of `bppsa_nb.distributed.solve` on this rank, and that those of all ranks fit.

    Returned are the segment, `grad_output` with ``local_grads[-1]`` of the last rank included, and the method, "linear"
    or "chunked". Raised is what is wrong on this rank, or ValueError if it is on another.
    """
    with group.collective_check() as gather:
        check_method(method, levels)
        if grad_output is None and group.is_last:
            last = f"rank {group.rank}, which holds the end of the chain"
            raise ValueError(f"grad_output must be given on {last}, got None")
        group.check_owner(group.size - 1, "holds the end of the chain", grad_output=grad_output)
        is_list = isinstance(jacobians_T, (list, tuple))
        look = _check_list if is_list else _check_dense
        backend, kind, *known = look(jacobians_T, grad_output, local_grads, backend)
        if grad_output is not None:
            grad_output = chain_checks.with_last_term(grad_output, local_grads)
        dtype, batch, _ = known
        samples = None if batch is None else f"of {batch} samples" if batch else "a single sample"
        alike = {"method": repr(method), "jacobians_T": kind, "the dtype": dtype, "the batch": samples}
        *known, ends, terms = zip(*gather((*known, local_grads is not None), alike), strict=True)
        _check_ends(ends)
    dtype, batch = (every[-1] for every in known)  # the last rank, which has the gradient at the end, knows both
    if is_list:  # of which "auto" only multiplies vectors: the least work
        segment = ListSegment(jacobians_T, batch, np.dtype(dtype), backend, any(terms))
        return segment, grad_output, "linear" if method == "auto" else method
    segment = DenseSegment(jacobians_T, batch, backend)
    return segment, grad_output, choose(method, group.size, segment.shape[2], batch, segment.matrices)


def choose(method, ranks, size, batch=1, matrices=1):
    """Return the method; for "auto", "chunked" where a rank's sweep and product are less work than all ranks' sweeps.

    A step of a sweep takes ``batch * size**2`` multiply-adds, one of a product ``matrices * size**3``.
    """
    if method != "auto":
        return method
    return "chunked" if (ranks - 1) * batch > matrices * size else "linear"


def check_method(method, levels):
    """Raise ValueError unless a chain over ranks can be scanned so."""
    if not isinstance(method, str) or method not in METHODS:
        known = f"{', '.join(map(repr, METHODS))} with comm, where every rank's segment is a chunk"
        raise ValueError(f"method must be one of {known}, got {method!r}")
    if levels is not None:
        raise ValueError(f"levels is for method='truncated' only, which does not go with comm, got levels={levels!r}")


def _check_dense(links, grad_output, local_grads, backend):
    """Check a dense or structured segment; return backend, kind, dtype, B, and sizes at its ends; None if not known."""
    _, batch, H = chain_checks.check_dense(links, grad_output, local_grads, grad_output is not None)
    shape = "of shape (T, H, H)" if getattr(links, "ndim", 4) == 3 else "of shape (T, B, H, H)"
    kind = "a StructuredChain" if isinstance(links, StructuredChain) else shape
    return backends.resolve(backend), kind, links.dtype.name, batch, (H, H)


def _check_list(links, grad_output, local_grads, backend):
    """Check a segment of links that may differ in size; return as `_check_dense`, B = 0 for single matrices."""
    sizes, dtype, batch = chain_checks.check_links(links, grad_output)
    if local_grads is not None:
        here, points = (sizes, "T + 1") if grad_output is not None else (sizes[:-1], "T (on all ranks but the last)")
        dtype, batch = chain_checks.check_terms(local_grads, here, dtype, batch, points)
    backend = backends.resolve(chain_checks.numpy_only(backend) if batch == 0 else backend)
    ends = None if sizes[0] < 0 else (sizes[0], sizes[-1])
    return backend, "a list", dtype and dtype.name, None if batch < 0 else batch, ends


def _check_ends(ends):
    """Raise ValueError unless segments begin with states of the size that the one before ends with; of some, None."""
    known = [(rank, *sizes) for rank, sizes in enumerate(ends) if sizes is not None]
    for (below, _, size), (rank, start, _) in pairwise(known):
        if start != size:
            words = f"states of size {size} are at the end of rank {below}'s segment, and of size {start}"
            raise ValueError(f"jacobians_T must chain from rank to rank: {words} at the start of rank {rank}'s")
