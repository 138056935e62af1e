"""Algorithm 1's index arithmetic: which pairs meet at which level, for any n.

Algorithm 1 works on an array ``a[0 ... n]``. At level d it splits it into blocks of ``2**(d + 1)`` and pairs the ends
of each block's two halves; the last block may be cut short. The counterparts compile these very functions.
"""

from typing import NamedTuple


class Level(NamedTuple):
    """What one level of a scan did: its ⋄ are independent of each other and can run in parallel.

    Its `phase` is "up", "down" or "linear"; `d` is Algorithm 1's, None for a step of a linear scan; `pairs` lists the
    positions ``(l, r)`` that met.
    """

    phase: str
    d: int | None
    pairs: list[tuple[int, int]]

    def __repr__(self):
        return f"Level(phase={self.phase!r}, d={self.d}, {len(self.pairs)} pairs)"


def up_levels(n):
    """Count the up-sweep levels, ``⌈log2(n + 1)⌉ - 1`` (Algorithm 1, line 3); 0 for n < 2."""
    return max(0, n.bit_length() - 1)


def down_levels(n):
    """Count the down-sweep levels, ``⌈log2(n + 1)⌉`` (Algorithm 1, line 10); 0 for n = 0."""
    return n.bit_length()


def num_pairs(n, d):
    """Count the pairs of level d: how many i = 0, 2**(d+1), ... are at most n - 2**d (line 4)."""
    return max(0, ((n - (1 << d)) >> (d + 1)) + 1)


def pair_left(j, d):
    """Return l of the j-th pair of level d (line 5): the last position of the left half."""
    return (j << (d + 1)) + (1 << d) - 1


def pair_right(j, d, n):
    """Return r of the j-th pair of level d (line 5): the last position of the block, or n."""
    return min((j << (d + 1)) + (1 << (d + 1)) - 1, n)


def num_blocks(n, k):
    """Count the blocks of 2**k operands that k up-sweep levels leave, the last one perhaps shorter."""
    return (n >> k) + 1


def block_end(j, k, n):
    """Return the last position of block j of 2**k operands: where its product stands."""
    return min(((j + 1) << k) - 1, n)


def pairs(n, d):
    """List level d's pairs ``(l, r)``: no index twice, so that they can be combined in parallel."""
    return [(pair_left(j, d), pair_right(j, d, n)) for j in range(num_pairs(n, d))]
