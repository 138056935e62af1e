"""Claims measured again: errors that are planted in what is measured are found, and nothing else is."""

import pandas
import pytest
from rings import large, more

from bppsa_nb import schedule
from bppsa_nb.machine import files
from bppsa_nb.machine.checks import generator
from bppsa_nb.papers import again, cli, experiments, timelines
from bppsa_nb.papers.claims import claims
from bppsa_nb.papers.claims.tolerance import ALL, EXACT, PRINTED, ROUNDING, TIMED, TRAINED

REFERENCES = files.root() / "data"


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """Give a project folder with all references, in which nothing was measured."""
    (tmp_path / "data").mkdir()
    for name in ("paper", "results"):
        (tmp_path / "data" / name).symlink_to(REFERENCES / name)
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    return tmp_path


def outcomes(*names):
    return {each.number: each.outcome for each in again.check(names, progress=False)}


def one_more_product(monkeypatch):
    """Equation 7: count one ⋄ too many, in scans of one length by one method."""
    traced = timelines.traced

    def counted(n, method, levels):
        run = traced(n, method, levels)
        if (n, method) == (64, "blelloch"):
            object.__setattr__(run, "work", run.work + 1)
        return run

    monkeypatch.setattr(timelines, "traced", counted)


def no_modulo(monkeypatch):
    """Deal layers out in blocks where they are to be dealt out one by one."""
    placed = schedule.pipeline
    policies = {"modulo": "fast_forward"}
    monkeypatch.setattr(
        schedule, "pipeline", lambda *args, policy, **more: placed(*args, policy=policies.get(policy, policy), **more)
    )


def next_seed(monkeypatch):
    monkeypatch.setattr(experiments, "generator", lambda seed, name: generator(seed + 1, name))


@pytest.mark.parametrize(
    "name, plant",
    [
        more("steps_and_work", one_more_product), ("fast_forward", no_modulo), ("reorder_gradients", next_seed),
        # Claims about differences, which hold with any seed: losses tell.
        large("figure_07", next_seed),
    ],
)
def test_a_planted_error_is_found_by_all_claims(monkeypatch, capsys, name, plant):
    found = [number for number, claim in enumerate(claims(), 1) if claim.experiment == name]
    assert outcomes(name) == dict.fromkeys(found, again.WITHIN)
    plant(monkeypatch)
    assert cli.main(["report", "--check", name]) == 1
    told = capsys.readouterr().out
    assert f"0 within, {len(found)} outside, 0 not measured here" in told
    for number in found:
        assert f"\n{number}. {claims()[number - 1].where}" in told


def test_what_holds_exits_with_0_and_what_needs_more_is_said(capsys):
    assert cli.main(["report", "--check", "figure_11", "figure_08", "eighty_epochs"]) == 0
    told = capsys.readouterr().out
    assert "1 within, 0 outside, 16 not measured here" in told and told.count("needs a GPU") == 14
    assert "needs the paper's scale: `bppsa-nb figures --only eighty_epochs --scale paper`" in told


def test_every_claim_is_measured_again_or_says_what_it_needs():
    needs = []
    for claim in claims():
        try:
            said, verdict, reference = again.expected(claim)
        except LookupError as error:
            needs.append(str(error).split(":")[0])
            continue
        assert not claim.gpu and verdict in ("reproduced", "better", "missed")
        assert claim.tolerance.excess(said, said) is claim.tolerance.differs(reference, reference) is None
        assert not reference.attrs["provenance"].get("collected")
    counted = {need: needs.count(need) for need in needs}
    assert counted == {
        "needs a GPU": 38,
        "needs many machines": 4,
        "needs the paper's scale": 2,
        "`python benchmarks/jacobians.py` measures it": 3,
        "`bppsa-nb figures --only retraining --scale paper` measures it": 1,
    }


def test_what_the_same_committed_source_measured_is_measured_again_only_by_name(monkeypatch, describe_as):
    measured, module = [], experiments.load("figure_11")
    measure, judged = module.measure, [each for each in claims() if each.experiment == "figure_11"]
    monkeypatch.setattr(module, "measure", lambda *args: measured.append(1) or measure(*args))
    monkeypatch.setattr(again, "claims", lambda: judged)
    same = {"commit": 40 * "0", "dirty": False}
    describe_as(**same)
    for names, times in (((), 1), ((), 1), (("figure_11",), 2), ((), 2)):
        assert outcomes(*names) == {1: again.WITHIN} and len(measured) == times
    for other in ({"commit": 40 * "1"}, {"cores": 99}, {"versions": {}}, {"dirty": True}, {}, {"dirty": None}):
        measured.clear()
        describe_as(**same | other)
        outcomes()
        assert len(measured) == 1, other


def test_names_that_no_claim_is_held_against_are_refused(capsys):
    with pytest.raises(ValueError, match="no claim is held against 'figure_5', but against steps_and_work, crossover"):
        list(again.check(["figure_5"]))
    assert cli.main(["report", "--check", "figure_5"]) == 1
    assert cli.main(["report", "--check", "--output", "mine.md"]) == 1
    assert "leave out --output" in capsys.readouterr().err


def test_a_claim_that_held_and_is_missed_is_outside_unless_the_machine_decides(monkeypatch):
    (claim,) = [each for each in claims() if each.experiment == "figure_11"]
    for tolerance, outcome in ((PRINTED, again.OUTSIDE), (TIMED, again.WITHIN)):
        judged = [claim.__class__(*["-"] * 4, "figure_11", lambda table: ("8", "missed"), tolerance)]
        monkeypatch.setattr(again, "claims", lambda judged=judged: judged)
        monkeypatch.setattr(again, "expected", lambda claim: ("8", "reproduced", None))
        assert outcomes("figure_11") == {1: outcome}


@pytest.mark.parametrize(
    "tolerance, expected, within, outside",
    [
        (PRINTED, "4 steps", ["4 steps"], ["5 steps", "4 step"]),
        (ROUNDING, "1.0e-07 at most", ["3.0e-07 at most", "3.4e-08 at most"], ["3.1e-07 at most", "0 at most"]),
        (TIMED, "H = 20: 1,000 µs", ["H = 20: 2,999 µs", "H = 20: 334 µs"], ["H = 20: 3,001 µs", "H = 61: 1,000 µs"]),
        (TRAINED, "−0.7 to +0.2 points", ["2.2 to 3.1 points", "-2.7 points"], ["−0.7 to 3.3 points"]),
        (TIMED, "2 to 3 times", ["3 times", "1 to 9 times"], ["2 to 10 times", "never", "2 to 3 to 4 times"]),
        (TIMED, "1.5×", [], ["−1.5×", "0×"]),
    ],
)
def test_numbers_may_be_so_far_apart(tolerance, expected, within, outside):
    for found in within:
        assert tolerance.excess(found, expected) is None, found
    for found in outside:
        assert tolerance.excess(found, expected), found


def test_every_cell_counts_where_the_tolerance_says_so():
    reference = pandas.DataFrame({"n": [1, 2], "kind": ["a", None], "s": [0.5, float("nan")], "late": [True, False]})
    assert EXACT.differs(reference.copy(), reference) is None
    assert EXACT.differs(reference[["s", "n", "late", "kind"]], reference) is None
    assert EXACT.differs(reference.assign(s=[0.5 * (1 + 1e-7), float("nan")]), reference) is None
    others = {"n": [1, 3], "kind": ["a", "b"], "s": [0.5 * (1 + 1e-5), float("nan")], "late": [True, True]}
    for column, values in (*others.items(), ("s", [float("nan")] * 2)):
        assert EXACT.differs(reference.assign(**{column: values}), reference).startswith(f"{column} in row")
        assert TIMED.differs(reference.assign(**{column: values}), reference) is None
    assert "2 rows of kind, late, n, s" in EXACT.differs(reference[:1], reference)
    assert "kind, late, n, not 2 rows" in EXACT.differs(reference.drop(columns="s"), reference)


def test_losses_count_where_the_claim_is_about_their_differences():
    reference = pandas.DataFrame({"loss_linear": [2.0, 1.5], "seconds": [0.1, 0.2]})
    assert ROUNDING.differs(reference.assign(loss_linear=[2.0, 1.501], seconds=9.0), reference) is None
    assert ROUNDING.differs(reference.assign(loss_linear=[2.0, 1.502]), reference).startswith("loss_linear in row 2")
    assert ROUNDING.differs(reference[:1], reference) is None  # other backends on another machine


def test_each_tolerance_is_used_and_says_why():
    assert {claim.tolerance for claim in claims()} == set(ALL)
    assert len({each.says for each in ALL}) == len(ALL) and all(each.why for each in ALL)
