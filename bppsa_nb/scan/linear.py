"""The linear scan: ordinary back-propagation, one step after the other (Equation 3)."""

from bppsa_nb.scan.levels import Level
from bppsa_nb.scan.operator import IDENTITY, diamond


def steps(a):
    """Run the linear scan in place, pausing after each of its n ⋄; see `bppsa_nb.scan.steps`."""
    total = IDENTITY
    for i in range(len(a)):
        a[i], total = total, diamond(total, a[i])
        if i:
            yield Level("linear", None, [(i - 1, i)])
    a.append(total)
