"""What the papers claim, and how each claim is held against a recorded table.

A row of the report is one `Claim`. Its check gets the table of an experiment and returns what we found, in words, and
the verdict; where rows that it needs are missing, it raises `LookupError`.
"""

from bppsa_nb.papers.claims import complexity, distributed, forward, gru, multigrid, ooo, rnn, sparse, variants
from bppsa_nb.papers.claims.claim import Claim

__all__ = ["Claim", "claims"]


def claims():
    """List all claims, in the order of the report."""
    modules = complexity, distributed, rnn, gru, sparse, variants, ooo, multigrid, forward
    return [claim for module in modules for claim in module.claims()]
