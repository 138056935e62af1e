"""Reduce, then scan: p workers with n / p operands each (Equation 6 for p < n)."""

from bppsa_nb.scan.levels import Level
from bppsa_nb.scan.operator import IDENTITY, diamond


def steps(a, length):
    """Run the chunked scan in place, pausing after each step.

    First the product of every chunk, all chunks at once; then a linear scan over these products; then every chunk
    is gone through again, from the product of all that precedes it. Only the first phase multiplies matrices by
    matrices. The chunk that holds the gradient is through after the first phase, and the last one starts in the third.
    With gradients this takes the linear scan's n products, and (c - 2) (length - 1) of matrices where there are c
    chunks.

    A chunk has `length` links; the first one holds the gradient and what the others leave over.
    """
    n = len(a) - 1
    firsts = [0, *range(n + 1 - (n - 1) // length * length, n + 1, length)] if n else [0]
    ends = [*firsts[1:], n + 1]
    products = [a[first] for first in firsts]
    a[0] = IDENTITY
    for s in range(1, max(ends[0], length if len(firsts) > 2 else 0)):
        pairs = []
        for c, (first, end) in enumerate(zip(firsts, ends, strict=True)):
            if first + s < end and (c == 0 or end <= n):
                if c == 0:
                    a[s], products[0] = products[0], diamond(products[0], a[s])
                else:
                    products[c] = diamond(products[c], a[first + s])
                pairs.append((first + s - 1, first + s))
        yield Level("linear", None, pairs)
    before = products[:1]  # of each chunk from the second on: the product of all that precedes it
    for c in range(1, len(firsts) - 1):
        before.append(diamond(before[-1], products[c]))
        yield Level("linear", None, [(firsts[c] - 1, ends[c] - 1)])
    for s in range(length if len(firsts) > 1 else 0):
        pairs = []
        for c, first in enumerate(firsts[1:]):
            link, a[first + s] = a[first + s], before[c]
            if s < length - 1 or c == len(before) - 1:  # what precedes the next chunk is known already
                before[c] = diamond(before[c], link)
                pairs.append((first + s - 1, first + s))
        yield Level("linear", None, pairs)
    a.append(before[-1])
