"""The reproduction report: every claim of the papers, held against the recorded tables."""

from bppsa_nb import experiments, files
from bppsa_nb.claims import claims
from bppsa_nb.claims.claim import NEEDS_GPU, NOT_YET

_INTRODUCTION = """\
# Reproduction report

Every claim of the papers that this project has looked at, and what came out of it. `bppsa-nb report` writes this page;
our numbers are read from the tables in `data/results/`, those of the paper's tables from `data/paper/`.

**reproduced**: as claimed; speedups to within 10 %. **better**: more than 10 % above the claim. **missed**: not as
claimed. **not measurable here**: it takes a machine that no recording comes from, for speedups a GPU; what ours gives
is shown all the same, and a speedup below 1 means slower. **not measured yet**: the command shown makes the recording.
"""


def write(path=None):
    """Write the report.

    Parameters
    ----------
    path : str or os.PathLike, optional
        Where to; `REPRODUCTION.md` in the checkout by default.
    """
    with files.atomic_write(path or files.root() / "REPRODUCTION.md", "w") as file:
        file.write(text())


def text():
    """Compose the report from the tables recorded in `data/results/`, as Markdown.

    Returns
    -------
    str
    """
    lines, used = [_INTRODUCTION], {}
    known = claims()
    for paper in dict.fromkeys(claim.paper for claim in known):
        lines += [f"## {paper}\n", "| where | claim | the paper | ours | machine, scale, data | verdict |"]
        lines.append("|" + " --- |" * 6)
        for claim in known:
            if claim.paper == paper:
                ours, origin, verdict = hold(claim)
                if origin:
                    used[origin["name"], origin["scale"], origin["device"]] = origin
                cells = [claim.where, claim.says, claim.number, ours, _machine(origin), f"**{verdict}**"]
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines += ["## Recordings\n", "| table | scale | machine | date | commit | seed |", "|" + " --- |" * 6]
    for origin in sorted(used.values(), key=lambda origin: (origin["name"], origin["scale"], origin["device"])):
        commit = (origin["commit"] or "unknown")[:10] + (" and changes" if origin["dirty"] else "")
        cells = [origin["name"], origin["scale"], _processor(origin), origin["date"], commit, str(origin["seed"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def hold(claim):
    """Hold a claim against the recordings: a GPU's before a CPU's, the paper's scale before the quick one.

    Parameters
    ----------
    claim : Claim

    Returns
    -------
    ours : str
        What we found, or the command that finds out.
    origin : dict or None
        The provenance of the table that says so.
    verdict : str
    """
    found = []
    for device, scale in experiments.recordings(claim.experiment):
        table = experiments.table(claim.experiment, scale, device)
        origin = table.attrs["provenance"]
        try:
            ours, verdict = claim.judge(table)
        except LookupError:  # a smaller scale lacks rows
            continue
        on_gpu = "cuda" in (origin["backend"] or ())  # a machine with a GPU may have computed without it
        if claim.gpu and not (on_gpu and scale == "paper"):
            verdict = NOT_YET if on_gpu else NEEDS_GPU
        found.append(((on_gpu, scale == "paper"), ours, origin, verdict))
    if found:
        return max(found, key=lambda each: each[0])[1:]
    command = f"`bppsa-nb figures --only {claim.experiment} --scale {'paper' if claim.gpu else 'quick'}`"
    return command, None, NEEDS_GPU if claim.gpu else NOT_YET


def _processor(origin):
    return origin["gpu"] or f"{origin['cpu']} ({origin['cores']} cores)"


def _machine(origin):
    return f"{_processor(origin)}, {origin['scale']}, {origin['data']}" if origin else "—"
