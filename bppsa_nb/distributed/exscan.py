"""The scan over ranks: of all operands before a rank's own, in the rounds of recursive doubling (Section 3.6).

MPI's own Exscan (notebook 12) takes operands of one size only. Here they are sent pickled, between ranks that one user
started, so that products of sparse matrices may have whatever size they have.
"""

from bppsa_nb.distributed import ranks
from bppsa_nb.operands.kinds import Affine, Scaled
from bppsa_nb.operands.pattern import BatchedCSR, Planned
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.scan.operator import IDENTITY, diamond

LOST = None  # stands for an operand that could not be computed


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
