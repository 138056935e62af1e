"""Claims measured again: errors that are planted in what is measured are found, and nothing else is."""

import pandas
import pytest
from rings import large, more
from texts import beside

from bppsa_nb import schedule
from bppsa_nb.machine import files
from bppsa_nb.machine.checks import generator
from bppsa_nb.papers import check, cli, experiments, timelines
from bppsa_nb.papers.experiment import TOLERANCES
from bppsa_nb.papers.verdicts import entries

REFERENCES, TABLES = files.root() / "data", beside(__file__)


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """Give a project folder with all references, in which nothing was measured."""
    (tmp_path / "data").mkdir()
    for name in ("paper", "results"):
        (tmp_path / "data" / name).symlink_to(REFERENCES / name)
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    return tmp_path


def outcomes(*names):
    return {each.entry.number: each.outcome for each in check.check(names, progress=False)}


def one_more_product(monkeypatch):
    """Equation 7: count one ⋄ too many, in scans of one length by one method."""
    traced = timelines.traced

    def counted(n, method, *how):
        run = traced(n, method, *how)
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


@pytest.mark.parametrize("name, plant", [
    more("steps_and_work", one_more_product),  # every cell of the table counts for all of its claims
    ("fast_forward", no_modulo), ("reorder_gradients", next_seed),
    large("figure_07", next_seed),  # claims about differences, which hold with any seed: losses tell
])  # fmt: skip
def test_a_planted_error_is_found_and_nothing_else(monkeypatch, capsys, name, plant):
    entries_of = [entry for entry in entries() if entry.experiment == name]
    assert outcomes(name) == {entry.number: check.WITHIN for entry in entries_of}
    plant(monkeypatch)
    assert cli.main(["check", name]) == 1
    told = capsys.readouterr().out
    assert f"0 within, {len(entries_of)} outside, 0 not measured here" in told
    for entry in entries_of:
        assert f"\n{entry.number}. {name}, {entry.claim.where}" in told


def test_what_holds_exits_with_0_and_what_needs_more_is_said(capsys):
    assert cli.main(["check", "figure_11", "figure_08", "eighty_epochs"]) == 0
    told, names = capsys.readouterr().out, ("figure_08", "eighty_epochs")
    others = [entry for entry in entries() if entry.experiment in names]
    assert f"1 within, 0 outside, {len(others)} not measured here" in told
    assert told.count("needs a GPU") == sum(entry.claim.gpu for entry in others)
    assert "needs the paper's scale: `bppsa-nb measure eighty_epochs --scale paper`" in told


def test_every_claim_is_measured_again_or_says_what_it_needs():
    needs = []
    for entry in entries():
        try:
            judged, reference = check.expected(entry)
        except LookupError as error:
            needs.append(str(error).split(":")[0])
            continue
        assert not entry.claim.gpu and judged[2] in ("reproduced", "better", "missed")
        assert check.apart(entry.tolerance, judged, judged) is None
        assert check.cells_apart(entry.tolerance, reference, reference) is None
    assert {need: needs.count(need) for need in needs} == TABLES["needs"]


def test_what_the_same_source_measured_is_measured_again_only_by_name(monkeypatch, describe_as):
    measured, module = [], experiments.load("figure_11")
    measure, entry = module.measure, next(each for each in entries() if each.experiment == "figure_11")
    monkeypatch.setattr(module, "measure", lambda *args: measured.append(1) or measure(*args))
    monkeypatch.setattr(check, "entries", lambda: [entry])
    same = {"source": "one"}
    describe_as(**same)
    for names, times in (((), 1), ((), 1), (("figure_11",), 2), ((), 2)):
        assert outcomes(*names) == {entry.number: check.WITHIN} and len(measured) == times
    for other in ({"source": "another"}, {"cores": 99}, {"versions": {}}):
        measured.clear()
        describe_as(**same | other)
        outcomes()
        assert len(measured) == 1, other


def test_a_lost_reference_is_no_claim_that_needs_more(project, capsys):
    (project / "data/results").unlink()
    assert cli.main(["check", "figure_11"]) == 1
    assert "bppsa-nb: no reference of figure_11 at scale quick for any machine" in capsys.readouterr().err


def test_names_that_no_claim_is_held_against_are_refused(capsys):
    with pytest.raises(ValueError, match="no claim is held against 'figure_5', but against "):
        list(check.check(["figure_5"]))
    assert cli.main(["check", "figure_5"]) == 1
    assert "no claim is held against 'figure_5'" in capsys.readouterr().err


@pytest.mark.parametrize("origin, then, within, outside", TABLES["apart"])
def test_numbers_may_be_so_far_apart(origin, then, within, outside):
    tolerance, then = TOLERANCES[origin], ("then", {"a": then, "b": [1, 1]}, "reproduced")
    for numbers in within:
        assert check.apart(tolerance, ("now", {"a": numbers, "b": [1, 1]}, "reproduced"), then) is None, numbers
    for numbers in outside:
        assert check.apart(tolerance, ("now", {"a": numbers, "b": [1, 1]}, "reproduced"), then), numbers


def test_a_size_that_only_one_machine_has_is_not_compared():
    """Memory bounds products at B = 1 and 4 here, at B = 1 to 16 there."""
    now, then = {("B", 1): [0.9], ("B", 4): [0.2]}, {("B", 1): [0.8], ("B", 4): [0.3], ("B", 16): [0.1]}
    assert check.apart(TOLERANCES["timed"], ("two", now, "missed"), ("three", then, "missed")) is None
    assert check.apart(TOLERANCES["trained"], ("two", now, "missed"), ("three", then, "missed"))
    del now["B", 1], now["B", 4]
    assert check.apart(TOLERANCES["timed"], ("two", now, "missed"), ("three", then, "missed"))


@pytest.mark.parametrize("origin, outside", [("trained", True), ("timed", False)])
def test_a_claim_that_held_and_is_missed_is_outside_unless_the_machine_decides(origin, outside):
    now, then = ("8", {"a": [8]}, "missed"), ("8", {"a": [8]}, "reproduced")
    assert bool(check.apart(TOLERANCES[origin], now, then)) == outside
    assert check.apart(TOLERANCES[origin], then, now) is check.apart(TOLERANCES[origin], now, now) is None


def test_every_cell_counts_where_the_tolerance_says_so():
    reference = pandas.DataFrame({"n": [1, 2], "kind": ["a", None], "s": [0.5, float("nan")], "late": [True, False]})

    def differs(table, origin="counted"):
        return check.cells_apart(TOLERANCES[origin], table, reference)

    assert differs(reference.copy()) is None and differs(reference[["s", "n", "late", "kind"]]) is None
    assert differs(reference.assign(s=[0.5 * (1 + 1e-7), float("nan")])) is None
    others = {"n": [1, 3], "kind": ["a", "b"], "s": [0.5 * (1 + 1e-5), float("nan")], "late": [True, True]}
    for column, values in (*others.items(), ("s", [float("nan")] * 2)):
        assert differs(reference.assign(**{column: values})).startswith(f"{column} in row")
        assert differs(reference.assign(**{column: values}), "timed") is None
    assert "2 rows of kind, late, n, s" in differs(reference[:1])
    assert "kind, late, n, not 2 rows" in differs(reference.drop(columns="s"))


def test_losses_count_where_the_claim_is_about_their_differences():
    reference = pandas.DataFrame({"loss_linear": [2.0, 1.5], "seconds": [0.1, 0.2]})

    def differs(table):
        return check.cells_apart(TOLERANCES["rounding"], table, reference)

    assert differs(reference.assign(loss_linear=[2.0, 1.501], seconds=9.0)) is None
    assert differs(reference.assign(loss_linear=[2.0, 1.502])).startswith("loss_linear in row 2")
    assert differs(reference[:1]) is None  # other backends on another machine
