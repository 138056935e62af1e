import pandas
import pytest
from texts import beside

from bppsa_nb.machine import files
from bppsa_nb.papers import bppsa, experiments, provenance, report, verdicts
from bppsa_nb.papers.experiment import BETTER, MISSED, REPRODUCED
from bppsa_nb.papers.verdicts import NEEDS_GPU, NOT_YET, entries
from bppsa_nb.papers.words import times


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """Give a project folder with the published tables and no recordings."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "paper").symlink_to(files.root() / "data" / "paper")
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    return tmp_path


def entry(says):
    (found,) = [each for each in entries() if each.claim.says.startswith(says) and each.paper == bppsa.HEADING]
    return found


def decide(entry):
    """Evaluate a claim; return what decides."""
    _, ours, origins, verdict = verdicts.evaluate(entry)
    return ours.split("<br>")[0], origins[0] if origins else None, verdict


def timed(forward, bp, bppsa, T=1000, B=16, backend="cuda"):
    rows = [{"method": "linear", "backward": bp}, {"method": "blelloch", "backward": bppsa}]
    return pandas.DataFrame(rows).assign(backend=backend, T=T, B=B, forward=forward, backward_std=0.0, rounds=3)


def counted(steps):
    n = [2, 4, 8]
    table = pandas.DataFrame({"n": n, "method": "blelloch", "p": float("nan"), "steps": steps, "part": "steps"})
    columns = "H", "linear", "blelloch", "matrices", "activations"
    return table.assign(work=[2, 6, 14], mm=[0, 1, 4], **dict.fromkeys(columns, float("nan")))


FIRST = "With a worker for every"


def test_without_recordings_every_claim_says_what_to_run(project):
    report.write()
    text, names = (project / "REPRODUCTION.md").read_text(encoding="utf-8"), experiments.names()
    for each in entries():
        assert each.experiment in names
        ours, origin, verdict = decide(each)
        assert origin is None
        assert verdict == (NEEDS_GPU if each.claim.gpu else NOT_YET)
        assert f"`bppsa-nb measure {each.experiment}" in ours and ours in text


def test_rows_have_as_many_cells_as_the_head(project):
    path = project / "elsewhere" / "report.md"
    report.write(path)
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {7, 10}
    papers = {each.paper for each in entries()}
    assert len(rows) == len(entries()) + 2 * (len(papers) + 1)  # the head of every paper's, and of the recordings'


@pytest.mark.parametrize("steps, verdict", [([3, 5, 7], REPRODUCED), ([3, 5, 8], MISSED)])
def test_counted_claims_are_evaluated_on_the_table(steps, verdict, committed):
    experiments.record(counted(steps), "steps_and_work", "quick", 0)
    ours, origin, found = decide(entry(FIRST))
    assert found == verdict
    assert ours.endswith(f"{steps[-1]} at n = 8") and origin["name"] == "steps_and_work"
    row = next(line for line in report.text().splitlines() if FIRST in line)
    machine = f"{provenance.cpu_name()} ({provenance.cores()} cores), quick, synthetic"
    assert row.endswith(f"| {machine}, measured here | **{verdict}** | every cell |")
    with experiments.references():
        experiments.record(counted(steps), "steps_and_work", "quick", 0)
        row = next(line for line in report.text().splitlines() if FIRST in line)
    assert row.endswith(f"| {machine} | **{verdict}** | every cell |")


def test_the_project_s_page_is_of_references_and_another_one_of_what_was_measured_here(project, committed):
    with experiments.references():
        experiments.record(counted([3, 5, 8]), "steps_and_work", "paper", 0)
    experiments.record(counted([3, 5, 7]), "steps_and_work", "quick", 0)
    assert report.write() == project / "REPRODUCTION.md"
    assert report.write(project / "mine.md") == project / "mine.md"
    for path, ours in (("REPRODUCTION.md", "8 at n = 8"), ("mine.md", "7 at n = 8")):
        (row,) = [line for line in (project / path).read_text(encoding="utf-8").splitlines() if FIRST in line]
        assert ours in row


def test_the_paper_s_scale_comes_before_the_quick_one():
    experiments.record(counted([3, 5, 7]), "steps_and_work", "paper", 0)
    assert "quick" not in verdicts.evaluate(entry(FIRST)).said
    experiments.record(counted([3, 5, 8]), "steps_and_work", "quick", 0)
    ours, origin, verdict = decide(entry(FIRST))
    assert (origin["scale"], verdict) == ("paper", REPRODUCED)
    _, both, origins, verdict = verdicts.evaluate(entry(FIRST))
    paper, quick = both.split("<br>quick: ")
    assert paper == ours and ours.endswith("7 at n = 8") and quick.endswith("8 at n = 8")
    assert [each["scale"] for each in origins] == ["paper", "quick"] and verdict == REPRODUCED
    assert both in report.text()


OVERALL = "Training the RNN at T = 1000"


@pytest.mark.parametrize("gpu, backend, scale, bppsa, verdict", beside(__file__)["speedups"])
def test_a_speedup_is_shown_and_decided_by_a_gpu_at_the_paper_s_scale(describe_as, gpu, backend, scale, bppsa, verdict):
    describe_as(device="it", gpu=gpu or None)
    experiments.record(timed(1.0, 2 * 2.73 - 1, bppsa, backend=backend), "figure_08", scale, 0)
    ours, origin, found = decide(entry(OVERALL))
    assert ours == times(2 * 2.73 / (1 + bppsa)) and found == eval(verdict) and origin["gpu"] == (gpu or None)


def test_a_gpu_comes_before_a_cpu(describe_as):
    experiments.record(timed(1.0, 1.0, 19.0, backend="cpu"), "figure_08", "paper", 0)
    describe_as(device="a-gpu", gpu="A GPU")
    experiments.record(timed(1.0, 9.0, 1.0), "figure_08", "paper", 0)
    assert decide(entry(OVERALL))[:1] == ("5×",)


def test_rows_of_the_printed_tables_are_compared_with_the_same_rows_of_ours(describe_as):
    describe_as(device="a-gpu", gpu="A GPU")
    experiments.record(timed(1.0, 9.0, 1.0), "figure_08", "paper", 0)
    row = entry("One epoch at T = 1000, B = 16")
    assert row.claim.number == "53.33 s / 29.29 s: 1.82× overall, 8.01× backward (V100)"
    assert decide(row)[0] == "2e+04 s / 4e+03 s: 5× overall, 9× backward"
    assert decide(row)[2] == BETTER
    assert decide(entry("One epoch at T = 30000"))[1] is None


@pytest.mark.parametrize("factor, verdict", [(3, REPRODUCED), (9, MISSED)])
def test_the_tree_may_not_round_much_worse_than_the_loop(factor, verdict):
    errors = {"linear": 1e-7, "blelloch": factor * 1e-7, "truncated": 1e-7}
    table = pandas.DataFrame({"method": errors.keys(), "error": errors.values()})
    experiments.record(table.assign(chain="norm-preserving", T=10, backend="cpu"), "error_over_length", "quick", 0)
    assert decide(entry("Numerical differences"))[2] == verdict


@pytest.mark.parametrize("bppsa, verdict", [(1.0, REPRODUCED), (40.0, MISSED)])
def test_a_speedup_that_should_rise_must(describe_as, bppsa, verdict):
    describe_as(device="a-gpu", gpu="A GPU")
    short, long = timed(1.0, 2.0, 1.0, T=10), timed(1.0, 20.0, bppsa)
    table = pandas.concat([long, short], ignore_index=True)
    experiments.record(table, "figure_08", "paper", 0)
    ours, _, found = decide(entry("The backward speedup grows"))
    assert found == verdict and ours.startswith("2× at T = 10 and ")
