"""What claims say of the references, and where their verdicts turn.

For each claim and its last reference, `verdicts.csv` has the verdict, and for each number in what is said by which
factor it must be smaller or larger for another verdict. Where a change is meant, `python tests/papers/test_verdicts.py`
writes it anew.
"""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from bppsa_nb.papers import check, experiment, experiments, verdicts
from bppsa_nb.papers.experiment import BETTER, MISSED, REPRODUCED, Claim, Figure, compare

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("verdicts.csv")
ENTRIES = verdicts.entries()


def outcome(entry):
    """Return the rows of a claim in `verdicts.csv`: its verdict, and where it turns."""
    module, claim = experiments.load(entry.experiment), entry.claim
    with experiments.references():
        for device, scale in reversed(experiments.recordings(entry.experiment)):
            facts = experiment.facts(module, experiments.table(entry.experiment, scale, device))
            try:
                said, _, verdict = experiment.judge(claim, module, facts)
            except LookupError as error:
                lacks = error
                continue
            break
        else:
            raise LookupError(f"no reference of {entry.experiment} decides it: {lacks}")
    which = entry.experiment, claim.where, claim.says[:60]
    rows = [(*which, verdict, "", "")]
    for name in facts:
        for far in (-4.0, 4.0):  # decades
            near, end = 0.0, held(claim, facts, name, 10**far)
            if end not in (None, verdict):
                for _ in range(12):
                    middle = (near + far) / 2
                    near, far = (near, middle) if held(claim, facts, name, 10**middle) == end else (middle, far)
                rows.append((*which, end, name, f"{10**far:.3g}"))
    return rows


def held(claim, facts, name, factor):
    """Return the verdict where a fact, or all numbers in it, are so many times as large; None if it has none."""
    try:
        found = claim.holds({**facts, name: scaled(facts[name], factor)})
    except (LookupError, TypeError, ValueError, ZeroDivisionError):  # of what says which is which
        return None
    return found if isinstance(found, str) else REPRODUCED if found else MISSED


def scaled(fact, factor):
    if isinstance(fact, dict):
        return {key: scaled(one, factor) for key, one in fact.items()}
    if isinstance(fact, list | tuple):
        return type(fact)(scaled(one, factor) for one in fact)
    if isinstance(fact, pandas.DataFrame):
        return fact.assign(**{column: factor * fact[column] for column in fact.select_dtypes("number")})
    return factor * fact


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.experiment}: {entry.claim.says[:40]}")
def test_verdicts_turn_where_they_did(entry):
    with RECORDED.open(encoding="utf-8", newline="") as file:
        which = [entry.experiment, entry.claim.where, entry.claim.says[:60]]
        recorded = [tuple(row) for row in csv.reader(file) if row[:3] == which]
    assert outcome(entry) == recorded, "is it meant? python tests/papers/test_verdicts.py"


def test_all_are_in_the_report_in_the_order_of_the_papers():
    papers = [entry.paper for entry in ENTRIES]
    assert [entry.number for entry in ENTRIES] == list(range(1, len(ENTRIES) + 1))
    assert sorted(papers, key=[*dict.fromkeys(papers)].index) == papers and len({*papers}) == 6
    with RECORDED.open(encoding="utf-8", newline="") as file:  # none is lost
        recorded = {tuple(row[:3]) for row in csv.reader(file)}
    assert recorded == {(each.experiment, each.claim.where, each.claim.says[:60]) for each in ENTRIES}
    assert f"[{len(ENTRIES)} claims](REPRODUCTION.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert len({(entry.experiment, entry.claim.where, entry.claim.says) for entry in ENTRIES}) == len(ENTRIES)
    places = [entry.claim.where for entry in ENTRIES if entry.paper == papers[0]]
    sections = [float(re.match(r"§(\d+\.?\d*)", where)[1]) for where in places if where.startswith("§")]
    assert sections == sorted(sections) and all(where.startswith("§") for where in places[: len(sections)])


def test_each_tolerance_is_used_and_says_why():
    assert {entry.tolerance for entry in ENTRIES} == set(experiment.TOLERANCES.values())
    assert len({each.says for each in experiment.TOLERANCES.values()}) == len(experiment.TOLERANCES)
    for name in experiments.names():
        assert experiments.load(name).FIGURE.origin in experiment.ORIGINS


def test_of_several_numbers_the_worst_decides():
    assert compare([2.0, 9.1], [1.0, 10.0]) == REPRODUCED
    assert compare([2.0, 8.9], [1.0, 10.0]) == MISSED
    assert compare([2.0, 12.0], [1.0, 10.0]) == BETTER


def test_what_lacks_a_number_decides_nothing(monkeypatch):
    claim = Claim("§1", "It is one.", "1", "{n} of {other[1]}", lambda facts: facts["n"] == 1)
    module = type("Module", (), {"FIGURE": Figure("counted", "", "", claims=[claim])})
    assert experiment.judge(claim, module, {"n": 1, "other": {1: 2}})[::2] == ("1 of 2", REPRODUCED)
    for facts in ({"n": 1}, {"n": 1, "other": {2: 2}}, {"n": float("nan"), "other": {1: 2}}):
        with pytest.raises(LookupError):
            experiment.judge(claim, module, facts)


def test_a_claim_that_no_table_decides_says_what_they_lack():
    entry = next(each for each in ENTRIES if each.experiment == "steps_and_work")
    entry = entry._replace(claim=replace(entry.claim, found="{lnks}"))
    with experiments.references():
        _, said, origins, verdict = verdicts.evaluate(entry)
    assert (origins, verdict) == ([], verdicts.NOT_YET)
    assert said.startswith("`bppsa-nb measure steps_and_work --scale paper` (the table of scale quick does not decide")
    assert "lnks: there is no lnks, but links, steps, " in said
    with pytest.raises(ValueError, match=r"^steps_and_work, §3.6.*: lnks: there is no lnks, but "):
        check.expected(entry)


if __name__ == "__main__":
    with RECORDED.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(row for entry in ENTRIES for row in outcome(entry))
