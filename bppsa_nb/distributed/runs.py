"""The run of a dense or structured chain that one rank holds: its product, and going back along it."""

import sys
from functools import reduce

import numpy as np

from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains import counts
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.distributed import maps, predict
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.operands import rows


class Run:
    """Consecutive links of a chain: an array (T, B, H, H) or (T, 1, H, H), or a StructuredChain; T may be 0.

    `shape` is (T, B, H), `layout` that of its map.
    """

    def __init__(self, links, batch, backend):
        self.links, self.backend, self.dtype = links, backend, links.dtype
        self.structured = isinstance(links, StructuredChain)
        steps, self._matrices, size = links.shape[:3]
        self.shape = steps, batch, size
        self.layout = maps.layout(self._matrices, batch, size, links.dtype)

    def sweep(self, grad_output, local_grads):
        """Go back from the gradient (B, H) at the run's end: gradients (T + 1, B, H).

        Loss terms (T, B, H), or None, are those below the end; a term more, at the end, does not count.
        """
        return chain.go_back(self.links, grad_output, local_grads, self.backend, "linear")

    def map(self, grad_output, local_grads):
        """Reduce the run to one map, taking along loss terms as `sweep` does, those at the end (B, H) or None too.

        Returned is an array of two: the map, and room for that of all runs nearer the loss. DynamicRangeError is raised
        if the product could not keep its entries in range.
        """
        if self.shape[0] == 0 and grad_output is None:
            return self.nothing()
        found = self._map(maps.LINEAR)
        if self.shape[0]:
            found[0]["rows"], found[0]["exponents"] = self._product()
        else:
            found[0]["rows"], found[0]["exponents"] = 0.5 * np.eye(self.shape[2]), 1
        if grad_output is not None or local_grads is not None:
            end = np.zeros(self.shape[1:], self.dtype) if grad_output is None else grad_output
            found[0]["offset"] = self.sweep(end, local_grads)[0]
        return found

    def known(self, gradient):
        """Return the map of a run whose gradient at the start is known."""
        found = self._map(maps.CONSTANT)
        found[0]["offset"] = gradient
        return found

    def nothing(self):
        """Return the map of a run that changes nothing."""
        return self._map(maps.IDENTITY)

    def _map(self, kind):
        found = np.zeros(2, self.layout)
        found["kind"] = kind, maps.IDENTITY
        return found

    def exscan(self, group, comm, own):
        """Combine the maps of all runs closer to the loss, by MPI's ``Exscan`` with ⋄ for its operation.

        `own` is what `map`, `known` or `nothing` returned; `comm` counts ranks from the loss. Returned are the gradient
        (B, H) at this run's end, None at the loss and where a product could not keep its entries in range; how often
        ⋄ was computed here; and the Exception that it raised, if any.
        """
        mpi = sys.modules["mpi4py.MPI"]
        combined, failed = 0, None

        def combine(a, b, datatype):  # MPI's order: `a` comes from lower ranks, which are closer to the loss
            nonlocal combined, failed
            a, b = (np.frombuffer(buffer, self.layout) for buffer in (a, b))
            combined += 1
            try:
                maps.combine(a[0], b[0])
            except Exception as error:  # which must not pass through MPI
                failed, b["kind"] = error, maps.LOST

        operation = mpi.Op.Create(combine, commute=False)
        datatype = mpi.BYTE.Create_contiguous(self.layout.itemsize).Commit()
        try:
            group.timed(comm.Exscan, [own[:1], 1, datatype], [own[1:], 1, datatype], operation)
        finally:
            operation.Free()
            datatype.Free()
        above = own[1]
        return above["offset"] if above["kind"] == maps.CONSTANT else None, combined, failed

    def costs(self):
        """Predict what this rank takes; see `predict.rank_costs`."""
        weights = max(len(self.links.weights), 1) if self.structured else 0
        return predict.rank_costs(self.shape, self._matrices, self.dtype, self.backend, weights)

    def _product(self):
        kind = "structured" if self.structured else "stored"
        products = implementation(f"bppsa_nb.chains.{kind}", self.backend).products
        # Side by side as many chunks as there are workers for, of which the last may be shorter.
        steps, _, size = self.shape
        count = max(1, min(counts.workers(self.backend) // self._matrices, steps // (2 * size)))
        length = -(-steps // count)
        whole = steps // length * length
        found = [products(self.part(0, whole), length)]
        if whole < steps:
            found.append(products(self.part(whole, steps), steps - whole))
        matrices, exponents = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return reduce(_after, zip(matrices[::-1], exponents[::-1], strict=True))

    def part(self, start, stop):
        """Return some of the links."""
        if not self.structured:
            return self.links[start:stop]
        carry = self.links.carry
        parts = self.links.slopes[:, start:stop], None if carry is None else carry[start:stop]
        return StructuredChain.made(self.links.weights, *parts)


def _after(a, b):
    """Multiply the products of two chunks, the one closer to the loss first."""
    product, powers = rows.apply_scaled(*b, a[0])
    return rows.normalize(product, a[1] + powers[..., 0])
