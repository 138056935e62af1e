"""The linear scan: ordinary back-propagation, one step after the other (Equation 3)."""

from bppsa_nb.scan.levels import Level
from bppsa_nb.scan.operator import IDENTITY, diamond


def steps(a):
    """Run the linear scan in place, pausing after each ⋄.

    Parameters
    ----------
    a : list of operands [length n + 1]
        Equation 5's array; becomes Equation 4's, ``[I, a0, a0 ⋄ a1, ...]``, with the product of all appended.

    Yields
    ------
    Level
        What was just done: n levels of one ⋄ each.
    """
    total = IDENTITY
    for i in range(len(a)):
        a[i], total = total, diamond(total, a[i])
        if i:
            yield Level("linear", None, [(i - 1, i)])
    a.append(total)
