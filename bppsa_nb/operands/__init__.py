"""Operands: matrices of several kinds that know ⋄, and what their products take."""
