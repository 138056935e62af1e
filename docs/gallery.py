"""The page of all figures, by paper: what to look at, where the numbers come from, how to make it, what it decides."""

import figure_page

from bppsa_nb.papers import experiments

_INTRODUCTION = """Every figure of the papers that can be drawn here, and some that they should have had. What was made
"here" was drawn from measurements of the machine that made this book; claims are evaluated on the recorded references
in `data/results/`, which may come from another one."""

PAPERS = {
    "bppsa": "BPPSA: back-propagation by parallel scan",
    "gru": "Optimizing RNNs with differentiable graphs",
    "ooo": "Out-of-order backprop",
    "multigrid": "Layer-parallel training by multigrid",
    "forward": "The forward pass in parallel",
}


def text():
    """Compose the page, as MyST Markdown."""
    lines = [
        "# Figures",
        "",
        _INTRODUCTION,
        "",
    ]
    names = {name: experiments.load(name).__name__.split(".")[2] for name in figure_page.facts()}
    for paper, title in PAPERS.items():
        lines += [f"## {title}", ""]
        for name in (name for name, of in names.items() if of == paper):
            lines += _figure(name)
    return "\n".join(lines)


def _figure(name):
    found = figure_page.facts()[name]
    said = [f"[its data and its code](figure/{name}.md)", f"`bppsa-nb measure {name}`"]
    for notebook in dict.fromkeys(cell.notebook for cell in found.cells):
        said.append(f"[chapter {notebook.split('_')[0]}](notebooks/{notebook}.ipynb)")
    if claims := figure_page.decided(name):
        links = (
            f"[{each.entry.claim.where}](REPRODUCTION.md#claim-{each.entry.number}) ({each.verdict})" for each in claims
        )
        said.append("claims: " + ", ".join(links))
    return [f"### {found.title}", "", *figure_page.figure(name), " · ".join(said), ""]
