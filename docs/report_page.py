"""The reproduction report as a page: the claims of REPRODUCTION.md in a table to filter, each with its figure."""

from functools import cache

from bppsa_nb.papers import experiments, explain, provenance
from bppsa_nb.papers.report import INTRODUCTION, row, tolerances


@cache
def evaluated():
    """Evaluate every claim on the references; a list of `verdicts.Evaluated`."""
    with experiments.references():
        return explain.evaluated()


def text():
    """Compose the page, as MyST Markdown."""
    lines = [INTRODUCTION, *tolerances(), "", '<div class="filter"></div>', ""]
    for paper in dict.fromkeys(each.entry.paper for each in evaluated()):
        lines += ["", f"## {paper}", "", "| claim | the paper | ours | verdict |", "| --- | --- | --- | --- |"]
        lines += [_row(each) for each in evaluated() if each.entry.paper == paper]
    return "\n".join(lines) + "\n"


def _row(each):
    entry, claim, measured = each.entry, each.entry.claim, ""
    if each.origins:
        origin = each.origins[0]
        measured = f"<br>*{provenance.machine(origin)}, {origin['scale']}, {origin['data']}*"
    figure = f"[figure, data, code](figure/{entry.experiment}.md)"
    return row(
        f"[**{claim.where}**]{{#claim-{entry.number}}}<br>{claim.says}",
        claim.number,
        f"{each.said}{measured}",
        f"**{each.verdict}**<br>{figure}<br>tolerance: {entry.tolerance.says}",
    )
