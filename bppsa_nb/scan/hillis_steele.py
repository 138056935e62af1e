"""Hillis and Steele's scan (Section 2.3): fewer levels than Blelloch's, but Θ(n log n) work. Here for the contrast."""

from bppsa_nb.scan.levels import Level, down_levels
from bppsa_nb.scan.operator import IDENTITY, diamond


def steps(a):
    """Run the scan in place, pausing after each of ``⌈log2(n + 1)⌉`` levels; the d-th has ``n + 1 - 2**d`` pairs."""
    n = len(a) - 1
    for d in range(down_levels(n)):
        level = Level("up", d, [(i - (1 << d), i) for i in range(1 << d, n + 1)])
        for l, r in reversed(level.pairs):  # from the end, so that every a[l] is still the level's input
            a[r] = diamond(a[l], a[r])
        yield level
    a.insert(0, IDENTITY)
