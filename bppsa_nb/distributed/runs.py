"""The run of a dense or structured chain that one rank holds: its product, and going back along it."""

import sys
from functools import reduce
from typing import NamedTuple

import numpy as np

from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains import counts, plan
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.distributed import maps, predict
from bppsa_nb.machine.twins import twin
from bppsa_nb.operands import rows


class Costs(NamedTuple):
    """What a rank is predicted to take: for its run, for one ⋄ of maps, in seconds; bytes of a state and of a map."""

    sweep: float
    multiply: float
    apply: float
    merge: float
    state: int
    map: int


def predicted(shape, matrices, dtype, backend, weights):
    """Predict what a rank takes for a run of T steps, B samples and H entries: Costs.

    ⋄ of two maps takes NumPy about as long as a step's product; of a map and a gradient, as a step of going back.
    """
    steps, batch, size = shape
    run = plan.run_seconds(steps, batch, size, dtype, backend, weights)
    diamonds = plan.run_seconds(1, batch, size, dtype, "numpy", weights)
    return Costs(*run, *diamonds, batch * size * dtype.itemsize, maps.layout(matrices, batch, size, dtype).itemsize)


def faster(every):
    """Choose between one rank after the other, and all at once with products, by what is predicted to end first.

    Parameters
    ----------
    every : list of Costs
        Of every rank.

    Returns
    -------
    {"linear", "chunked"}
    """
    sweep, multiply, apply, merge, state, size = zip(*every[::-1], strict=True)
    return predict.faster(sweep, multiply, max(state), predict.Diamonds(max(merge), max(apply), 0, 0, max(size)))


class Run:
    """Consecutive links of a chain.

    Parameters
    ----------
    links : np.ndarray [shape=(T, B, H, H)] or [shape=(T, 1, H, H)], or StructuredChain
    batch : int
        B.
    backend : {"numpy", "cpu", "cuda"}

    Attributes
    ----------
    shape : tuple of int
        (T, B, H) of this run; T may be 0.
    dtype : np.dtype
    layout : np.dtype
        Of its map.
    """

    def __init__(self, links, batch, backend):
        self.links, self.backend, self.dtype = links, backend, links.dtype
        self.structured = isinstance(links, StructuredChain)
        steps, self._matrices, size = links.shape[:3]
        self.shape = steps, batch, size
        self.layout = maps.layout(self._matrices, batch, size, links.dtype)

    def sweep(self, grad_output, local_grads):
        """Go back one step after the other.

        Parameters
        ----------
        grad_output : np.ndarray [shape=(B, H)]
            The gradient at the run's end.
        local_grads : np.ndarray [shape=(T, B, H)] or None
            Loss terms below it; a term more, at the end, does not count.

        Returns
        -------
        np.ndarray [shape=(T + 1, B, H)]
        """
        return chain.go_back(self.links, grad_output, local_grads, self.backend, "linear")

    def map(self, grad_output, local_grads):
        """Reduce the run to one map, taking along loss terms as `sweep` does.

        Parameters
        ----------
        grad_output : np.ndarray [shape=(B, H)] or None
            Loss terms at the run's end that are not in the gradient there.
        local_grads : np.ndarray [shape=(T, B, H)] or None

        Returns
        -------
        np.ndarray [shape=(2,)]
            Of dtype `layout`: the map, and room for the one of all runs closer to the loss.

        Raises
        ------
        RangeLost
            If the product could not keep its entries in range.
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

        Parameters
        ----------
        group : bppsa_nb.distributed.ranks.Group
        comm : mpi4py.MPI.Intracomm
            With ranks counted from the loss.
        own : np.ndarray [shape=(2,)]
            This run's map, and where to put the others'.

        Returns
        -------
        gradient : np.ndarray [shape=(B, H)] or None
            At this run's end. None at the loss, and where a product could not keep its entries in range.
        combined : int
            Times that ⋄ was computed here.
        error : Exception or None
            What it raised.
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

    def send(self, group, comm, gradient):
        """Hand the gradient at this run's start on, or NaN if there is none."""
        if gradient is None:
            gradient = np.full(self.shape[1:], np.nan, self.dtype)
        group.timed(comm.Send, np.ascontiguousarray(gradient), comm.rank + 1)

    def receive(self, group, comm):
        """Wait for the gradient at this run's end."""
        gradient = np.empty(self.shape[1:], self.dtype)
        group.timed(comm.Recv, gradient, comm.rank - 1)
        return gradient

    def seconds(self):
        """Predict what `sweep`, and what the product of a map takes."""
        weights = max(len(self.links.weights), 1) if self.structured else 0
        return plan.run_seconds(*self.shape, self.dtype, self.backend, weights)

    def costs(self):
        """Predict what this rank takes: Costs."""
        weights = max(len(self.links.weights), 1) if self.structured else 0
        return predicted(self.shape, self._matrices, self.dtype, self.backend, weights)

    def _product(self):
        kind = "structured" if self.structured else "stored"
        products = twin(f"bppsa_nb.chains.{kind}", self.backend).products
        # Side by side as many chunks as there are workers for, of which the last may be shorter.
        steps, _, size = self.shape
        count = max(1, min(counts.workers(self.backend) // self._matrices, steps // (2 * size)))
        length = -(-steps // count)
        whole = steps // length * length
        found = [products(self._part(0, whole), length)]
        if whole < steps:
            found.append(products(self._part(whole, steps), steps - whole))
        matrices, exponents = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return reduce(_after, zip(matrices[::-1], exponents[::-1], strict=True))

    def _part(self, start, stop):
        if not self.structured:
            return self.links[start:stop]
        carry = self.links.carry
        parts = self.links.slopes[:, start:stop], None if carry is None else carry[start:stop]
        return StructuredChain.made(self.links.weights, *parts)


def _after(a, b):
    """Multiply the products of two chunks, the one closer to the loss first."""
    product, powers = rows.apply_scaled(*b, a[0])
    return rows.normalize(product, a[1] + powers[..., 0])
