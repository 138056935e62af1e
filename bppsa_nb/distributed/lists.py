"""The run of a list of links, of whatever sizes, that one rank holds."""

from functools import cached_property, reduce

import numpy as np

from bppsa_nb.chains import listed
from bppsa_nb.distributed import messages
from bppsa_nb.operands.dense import Affine
from bppsa_nb.operands.scaled import Scaled
from bppsa_nb.scan.operator import IDENTITY, diamond


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
    affine : bool
        Whether there are loss terms on any rank.
    """

    def __init__(self, links, batch, dtype, backend, affine):
        self._links, self._dtype, self._backend, self._affine = links, dtype, backend, affine
        self._lead = (batch,) if batch else ()

    @cached_property
    def _operands(self):  # made where ranks that fail say so
        return [listed.operand(link, self._backend) for link in self._links]

    def sweep(self, grad_output, local_grads):
        """Go back one link after the other; return a list of gradients."""
        found = listed.scan_operands(self._operands, grad_output, local_grads, "linear")
        return [np.array(gradient).reshape(*self._lead, -1) for gradient in found]

    def map(self, grad_output, local_grads):
        """Reduce the run to one operand, its loss terms included."""
        operands = map(Scaled, reversed(self._operands))
        if local_grads is not None:
            operands = map(Affine, operands, reversed(local_grads[: len(self._links)]))
        found = reduce(diamond, operands, IDENTITY)
        if self._affine and local_grads is None and self._links:  # all operands of a scan are of one kind
            found = Affine(found, np.zeros((*self._lead, self._links[0].shape[0]), self._dtype))
        return found

    def known(self, gradient):
        """Return what the gradient at the start is as an operand: itself."""
        return gradient

    def nothing(self):
        """Return what changes nothing."""
        return IDENTITY

    def exscan(self, group, comm, own):
        """Combine the operands of all runs closer to the loss, by messages; see `messages.exscan`."""
        before, combined, failed = messages.exscan(group, comm, own, self._dtype, self._backend)
        return before if isinstance(before, np.ndarray) else None, combined, failed

    def send(self, group, comm, gradient):
        """Hand the gradient at this run's start on; a size of -1 says that there is none."""
        size = -1 if gradient is None else gradient.size
        group.timed(comm.Send, np.array([size], np.int64), comm.rank + 1)
        if size > 0:
            group.timed(comm.Send, np.ascontiguousarray(gradient), comm.rank + 1)

    def receive(self, group, comm):
        """Wait for the gradient at this run's end; None if there is none."""
        size = np.empty(1, np.int64)
        group.timed(comm.Recv, size, comm.rank - 1)
        if size[0] < 0:
            return None
        gradient = np.empty(size[0], self._dtype)
        if gradient.size:
            group.timed(comm.Recv, gradient, comm.rank - 1)
        return gradient.reshape(*self._lead, -1)
