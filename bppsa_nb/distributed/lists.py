"""The run of a list of links, of whatever sizes, that one rank holds."""

from functools import reduce

import numpy as np

from bppsa_nb import chain
from bppsa_nb.distributed import messages
from bppsa_nb.operator import IDENTITY, Affine, Scaled, diamond


class ListRun:
    """Consecutive links of a list; see `bppsa_nb.distributed.runs.Run`, which has the same methods.

    Parameters
    ----------
    links : list
        SciPy sparse matrices, 2-d arrays, or `BatchedCSR`.
    batch : int
        B; 0 for single matrices.
    dtype : np.dtype
    backend : {"numpy", "cpu", "cuda"}
    """

    def __init__(self, links, batch, dtype, backend):
        self._lead, self._dtype, self._backend = (batch,) if batch else (), dtype, backend
        self._links = [chain.list_operand(link, backend) for link in links]

    def sweep(self, grad_output, local_grads):
        """Go back one link after the other; return a list of gradients."""
        found = chain.scan_operands(self._links, grad_output, local_grads, "linear", None, None)
        return [np.array(gradient).reshape(*self._lead, -1) for gradient in found]

    def map(self, grad_output, local_grads):
        """Reduce the run to one operand, its loss terms included."""
        operands = [Scaled(link) for link in self._links]
        if local_grads is not None:
            operands = [Affine(*pair) for pair in zip(operands, local_grads[:-1], strict=True)]
        return reduce(diamond, reversed(operands), IDENTITY)

    def known(self, gradient):
        """Return what the gradient at the start is as an operand: itself."""
        return gradient

    def nothing(self):
        """Return what changes nothing."""
        return IDENTITY

    def lost(self):
        """Return what stands for an operand that could not be computed."""
        return messages.LOST

    def exscan(self, group, comm, own):
        """Combine the operands of all runs closer to the loss, by messages; see `messages.exscan`."""
        before, combined, failed = messages.exscan(group, comm, own, self._dtype, self._backend)
        return before if isinstance(before, np.ndarray) else None, combined, failed

    def send(self, group, comm, gradient):
        """Hand the gradient at this run's start on, or one without entries if there is none."""
        gradient = np.empty(0, self._dtype) if gradient is None else np.ascontiguousarray(gradient)
        group.timed(comm.Send, np.array([gradient.size]), comm.rank + 1)
        group.timed(comm.Send, gradient, comm.rank + 1)

    def receive(self, group, comm):
        """Wait for the gradient at this run's end; None if there is none."""
        size = np.empty(1, np.int64)
        group.timed(comm.Recv, size, comm.rank - 1)
        gradient = np.empty(int(size[0]), self._dtype)
        group.timed(comm.Recv, gradient, comm.rank - 1)
        return gradient.reshape(*self._lead, -1) if gradient.size else None
