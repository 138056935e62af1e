"""The segment of a chain that one rank holds: going back along it, and the operand that it is reduced to for the scan.

That operand takes the gradient at the segment's end to the one at its start. The segment at the loss needs no product:
its operand is its gradient, and ⋄ with it is a product of a matrix and a vector.
"""

from functools import cached_property, reduce

import numpy as np

from bppsa_nb.chains import counts
from bppsa_nb.chains import levels as listed
from bppsa_nb.chains.methods import go_back, multiply
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.distributed import predict
from bppsa_nb.operands import rows
from bppsa_nb.operands.kinds import Affine, Scaled
from bppsa_nb.scan.operator import IDENTITY, diamond


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
        steps, self._matrices, size = links.shape[:3]
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
        count = max(1, min(counts.workers(self.backend) // self._matrices, steps // (2 * size)))
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

    def costs(self):
        """Predict what this rank takes; see `predict.rank_costs`."""
        weights = self.links.num_weights if self.structured else 0
        return predict.rank_costs(self.shape, self._matrices, self.links.dtype, self.backend, weights)


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
