"""Algorithm 1: the modified Blelloch scan, in Θ(log n) levels."""

from bppsa_nb.scan.levels import Level, block_end, down_levels, pairs, up_levels
from bppsa_nb.scan.operator import IDENTITY, diamond


def up_sweep(a, n, levels):
    """Multiply neighboring blocks, level by level (Algorithm 1, lines 3-8), in place."""
    for d in range(levels):  # line 3
        level = Level("up", d, pairs(n, d))
        for l, r in level.pairs:  # lines 4-5
            a[r] = diamond(a[l], a[r])  # line 6
        yield level


def down_sweep(a, n, levels):
    """Hand every block the product of all that precedes it (Algorithm 1, lines 10-17), in place."""
    for d in reversed(range(levels)):  # line 10
        level = Level("down", d, pairs(n, d))
        for l, r in level.pairs:  # lines 11-12
            # Lines 13-15. The operands of ⋄ are reversed: what comes from above, a[r], stands closer to the loss.
            a[l], a[r] = a[r], diamond(a[r], a[l])
        yield level


def steps(a):
    """Run Algorithm 1 in place, pausing after each of its ``max(0, 2⌈log2(n + 1)⌉ - 1)`` levels.

    Only the up-sweep multiplies matrices by matrices. The first level of the down-sweep only moves data; the
    gradient at x_0, which Algorithm 1 leaves out, is one more matrix-vector product on that level.
    """
    n = len(a) - 1
    k = up_levels(n)
    yield from up_sweep(a, n, k)
    a.append(diamond(a[block_end(0, k, n)], a[n]) if n else a[0])
    a[n] = IDENTITY  # line 9
    yield from down_sweep(a, n, down_levels(n))
