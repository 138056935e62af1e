"""Gradients along a chain that is spread over MPI ranks: reduce, scan, replay (Section 3.6).

Ranks hold segments in the order of time: the loss is at the last rank. Equation 5's array begins at the loss, so
the scan has a communicator of its own that counts ranks from there: place 0 is the last rank. MPI's own Exscan
(notebook 12) takes operands of one size only. Here they are sent pickled, between ranks that one user started, so that
products of sparse matrices may have whatever size they have.
"""

import logging
from dataclasses import dataclass

import numpy as np

from bppsa_nb.chains.checks import check_numbers
from bppsa_nb.distributed import ranks
from bppsa_nb.distributed.segments import check
from bppsa_nb.machine.arguments import Backend, Method
from bppsa_nb.machine.checks import is_finite, with_repr
from bppsa_nb.operands.kinds import Affine, Scaled
from bppsa_nb.operands.pattern import BatchedCSR, Planned
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.scan.operator import IDENTITY, diamond

LOST = None  # stands for an operand that could not be computed
_log = logging.getLogger(__name__)


@with_repr("gradients", "method", "combined", "communication", "finite")
@dataclass(frozen=True, eq=False)
class Solution:
    """What `solve` found on one rank.

    Attributes
    ----------
    gradients : np.ndarray [shape=(T + 1, B, H)] or list of np.ndarray
        At the points of this rank's segment, both ends included.
    method : {"linear", "chunked"}
        What computed them.
    combined : int
        How often this rank computed ⋄ of two maps in the scan over ranks.
    communication : float
        Seconds spent in communication, waiting for other ranks included.
    finite : bool
        Whether the gradients of all ranks are finite.
    """

    gradients: np.ndarray | list[np.ndarray]
    method: str
    combined: int
    communication: float
    finite: bool


def solve(
    jacobians_T, grad_output, *, local_grads=None, method: Method = "auto", backend: Backend = "auto", levels=None, comm
) -> Solution:
    """Compute the gradients at every point of a chain whose Jacobians are spread over ranks.

    Each rank passes its own run of the chain, and gets the gradients at its points. Arguments are those of
    `bppsa_nb.backprop`, which returns the gradients alone; a `Solution` says how they were found, too.
    """
    group = ranks.group(comm)
    segment, end, method = check(group, jacobians_T, grad_output, local_grads, method, backend, levels)
    solution = go_back(group, segment, end, local_grads, method)
    if not solution.finite:
        with group.collective_check():
            check_numbers(jacobians_T, grad_output, local_grads)
    return solution


def go_back(group, segment, grad_output, local_grads, method):
    """Compute the gradients at the points of this rank's segment; the checked core of `solve`, as models use it.

    `grad_output` (B, H) or None are the loss terms at the segment's end that this rank knows of: on the last rank the
    gradient there. `local_grads` are those at the segment's other points; one at its end does not count.
    """
    comm = group.from_end
    combined = 0
    with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
        if method == "chunked":
            gradients, combined, finite = _chunked(group, comm, segment, grad_output, local_grads)
            if not finite:
                _log.info("products of Jacobians leave the range of their dtype; using the linear scan")
                gradients, method = None, "linear"  # their memory is needed again
        if method == "linear":
            gradients, finite = _linear(group, comm, segment, grad_output, local_grads)
    return Solution(gradients, method, combined, group.seconds, finite)


def _chunked(group, comm, segment, grad_output, local_grads):
    """Reduce, scan, replay; return gradients, how often ⋄ was computed here, and whether all ranks' are finite."""
    gradients, kept = None, True
    with group.collective_check() as gather:  # before the scan, from which no rank may stay away
        try:
            if comm.rank == 0:  # whose gradient is known
                gradients = segment.sweep(grad_output, local_grads)
                own = gradients[0]
            else:  # nobody needs the product of the last
                own = segment.reduce(grad_output, local_grads) if comm.rank < comm.size - 1 else IDENTITY
        except DynamicRangeError:
            kept = False
        if not all(gather(kept)):
            return None, 0, False
    above, combined, fault = exscan(group, comm, own, segment.backend)
    with group.collective_check() as gather:
        if fault is not None:
            raise fault
        if comm.rank > 0 and above is not LOST:
            gradients = segment.sweep(_sum(above, grad_output), local_grads)
        every = gather(gradients is not None and is_finite(gradients))
    return gradients, combined, all(every)


def _linear(group, comm, segment, grad_output, local_grads):
    """Go back one rank after the other; return gradients, and whether all ranks' are finite."""
    gradients = fault = None
    try:
        above = group.timed(ranks.exchange, comm, None, source=comm.rank - 1) if comm.rank else None
        if comm.rank == 0 or above is not None:
            gradients = segment.sweep(grad_output if above is None else _sum(above, grad_output), local_grads)
    except Exception as error:  # the others wait for this rank's gradient
        fault = error
    if comm.rank < comm.size - 1:
        group.timed(ranks.exchange, comm, None if gradients is None else gradients[0], to=comm.rank + 1)
    with group.collective_check() as gather:
        if fault is not None:
            raise fault
        every = gather(gradients is not None and is_finite(gradients))
    return gradients, all(every)


def _sum(gradient, terms):
    return gradient if terms is None else gradient + terms


def exscan(group, comm, own, backend):
    """Combine the operands of all lower ranks, ``a_0 ⋄ ... ⋄ a_{r-1}`` on rank r, in ⌈log2 p⌉ rounds.

    In round d ranks whose numbers differ in bit d exchange the products of their blocks of 2**d ranks. An operand may
    be a gradient, IDENTITY or LOST; those of a batch that are received go to the `backend`. Returned are the result,
    how often ⋄ was computed here, and the Exception that it raised, if any.
    """
    before, block, combined, failed = IDENTITY, own, 0, None

    def combine(a, b):
        nonlocal combined, failed
        if a is LOST or b is LOST:
            return LOST
        combined += a is not IDENTITY and b is not IDENTITY
        try:
            return diamond(a, b)
        except DynamicRangeError:
            return LOST
        except Exception as error:  # the others wait for the next round
            failed = error
            return LOST

    rounds = (comm.size - 1).bit_length()
    for bit in range(rounds):
        partner = comm.rank ^ (1 << bit)
        if partner < comm.size:
            other = placed(group.timed(ranks.exchange, comm, block, partner, partner), backend)
            if partner < comm.rank:
                before = combine(other, before)
            if bit + 1 < rounds:  # after the last round nobody asks for the block
                block = combine(other, block) if partner < comm.rank else combine(block, other)
    return before, combined, failed


def placed(operand, backend):
    """Put a batch's sparse matrices, which arrive as NumPy's, where a backend keeps them."""
    if isinstance(operand, Affine):
        return Affine(placed(operand.linear, backend), operand.offset)
    if isinstance(operand, Scaled) and isinstance(operand.operand, Planned):
        link = BatchedCSR.of(operand.operand.pattern, operand.operand.values)
        return Scaled(Planned.of(link, backend), operand.exponent)
    return operand
