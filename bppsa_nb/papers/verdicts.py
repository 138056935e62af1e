"""The claims of all papers, held against recorded tables."""

import re
import sys
from functools import cache
from typing import NamedTuple

from bppsa_nb.papers import experiment, experiments

NEEDS_GPU = "not measurable here: needs a GPU"
NOT_YET = "not measured yet"


class Entry(NamedTuple):
    """A claim in the report: its number there, the paper, and the experiment whose table decides it."""

    number: int
    paper: str
    experiment: str
    claim: experiment.Claim

    @property
    def tolerance(self):
        """How far from the reference its numbers may be where they are measured again."""
        return experiment.TOLERANCES[self.claim.origin or experiments.load(self.experiment).FIGURE.origin]


class Evaluated(NamedTuple):
    """An entry, what we found, in words, the provenance of the tables that say so, and the verdict."""

    entry: Entry
    said: str
    origins: list
    verdict: str


@cache
def entries():
    """List all claims, a paper after the other, by section, figure or table; a tuple of entries."""
    found = []
    for place, name in enumerate(experiments.names()):
        module = experiments.load(name)
        paper = sys.modules[module.__package__]
        papers, parts = list(experiments.PAPERS), list(getattr(paper, "PARTS", ()))
        for claim in module.FIGURE.claims:
            part = parts.index(claim.where) if claim.where in parts else 0
            order = papers.index(paper), claim.heading, not claim.where.startswith("§"), part, _natural(claim.where)
            found.append(((*order, place), claim.heading or paper.HEADING, name, claim))
    found.sort(key=lambda each: each[0])
    return tuple(Entry(number, *each[1:]) for number, each in enumerate(found, 1))


def _natural(where):
    """Return a key that sorts "§3.5, Figure 7" before "§3.10"."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.findall(r"\d+|\D+", where)]


def judge(entry, table):
    """Return what a table says of a claim, in words, its numbers by field, and the verdict.

    A LookupError says what is missing: a smaller scale may lack rows.
    """
    module = experiments.load(entry.experiment)
    return experiment.judge(entry.claim, module, experiment.facts(module, table))


def evaluate(entry):
    """Evaluate a claim on the recordings; without any, what is said is the command that makes one.

    What was measured here comes before references, a GPU's before a CPU's, the paper's scale before the quick one. What
    the quick scale gives on the same machine is added to the paper's; there are two provenances then.
    """
    found, lacks = _evaluations(entry)
    if not found:
        scale = " --scale paper" if entry.claim.gpu or lacks else ""
        command = f"`bppsa-nb measure {entry.experiment}{scale}`{lacks}"
        return Evaluated(entry, command, [], NEEDS_GPU if entry.claim.gpu else NOT_YET)
    _, said, origin, verdict = max(found, key=lambda each: each[0])
    same = {key: origin[key] for key in ("device", "reference")} | {"scale": "quick"}
    quick = [(other, its) for _, other, its, _ in found if same.items() <= its.items() and other != said]
    both = "<br>quick: ".join([said, *(other for other, _ in quick)])
    return Evaluated(entry, both, [origin, *(its for _, its in quick)], verdict)


def _evaluations(entry):
    """Evaluate a claim on every recording: rank, what we found, provenance and verdict; and what others lack."""
    found, lacks = [], ""
    for device, scale in experiments.recordings(entry.experiment):
        table = experiments.table(entry.experiment, scale, device)
        origin = table.attrs["provenance"]
        try:
            said, _, verdict = judge(entry, table)
        except LookupError as error:
            lacks = f" (the table of scale {scale} does not decide it: {error})"
            continue
        on_gpu = "cuda" in (origin["backend"] or ())  # a machine with a GPU may have computed without it
        if entry.claim.gpu and not (on_gpu and scale == "paper"):
            verdict = NOT_YET if on_gpu else NEEDS_GPU
        found.append(((not origin["reference"], on_gpu, scale == "paper"), said, origin, verdict))
    return found, lacks
