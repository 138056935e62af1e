import pandas
import pytest

from bppsa_nb import experiments, files, report
from bppsa_nb.experiments import provenance

GPU = {"device": "a-gpu", "gpu": "A GPU"}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """Give a project folder with the published tables and no recordings."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "paper").symlink_to(files.root() / "data" / "paper")
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def on_a_gpu(monkeypatch):
    describe = provenance.describe
    monkeypatch.setattr(provenance, "describe", lambda *args: describe(*args) | GPU)


def claim(says):
    (found,) = [each for each in report.claims() if each.says.startswith(says) and each.paper == report.PAPER]
    return found


def timed(forward, bp, bppsa, T=1000, B=16):
    rows = [{"method": "linear", "backward": bp}, {"method": "blelloch", "backward": bppsa}]
    table = pandas.DataFrame(rows).assign(backend="cuda", T=T, B=B, forward=forward, backward_std=0.0, rounds=3)
    table.attrs["length_while_B_varies"] = 1000
    return table


def counted(steps):
    n = [2, 4, 8]
    table = pandas.DataFrame({"n": n, "method": "blelloch", "p": float("nan"), "steps": steps})
    return table.assign(work=[2, 6, 14], mm=[0, 1, 4])


FIRST = "With a worker for every"


def test_without_recordings_every_claim_says_what_to_run(project):
    report.write()
    text = (project / "REPRODUCTION.md").read_text(encoding="utf-8")
    for each in report.claims():
        assert each.experiment in experiments.names()
        ours, origin, verdict = report.hold(each)
        assert origin is None
        assert verdict == (report.NEEDS_GPU if each.gpu else report.NOT_YET)
        assert f"bppsa-nb figures --only {each.experiment} --scale" in ours and ours in text


def test_rows_have_as_many_cells_as_the_head(project):
    path = project / "elsewhere" / "report.md"
    report.write(path)
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {7}
    assert len(rows) == len(report.claims()) + 2 * 3


@pytest.mark.parametrize("steps, verdict", [([3, 5, 7], report.REPRODUCED), ([3, 5, 8], report.MISSED)])
def test_counted_claims_are_held_against_the_table(steps, verdict):
    experiments.record(counted(steps), "steps_and_work", "quick", 0)
    ours, origin, found = report.hold(claim(FIRST))
    assert found == verdict
    assert ours.endswith(f"{steps[-1]} at n = 8") and origin["name"] == "steps_and_work"
    row = next(line for line in report.text().splitlines() if FIRST in line)
    assert row.endswith(f"| {provenance.cpu_name()} ({provenance.cores()} cores), quick, synthetic | **{verdict}** |")


def test_the_paper_s_scale_comes_before_the_quick_one():
    experiments.record(counted([3, 5, 7]), "steps_and_work", "paper", 0)
    experiments.record(counted([3, 5, 8]), "steps_and_work", "quick", 0)
    assert report.hold(claim(FIRST))[2] == report.REPRODUCED


OVERALL = "Training the RNN at T = 1000"


def test_a_cpu_s_speedup_is_shown_but_decides_nothing():
    experiments.record(timed(1.0, 1.0, 19.0), "figure_08", "paper", 0)
    ours, origin, verdict = report.hold(claim(OVERALL))
    assert (ours, verdict) == ("0.1×", report.NEEDS_GPU) and origin["gpu"] is None


@pytest.mark.parametrize(
    "bppsa, verdict", [(0.1, report.BETTER), (1.0, report.REPRODUCED), (2.0, report.MISSED)]
)
def test_a_gpu_s_speedup_decides(on_a_gpu, bppsa, verdict):
    experiments.record(timed(1.0, 2 * 2.73 - 1, bppsa), "figure_08", "paper", 0)
    ours, origin, found = report.hold(claim(OVERALL))
    assert found == verdict and origin["gpu"] == "A GPU"


def test_a_gpu_s_quick_grid_is_not_enough(on_a_gpu):
    experiments.record(timed(1.0, 9.0, 1.0), "figure_08", "quick", 0)
    assert report.hold(claim("The largest overall"))[2] == report.NOT_YET


def test_a_gpu_comes_before_a_cpu(monkeypatch):
    experiments.record(timed(1.0, 1.0, 19.0), "figure_08", "paper", 0)
    describe = provenance.describe
    monkeypatch.setattr(provenance, "describe", lambda *args: describe(*args) | GPU)
    experiments.record(timed(1.0, 9.0, 1.0), "figure_08", "paper", 0)
    assert report.hold(claim(OVERALL))[:1] == ("5×",)


def test_rows_of_the_printed_tables_are_held_against_the_same_rows_of_ours(on_a_gpu):
    ours = {"T": [1000], "B": [16], "source": ["here"], "table": ["table_4"]}
    seconds = {"forward": [1.0], "baseline": [10.0], "bppsa": [2.0]}
    experiments.record(pandas.DataFrame(ours | seconds), "tables_4_5", "paper", 0)
    row = claim("One epoch at T = 1000, B = 16")
    assert row.number == "53.33 s / 29.29 s: 1.82× overall, 8.01× backward (V100)"
    assert report.hold(row)[0] == "5× overall, 9× backward"
    assert report.hold(row)[2] == report.BETTER
    assert report.hold(claim("One epoch at T = 30000"))[1] is None


def test_of_several_numbers_the_worst_decides():
    assert report.compare([2.0, 9.1], [1.0, 10.0]) == report.REPRODUCED
    assert report.compare([2.0, 8.9], [1.0, 10.0]) == report.MISSED
    assert report.compare([2.0, 12.0], [1.0, 10.0]) == report.BETTER


def test_counted_claims_hold_for_scans_that_run(monkeypatch):
    sizes = {"steps_and_work": 64, "space": 16, "crossover": (30,)}
    for name in ("steps_and_work", "space", "crossover", "figure_11"):
        if name in sizes:
            monkeypatch.setattr(experiments.load(name), "SCALES", {"quick": sizes[name]})
        experiments.run(name, progress=False)
        verdicts = [report.hold(each)[2] for each in report.claims() if each.experiment == name]
        assert set(verdicts) == {report.REPRODUCED}, name


@pytest.mark.parametrize("difference, verdict", [(1e-6, report.REPRODUCED), (2e-5, report.MISSED)])
def test_the_worst_gradient_of_all_parameters_and_iterations_decides(difference, verdict):
    table = pandas.DataFrame({"iteration": [0, 1], "T": 5, "loss_linear": 2.0, "loss_blelloch": 2.0})
    table = table.assign(backend="numpy", difference_a=[0.0, difference], difference_b=1e-8)
    experiments.record(table, "figure_07", "quick", 0)
    ours, _, found = report.hold(claim("BPPSA reconstructs BP"))
    assert found == verdict and ours.startswith(f"{difference:.1e} at most, in 2 iterations")
    assert report.hold(claim("Per iteration"))[2] == report.REPRODUCED


@pytest.mark.parametrize("factor, verdict", [(3, report.REPRODUCED), (9, report.MISSED)])
def test_the_tree_may_not_round_much_worse_than_the_loop(factor, verdict):
    errors = {"linear": 1e-7, "blelloch": factor * 1e-7, "truncated": 1e-7}
    table = pandas.DataFrame({"method": errors.keys(), "error": errors.values()})
    experiments.record(table.assign(chain="norm-preserving", T=10, backend="cpu"), "error_over_length", "quick", 0)
    assert report.hold(claim("Numerical differences"))[2] == verdict


@pytest.mark.parametrize("bppsa, verdict", [(1.0, report.REPRODUCED), (40.0, report.MISSED)])
def test_a_speedup_that_should_rise_must(on_a_gpu, bppsa, verdict):
    short, long = timed(1.0, 2.0, 1.0, T=10), timed(1.0, 20.0, bppsa)
    table = pandas.concat([long, short], ignore_index=True)
    table.attrs = short.attrs
    experiments.record(table, "figure_08", "paper", 0)
    ours, _, found = report.hold(claim("The backward speedup grows"))
    assert found == verdict and ours.startswith("2× at T = 10 to ")
