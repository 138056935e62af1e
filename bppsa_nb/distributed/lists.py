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

    `batch` is 0 for single matrices; `affine` says whether there are loss terms on any rank.
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
            found = Affine(found, np.zeros((*self._lead, self._links[0].shape[-2]), self._dtype))
        return found

    def known(self, gradient):
        """Return what the gradient at the start is as an operand: itself."""
        return gradient

    def nothing(self):
        """Return what changes nothing."""
        return IDENTITY

    def exscan(self, group, comm, own):
        """Combine the operands of all runs closer to the loss, by messages; see `messages.exscan`."""
        before, combined, failed = messages.exscan(group, comm, own, self._backend)
        return before if isinstance(before, np.ndarray) else None, combined, failed
