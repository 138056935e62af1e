"""The scan with fewer levels: k up-sweep levels, a linear scan over the blocks, k down-sweep levels (Section 5.3)."""

from bppsa_nb.scan.blelloch import down_sweep, up_sweep
from bppsa_nb.scan.levels import Level, block_end, num_blocks, up_levels
from bppsa_nb.scan.operator import IDENTITY, diamond


def steps(a, levels):
    """Run the truncated scan in place, pausing after each level: ``d = 0 ... k-1`` up, ``d = k-1 ... 0`` down.

    Worth it where products grow dearer from level to level, as those of sparse matrices do. With k = 0 it is the linear
    scan; with the tree's depth, and everything beyond, Algorithm 1.
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
