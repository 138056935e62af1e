r"""The operator of the scan, :math:`A \diamond B = B A`.

The law: ⋄ is associative, ``(A ⋄ B) ⋄ C == A ⋄ (B ⋄ C)``, and **not** commutative. Its identity is the identity matrix,
which is never stored: `IDENTITY` is a symbol. An operand is whatever has a ``__matmul__`` that obeys the law: those of
:mod:`bppsa_nb.operands` multiply matrices, `bppsa_nb.scan.trace.Traced` multiplies nothing and remembers everything.
"""


class _Identity:
    """The identity of ⋄, as a symbol: the green squares of Figure 3."""

    def __repr__(self):
        return "IDENTITY"

    def __reduce__(self):
        return "IDENTITY"  # there is one, in pickles too


IDENTITY = _Identity()


def diamond(a, b):
    """Combine two operands, `a` the one closer to the loss: ``A ⋄ B = B A`` (Section 3.1), a gradient if `a` is one."""
    if a is IDENTITY:
        return b
    if b is IDENTITY:
        return a
    return b @ a
