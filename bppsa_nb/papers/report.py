"""The reproduction report: every claim of the papers, evaluated on the recorded tables."""

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, provenance
from bppsa_nb.papers.experiment import TOLERANCES
from bppsa_nb.papers.verdicts import entries, evaluate

INTRODUCTION = """\
# Reproduction report

Every claim of the papers that this project has looked at, and what came out of it. `bppsa-nb report` writes this page;
our numbers are read from the references in `data/results/`, those of the paper's tables from `data/paper/`. A report
written elsewhere (`--output PATH`) holds the claims against what was measured here first; such rows say so.

**reproduced**: as claimed; speedups to within 10 %. **better**: more than 10 % above the claim. **missed**: not as
claimed. **not measurable here**: we have no recording from such a machine (for speedups, a GPU); our result is shown
anyway, and a speedup below 1 means slower. **not measured yet**: the command shown makes the recording.

Of references, one at the paper's scale decides; what the quick scale gives, which `make figures` measures, stands below
it.

`bppsa-nb check NAME` measures an experiment again at the quick scale. It compares what it finds with the quick
reference, number by number, within each claim's **tolerance**. A claim that held and is missed now is outside, too.
`bppsa-nb explain NAME` leads from an experiment to its code, its table and its notebook.

"""
HEADS = "no.", "experiment", "where", "claim", "the paper", "ours", "machine, scale, data", "verdict", "tolerance"


def write(path=None):
    """Write the report of references to `REPRODUCTION.md`, or to `path` one of what was measured here first."""
    with experiments.references(wanted=path is None):
        composed = text()
    path = path or files.root() / "REPRODUCTION.md"
    with files.atomic_write(path, "w") as file:
        file.write(composed)
    return path


def text():
    """Compose the report from the recorded tables, as Markdown."""
    lines, used = [INTRODUCTION, *tolerances(), ""], {}
    for paper in dict.fromkeys(entry.paper for entry in entries()):
        lines += [f"## {paper}\n", row(*HEADS), "|" + " --- |" * len(HEADS)]
        for entry in [entry for entry in entries() if entry.paper == paper]:
            _, ours, origins, verdict = evaluate(entry)
            used |= {(each["name"], each["scale"], each["device"]): each for each in origins}
            machine, claim = _machine(origins[0]) if origins else "—", entry.claim
            said = entry.experiment, claim.where, claim.says, claim.number, ours, machine
            lines.append(row(str(entry.number), *said, f"**{verdict}**", entry.tolerance.says))
        lines.append("")
    lines += ["## Recordings\n", "| table | scale | machine | date | commit | seed |", "|" + " --- |" * 6]
    for origin in sorted(used.values(), key=lambda origin: (origin["name"], origin["scale"], origin["device"])):
        where = [provenance.machine(origin), origin["date"], provenance.commit(origin)]
        lines.append(row(origin["name"], origin["scale"], *where, str(origin["seed"])))
    return "\n".join(lines) + "\n"


def tolerances():
    """Explain the tolerances, a list of lines."""
    return [f"- **{each.says}**: {each.why}." for each in TOLERANCES.values()]


def row(*cells):
    """Write a row of a table in Markdown."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _machine(origin):
    said = f"{provenance.machine(origin)}, {origin['scale']}, {origin['data']}"
    return said if origin["reference"] else f"{said}, measured here"
