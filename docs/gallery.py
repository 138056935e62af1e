"""The page of all figures, by paper: what to look at, where the numbers come from, how to make it, what it decides."""

import report_page

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, figures, notebooks, provenance

_INTRODUCTION = """Every figure of the papers that can be drawn here, and some that they should have had. What was "run
here" was drawn from measurements of the machine that made this book; claims are evaluated on the recorded references
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
    chapters, decided = _chapters(), {}
    for each in report_page.evaluated():
        decided.setdefault(each.claim.experiment, []).append(each)
    names = {name: experiments.load(name).__name__.split(".")[2] for name in experiments.names()}
    for paper, title in PAPERS.items():
        lines += [f"## {title}", ""]
        for name in (name for name, of in names.items() if of == paper):
            if (files.root() / f"figures/{name}.json").is_file():
                lines += _figure(name, chapters.get(name), decided.get(name, []))
    return "\n".join(lines)


def _figure(name, chapter, claims):
    described = files.read_json(files.root() / f"figures/{name}.json")
    origin = {"reference": True} | described["provenance"]  # what is committed was drawn from references
    vector = figures.vector(name)
    said = [f"`bppsa-nb figures --only {name}`"]
    if chapter:
        said.append(f"[chapter {chapter.split('_')[0]}](notebooks/{chapter}.ipynb)")
    if claims:
        links = (f"[{each.claim.where}](REPRODUCTION.md#claim-{each.number}) ({each.verdict})" for each in claims)
        said.append("claims: " + ", ".join(links))
    where = f"{figures.provenance_line(origin)} · {origin['date']} · commit {provenance.commit(origin)}"
    return [
        f"### {experiments.title(name)}",
        "",
        f":::{{figure}} figures/{name}.{'svg' if vector else 'png'}",
        f":name: figure-{name}",
        f":alt: {described['alt']}",
        "",
        described["caption"],
        "",
        f"*{where}*",
        ":::",
        "",
        " · ".join(said),
        "",
    ]


def _chapters():
    """Return by figure which notebook embeds it."""
    found = {}
    for name in notebooks.names():
        text = (files.root() / f"notebooks/{name}.ipynb").read_text(encoding="utf-8")
        for figure in experiments.names():
            if f"../figures/{figure}.png" in text:
                found.setdefault(figure, name)
    return found
