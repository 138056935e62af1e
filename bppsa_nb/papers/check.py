"""Claims measured again at the quick scale, and held against what the references say."""

import re
from typing import NamedTuple

import numpy as np

from bppsa_nb.papers import experiments
from bppsa_nb.papers.experiment import EVERY, MISSED
from bppsa_nb.papers.verdicts import Entry, entries, judge

WITHIN, OUTSIDE, NOT_HERE = "within", "outside", "not measured here"


class Outcome(NamedTuple):
    """What came of a claim: one of the three words above, what is found now, and what there is to say about it."""

    entry: Entry
    outcome: str
    found: str
    about: str | None


def expected(entry):
    """Return what the reference at the quick scale says of a claim, as `judge` does, and the reference.

    A LookupError says what it needs instead: a GPU, the paper's scale, or another command.
    """
    if entry.claim.gpu:
        raise LookupError("needs a GPU")
    if entry.claim.recorded_by:
        raise LookupError(f"`{entry.claim.recorded_by}` measures it")
    judged, lacks = None, ""
    with experiments.references():
        try:
            reference = experiments.table(entry.experiment)
            judged = judge(entry, reference)
        except LookupError as error:
            lacks = f"; the quick reference: {error}"
            if (reference.attrs["provenance"]["device"], "paper") not in experiments.recordings(entry.experiment):
                raise ValueError(f"{entry.experiment}, {entry.claim.where}: {error}") from error
    if judged is None or experiments.load(entry.experiment).FIGURE.origin == "collected":
        raise LookupError(f"needs the paper's scale: `bppsa-nb measure {entry.experiment} --scale paper`{lacks}")
    if judged[2].startswith("not measurable here"):
        raise LookupError(judged[2].removeprefix("not measurable here: "))
    return judged, reference


def check(names=None, progress=True):
    """Measure experiments again that claims are held against; yield the `Outcome` of every claim.

    Those that are named are measured now. Without names it is all, but for what the very same source measured here
    before. A name of no such experiment is a ValueError.
    """
    known = list(dict.fromkeys(entry.experiment for entry in entries()))
    for name in names or []:
        if name not in known:
            raise ValueError(f"no claim is held against {name!r}, but against {', '.join(known)}")
    tables = {}
    for entry in entries():
        name = entry.experiment
        if names and name not in names:
            continue
        try:
            then, reference = expected(entry)
        except LookupError as error:
            yield Outcome(entry, NOT_HERE, "", str(error))
            continue
        if name not in tables:
            tables[name] = (experiments.run if names else experiments.measured)(name, progress=progress)
        try:
            now = judge(entry, tables[name])
        except LookupError as error:
            yield Outcome(entry, OUTSIDE, "nothing", f"the table lacks rows that the claim is about: {error}")
            continue
        about = cells_apart(entry.tolerance, tables[name], reference) or apart(entry.tolerance, now, then)
        yield Outcome(entry, OUTSIDE if about else WITHIN, now[0], about)


def apart(tolerance, now, then):
    """Say what is too far apart in two judgments of a claim; None if nothing is.

    Numbers are compared field by field. Those of times may be of other fields on another machine, such as sizes that
    memory bounds there: then only those that both have are.
    """
    (found, numbers, verdict), (said, others, before) = now, then
    if found != said and not (tolerance.factor > 1 or tolerance.apart):
        return "it says something else"
    if numbers.keys() != others.keys() and (tolerance.decides or not numbers.keys() & others.keys()):
        return "it says something else"
    for field in numbers.keys() & others.keys():
        name = ", ".join(map(str, field))
        if len(numbers[field]) != len(others[field]):
            return f"{name}: {len(numbers[field])} numbers instead of {len(others[field])}"
        for one, other in zip(numbers[field], others[field], strict=True):
            low, high = sorted((abs(one), abs(other)))
            near = one * other > 0 and high <= tolerance.factor * low
            if abs(one - other) > tolerance.apart and not near:
                return f"{name} is {one:g} instead of {other:g}"
    if verdict == MISSED != before and tolerance.decides:
        return f"missed, where the reference is {before}"
    return None


def cells_apart(tolerance, table, reference):
    """Say in which cell that counts a table differs from the reference's; None if in none."""
    if tolerance.cells is None:
        return None
    now, then = (f"{len(each)} rows of {', '.join(sorted(each))}" for each in (table, reference))
    if now != then:  # a machine with a GPU has rows of other backends
        return f"the table has {now}, not {then}" if tolerance.cells == EVERY else None
    for column in filter(re.compile(tolerance.cells).search, table):
        now, then = table[column], reference[column]
        close = np.isclose(now, then, rtol=tolerance.close) if then.dtype.kind == "f" else now == then
        same = close | (now.isna() & then.isna())
        if not same.all():
            row = int(np.argmin(same))
            return f"{column} in row {row + 1} of the table is {now[row]}, not {then[row]}"
    return None


def run(names=None):
    """Check claims, print what comes of each, and return the exit code: 1 if one is outside its tolerance."""
    count, outside = dict.fromkeys((WITHIN, OUTSIDE, NOT_HERE), 0), []
    for each in check(names):
        count[each.outcome] += 1
        if each.outcome == OUTSIDE:
            outside.append(each)
        where = f"{each.entry.experiment}, {each.entry.claim.where}"
        print(f"{each.entry.number:>4}  {each.outcome:<18}{where}: {each.found or each.about}", flush=True)
    for entry, _, found, about in outside:
        print(f"\n{entry.number}. {entry.experiment}, {entry.claim.where}: {entry.claim.says}")
        print(f"   now:       {found}\n   reference: {expected(entry)[0][0]}")
        print(f"   outside:   {about}\n   tolerance: {entry.tolerance.says}: {entry.tolerance.why}")
    print("\n" + ", ".join(f"{number} {what}" for what, number in count.items()))
    return int(bool(outside))
