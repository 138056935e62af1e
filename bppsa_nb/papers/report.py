"""The reproduction report: every claim of the papers, evaluated on the recorded tables; and how to measure it again."""

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, provenance
from bppsa_nb.papers.claims import claims
from bppsa_nb.papers.claims.claim import NEEDS_GPU, NOT_YET, require
from bppsa_nb.papers.claims.tolerance import ALL

INTRODUCTION = """\
# Reproduction report

Every claim of the papers that this project has looked at, and what came out of it. `bppsa-nb report` writes this page;
our numbers are read from the references in `data/results/`, those of the paper's tables from `data/paper/`. A report
written elsewhere (`--output PATH`) holds the claims against what was measured here first; such rows say so.

**reproduced**: as claimed; speedups to within 10 %. **better**: more than 10 % above the claim. **missed**: not as
claimed. **not measurable here**: it takes a machine that no recording comes from, for speedups a GPU; what ours gives
is shown all the same, and a speedup below 1 means slower. **not measured yet**: the command shown makes the recording.

Of references, one at the paper's scale decides; what the quick scale gives, which `make figures` measures, stands below
it.

`bppsa-nb report --check` measures again at the quick scale. It compares what it finds with the quick reference, number
by number, within each claim's **tolerance**. A claim that held and is missed now is outside, too. With the name of an
experiment, which each claim has beside its tolerance, it measures only that one: `bppsa-nb report --check NAME`.

"""


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
    known = claims()
    for paper in dict.fromkeys(claim.paper for claim in known):
        heads = "no.", "where", "claim", "the paper", "ours", "machine, scale, data", "verdict"
        heads += "tolerance", "experiment"
        lines += [f"## {paper}\n", _row(*heads), "|" + " --- |" * len(heads)]
        for number, claim in enumerate(known, 1):
            if claim.paper == paper:
                ours, origins, verdict = evaluate(claim)
                used |= {(each["name"], each["scale"], each["device"]): each for each in origins}
                machine = _machine(origins[0]) if origins else "—"
                said = claim.where, claim.says, claim.number, ours, machine
                lines.append(_row(str(number), *said, f"**{verdict}**", claim.tolerance.says, claim.experiment))
        lines.append("")
    lines += ["## Recordings\n", "| table | scale | machine | date | commit | seed |", "|" + " --- |" * 6]
    for origin in sorted(used.values(), key=lambda origin: (origin["name"], origin["scale"], origin["device"])):
        where = [provenance.machine(origin), origin["date"], provenance.commit(origin)]
        lines.append(_row(origin["name"], origin["scale"], *where, str(origin["seed"])))
    return "\n".join(lines) + "\n"


def tolerances():
    """Explain the tolerances, a list of lines."""
    return [f"- **{each.says}**: {each.why}." for each in ALL]


def _row(*cells):
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def evaluate(claim):
    """Evaluate a claim on the recordings: what we found (or the command that finds out), provenances, and the verdict.

    What was measured here comes before references, a GPU's before a CPU's, the paper's scale before the quick one. What
    the quick scale gives on the same machine is added to the paper's; there are two provenances then.
    """
    found = _evaluations(claim)
    if not found:
        command = f"`bppsa-nb figures --only {claim.experiment} --scale {'paper' if claim.gpu else 'quick'}`"
        return command, [], NEEDS_GPU if claim.gpu else NOT_YET
    _, ours, origin, verdict = max(found, key=lambda each: each[0])
    same = {key: origin[key] for key in ("device", "reference")} | {"scale": "quick"}
    quick = [(other, its) for _, other, its, _ in found if same.items() <= its.items() and other != ours]
    both = "<br>quick: ".join([ours, *(other for other, _ in quick)])
    return both, [origin, *(its for _, its in quick)], verdict


def _evaluations(claim):
    """Evaluate a claim on every recording: rank, what we found, provenance and verdict of each."""
    found = []
    for device, scale in experiments.recordings(claim.experiment):
        table = experiments.table(claim.experiment, scale, device)
        origin = table.attrs["provenance"]
        try:
            ours, verdict = claim.check(require(table))
        except LookupError:  # a smaller scale lacks rows
            continue
        on_gpu = "cuda" in (origin["backend"] or ())  # a machine with a GPU may have computed without it
        if claim.gpu and not (on_gpu and scale == "paper"):
            verdict = NOT_YET if on_gpu else NEEDS_GPU
        found.append(((not origin["reference"], on_gpu, scale == "paper"), ours, origin, verdict))
    return found


def _machine(origin):
    said = f"{provenance.machine(origin)}, {origin['scale']}, {origin['data']}"
    return said if origin["reference"] else f"{said}, measured here"
