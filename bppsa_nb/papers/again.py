"""Claims measured again at the quick scale, and held against what the references say."""

from typing import NamedTuple

from bppsa_nb.papers import experiments
from bppsa_nb.papers.claims import Claim, claims
from bppsa_nb.papers.claims.claim import MISSED, require

WITHIN, OUTSIDE, NOT_HERE = "within", "outside", "not measured here"


class Outcome(NamedTuple):
    """What came of a claim: one of the three words above, what is found now, and what there is to say about it."""

    number: int  # in the report
    claim: Claim
    outcome: str
    found: str
    about: str | None


def expected(claim):
    """Return what the reference at the quick scale says of a claim, the verdict, and the reference.

    A LookupError says what it needs instead: a GPU, the paper's scale, or another command.
    """
    if claim.gpu:
        raise LookupError("needs a GPU")
    if claim.recorded_by:
        raise LookupError(f"`{claim.recorded_by}` measures it")
    with experiments.references():
        try:
            reference = experiments.table(claim.experiment, "quick")
            said, verdict = claim.check(require(reference))
        except (FileNotFoundError, LookupError):
            reference = None
    if reference is None or reference.attrs["provenance"].get("collected"):
        raise LookupError(f"needs the paper's scale: `bppsa-nb figures --only {claim.experiment} --scale paper`")
    if verdict.startswith("not measurable here"):
        raise LookupError(verdict.removeprefix("not measurable here: "))
    return said, verdict, reference


def check(names=None, progress=True):
    """Measure experiments again that claims are held against; yield the `Outcome` of every claim.

    Those that are named are measured now. Without names it is all, but for what was measured here by the very same
    source. A name of no such experiment is a ValueError.
    """
    known = list(dict.fromkeys(claim.experiment for claim in claims()))
    for name in names or []:
        if name not in known:
            raise ValueError(f"no claim is held against {name!r}, but against {', '.join(known)}")
    tables = {}
    for number, claim in enumerate(claims(), 1):
        if names and claim.experiment not in names:
            continue
        try:
            expectation = expected(claim)
        except LookupError as error:
            yield Outcome(number, claim, NOT_HERE, "", str(error))
            continue
        if claim.experiment not in tables:
            measure = experiments.run if names else experiments.measured
            tables[claim.experiment] = measure(claim.experiment, progress=progress)
        yield Outcome(number, claim, *_judge(claim, tables[claim.experiment], *expectation))


def _judge(claim, table, said, verdict, reference):
    try:
        found, now = claim.check(require(table))
    except LookupError:
        return OUTSIDE, "nothing", "the table lacks the rows that the claim is about"
    about = claim.tolerance.differs(table, reference) or claim.tolerance.excess(found, said)
    if not about and now == MISSED != verdict and claim.tolerance.decides:
        about = f"missed, where the reference is {verdict}"
    return OUTSIDE if about else WITHIN, found, about


def run(names=None):
    """Check claims, print what comes of each, and return the exit code: 1 if one is outside its tolerance."""
    count, outside = dict.fromkeys((WITHIN, OUTSIDE, NOT_HERE), 0), []
    for each in check(names):
        count[each.outcome] += 1
        if each.outcome == OUTSIDE:
            outside.append(each)
        print(f"{each.number:>4}  {each.outcome:<18}{each.claim.where}: {each.found or each.about}", flush=True)
    for each in outside:
        print(f"\n{each.number}. {each.claim.where}: {each.claim.says}")
        print(f"   now:       {each.found}\n   reference: {expected(each.claim)[0]}")
        print(f"   outside:   {each.about}\n   tolerance: {each.claim.tolerance.says}: {each.claim.tolerance.why}")
    print("\n" + ", ".join(f"{number} {what}" for what, number in count.items()))
    return int(bool(outside))
