"""The scan with fewer levels: k up-sweep levels, a linear scan over the blocks, k down-sweep levels (Section 5.3)."""

from bppsa_nb.scan.blelloch import down_sweep, up_sweep
from bppsa_nb.scan.levels import Level, block_end, num_blocks, up_levels
from bppsa_nb.scan.operator import IDENTITY, diamond


def steps(a, levels):
    """Run the truncated scan in place, pausing after each level.

    Worth it where products grow dearer from level to level, as those of sparse matrices do.

    Parameters
    ----------
    a : list of operands [length n + 1]
        Equation 5's array; becomes Equation 4's, ``[I, a0, a0 ⋄ a1, ...]``, with the product of all appended.
    levels : int
        k: levels ``d = 0 ... k-1`` up and ``d = k-1 ... 0`` down. 0 is the linear scan; the tree's depth and
        everything beyond is Algorithm 1.

    Yields
    ------
    Level
        What was just done.
    """
    n = len(a) - 1
    k = min(levels, up_levels(n))
    yield from up_sweep(a, n, k)
    total = IDENTITY
    for j in range(num_blocks(n, k)):
        end = block_end(j, k, n)
        a[end], total = total, diamond(total, a[end])
        if j:
            yield Level("linear", None, [(block_end(j - 1, k, n), end)])
    a.append(total)
    yield from down_sweep(a, n, k)
