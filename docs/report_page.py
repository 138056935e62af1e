"""The reproduction report as a page: the claims of REPRODUCTION.md in a table to filter, each with its figure."""

from functools import cache
from typing import NamedTuple

from bppsa_nb.papers import experiments, provenance
from bppsa_nb.papers.claims import Claim, claims
from bppsa_nb.papers.report import INTRODUCTION, evaluate, tolerances


class Evaluated(NamedTuple):
    """A claim with its number in the report, what we found, where, and the verdict."""

    number: int
    claim: Claim
    ours: str
    origin: dict | None
    verdict: str


@cache
def evaluated():
    """Evaluate every claim on the references; a list of `Evaluated`."""
    with experiments.references():
        found = [(claim, *evaluate(claim)) for claim in claims()]
    return [
        Evaluated(number, claim, ours, origins[0] if origins else None, verdict)
        for number, (claim, ours, origins, verdict) in enumerate(found, 1)
    ]


def text():
    """Compose the page, as MyST Markdown."""
    lines = [INTRODUCTION, *tolerances(), "", '<div class="filter"></div>', ""]
    for paper in dict.fromkeys(each.claim.paper for each in evaluated()):
        lines += ["", f"## {paper}", "", "| claim | the paper | ours | verdict |", "| --- | --- | --- | --- |"]
        lines += [_row(each) for each in evaluated() if each.claim.paper == paper]
    return "\n".join(lines) + "\n"


def _row(each):
    claim, origin, measured = each.claim, each.origin, ""
    if origin:
        measured = f"<br>*{provenance.machine(origin)}, {origin['scale']}, {origin['data']}*"
    figure = f"[figure](figures.md#figure-{claim.experiment.replace('_', '-')})"
    cells = [
        f"[**{claim.where}**]{{#claim-{each.number}}}<br>{claim.says}",
        claim.number,
        f"{each.ours}{measured}",
        f"**{each.verdict}**<br>{figure}<br>tolerance: {claim.tolerance.says}",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
