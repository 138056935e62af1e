"""Chains of stored Jacobians on a GPU; counterpart of `bppsa_nb.chains.stored`.

The launchers of structured chains take stored Jacobians as well: a step's product is all that differs.
"""

from bppsa_nb.chains.levels_cuda import levels
from bppsa_nb.chains.structured_cuda import chunked, products, sweep

__all__ = ["chunked", "levels", "products", "sweep"]
