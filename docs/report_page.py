"""The reproduction report as a page: the claims of REPRODUCTION.md in a table to filter, each with its figure."""

from functools import cache

from bppsa_nb.papers import experiments, explained, provenance
from bppsa_nb.papers.report import INTRODUCTION, tolerances


@cache
def evaluated():
    """Evaluate every claim on the references; a list of `explained.Evaluated`."""
    with experiments.references():
        return explained.evaluated()


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
    figure = f"[{claim.experiment}: figure, data, code](figure/{claim.experiment}.md)"
    cells = [
        f"[**{claim.where}**]{{#claim-{each.number}}}<br>{claim.says}",
        claim.number,
        f"{each.ours}{measured}",
        f"**{each.verdict}**<br>{figure}<br>tolerance: {claim.tolerance.says}",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
