"""What the papers claim, and how each claim is held against a recorded table.

A row of the report is one `Claim`. Its check gets the table of an experiment and returns what we found, in words, and
the verdict; where rows that it needs are missing, it raises `LookupError`.
"""

from bppsa_nb.papers import experiment, experiments
from bppsa_nb.papers.claims import complexity, distributed, forward, multigrid, ooo, sparse
from bppsa_nb.papers.claims.claim import Claim
from bppsa_nb.papers.claims.tolerance import Tolerance

__all__ = ["Claim", "claims"]


def claims():
    """List all claims, in the order of the report."""
    modules = complexity, distributed, sparse, ooo, multigrid, forward
    return [claim for module in modules for claim in module.claims()] + [*_written()]


def _written():
    from importlib import import_module

    for name in experiments.names():
        module = experiments.load(name)
        for claim in getattr(module, "FIGURE", experiment.Figure("", "", "", "")).claims:
            heading = claim.heading or import_module(module.__package__).HEADING

            def check(table, claim=claim, module=module):
                said, _, verdict = experiment.judge(claim, module, experiment.facts(module, table))
                return said, verdict

            tolerance = Tolerance(**vars(experiment.TOLERANCES[claim.origin or module.FIGURE.origin]))
            yield Claim(heading, claim.where, claim.says, claim.number, name, check, tolerance, claim.gpu,
                        claim.recorded_by)
