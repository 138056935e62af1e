"""The benchmarks as programs: what they count, record and refuse. Nothing here depends on how long anything takes."""

import shutil
import subprocess
import sys
from pathlib import Path

import comparisons
import growth
import numpy as np
import on_driver
import on_gpu
import pandas
import peers
import pytest
import run
import stages
import turns
from rings import more

import bppsa_nb as bp
from bppsa_nb.chains import plan
from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, provenance
from bppsa_nb.papers.bppsa.on_gpu import forward

pytestmark = pytest.mark.usefixtures("project")
FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def test_turns_are_taken_in_rounds_that_count_but_for_the_first(monkeypatch):
    now, order = [0.0], []
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])

    def stage(name, *seconds):
        def run():
            order.append(name)
            now[0] += seconds[min(order.count(name), len(seconds)) - 1]

        return run

    competitors = {"a": [stage("a", 100, 1), stage("+", 2)], "b": [stage("b", 9, 6)], "slow": [stage("s", 99)]}
    timed = turns.take_turns(competitors, seconds=90, rounds=(2, 12))  # 30 for each
    assert {name: np.unique(rounds, axis=0).tolist() for name, rounds in timed.items()} == {
        "a": [[1, 2]], "b": [[6]], "slow": [[99]]
    }  # fmt: skip
    assert {name: len(rounds) for name, rounds in timed.items()} == {"a": 10, "b": 5, "slow": 1}
    rounds = "".join(order).replace("+", "")[6:]  # in changing order, everybody once
    assert {rounds[i : i + 2] for i in range(0, 10, 2)} == {"ab", "ba"}
    assert turns.quartiles("step", np.array([1.0, 2, 3, 4, 9])) == {"step": 3, "step_low": 2, "step_high": 4}


def small(cell, layers=1):
    return comparisons.problem(cell, 12, 3, 5, 4, np.random.default_rng(0), layers)


@pytest.mark.peers
@pytest.mark.parametrize("library", ["torch.nn", "bppsa_nb.torch"])
@pytest.mark.parametrize("cell", ["RNN", "GRU"])
def test_our_step_and_pytorch_s_train_alike(cell, library):
    import torch

    model, x, y = small(cell)
    theirs = peers.torch_step(model, x, y, flush=True, library=library)
    ours = peers.our_step(model, x, y, "chunked", "cpu")
    kept = {}
    step = torch.optim.Adam.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", lambda self: (kept.setdefault("optimizer", self), step(self))[1])
        for _ in range(3):
            for stage in (*theirs, *ours):
                stage()
    found = [param.detach().numpy() for group in kept["optimizer"].param_groups for param in group["params"]]
    for name, param in zip(model.params, found, strict=True):
        np.testing.assert_allclose(param, model.params[name], atol=1e-7, rtol=0, err_msg=name)
    assert torch.tensor(1e-40).mul(0.5).item() > 0  # subnormal numbers are as they were


@pytest.mark.peers
@pytest.mark.parametrize("cell, layers", [("RNN", 1), ("GRU", 1), ("GRU", 3)])
def test_jax_s_step_trains_alike(cell, layers):
    model, x, y = small(cell, layers)
    (turn,) = peers.jax_step(model, x, y, unroll=2)  # takes its first step here, to compare losses
    trainer = bp.Trainer(model, bp.Adam(lr=1e-5), method="linear", backend="cpu")
    ours = np.array([trainer.step(x, y) for _ in range(6)])
    theirs = np.array([float(turn()) for _ in range(5)])
    assert abs(ours[1:] - theirs).max() < 1e-6 < abs(ours[1:] - ours[0]).min()


@pytest.mark.peers
def test_a_peer_with_another_loss_does_not_compete(monkeypatch):
    monkeypatch.setattr(peers, "cross_entropy", lambda logits, y: (1e9, None))
    with pytest.raises(AssertionError, match="PyTorch's loss is"):
        peers.torch_step(*small("RNN"))


def test_peers_that_are_not_installed_do_not_compete(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "jax", None)
    assert peers.installed() == {}
    monkeypatch.setattr(comparisons, "COMPARISONS", {"a step": (comparisons.training("RNN"), 6, 2, 3)})
    rows = comparisons.compare(["a step"], "cpu", {}, 0, lambda line: None)
    assert [row["name"] for row in rows][:2] == ["ours: auto, cpu", "ours: linear, cpu"]
    assert all(row["name"].startswith("ours") for row in rows) and rows[0]["ratio"] == 1


def test_the_grid_has_the_sizes_of_figures_8_and_9():
    points = comparisons.grid_points("paper")
    assert len(set(points)) == len(points) == 3 * (8 + 7 + 9)
    rnn, gru = ([point[1:4] for point in points if point[0] == cell] for cell in ("RNN", "GRU"))
    for H in (20, 32, 64):
        assert {(10, 16, H), (30000, 16, H), (1000, 2, H), (1000, 256, H)} <= set(rnn)
        assert {(259, 16, H), (1034, 64, H)} <= set(gru)
    assert {(T, I) for cell, T, _, _, I in points if cell == "GRU"} == {(259, 38), (517, 24), (1034, 12)}
    quick = comparisons.grid_points("quick")
    assert 15 < len(quick) < len(points) / 2 and max(point[1] for point in quick) == 1034


def test_regret_is_the_time_of_what_auto_takes_over_the_best(monkeypatch):
    seconds = {"linear": [[3.0], [3]], "chunked": [[2.0], [2]], "blelloch": [[8.0], [8]]}
    monkeypatch.setattr(comparisons, "take_turns", lambda calls, *args, **how: {m: np.array(seconds[m]) for m in calls})
    table = pandas.DataFrame(comparisons.regret([(5, 2, 3)], ["numpy"], 1, lambda line: None))
    assert table["over_best"].tolist() == 2 * [1.5, 1.0, 4.0]
    taken = [bp.explain(5, 2, 3, backend="numpy", weights=weights).method for weights in (1, 0)]
    assert table.loc[table["taken"], "method"].tolist() == taken


@pytest.mark.outer
@pytest.mark.skipif(sys.platform != "linux", reason="memory is Linux's own count")
def test_memory_is_that_of_a_step():
    point = {"over": "T", "T": 40_000, "B": 1, "H": 20, "layers": 1}
    states = 4 * 40_000 * 20
    assert states < growth.memory(point, "ours") < 2 * states
    assert growth.memory(point, "ours, checkpoint_every=√T") < states / 4


def test_where_there_is_no_gpu_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr(run.backends, "cuda_available", lambda: False)
    monkeypatch.setattr(provenance, "gpu_name", lambda: None)
    for arguments, said in (
        (["--device", "cuda"], "--device cuda needs an NVIDIA GPU"),
        (["--device", "cpu", "--only", "issue"], "run it with --device cuda"),
        (["--only", "nothing"], "invalid choice: 'nothing'"),
    ):
        with pytest.raises(SystemExit) as stop:
            run.main(arguments)
        assert stop.value.code == 2 and said in capsys.readouterr().err


def test_what_stands_in_is_no_gpu_and_a_cpu_s_times_are_not_filed_under_one(monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="not what stands in"):
        patch.setattr(run.backends, "emulated", lambda: True)
        patch.setattr(run.backends, "cuda_available", lambda: True)
        run.check_device("cuda", ["chain"])
    monkeypatch.setattr(provenance, "gpu_name", lambda: "NVIDIA H200")
    with pytest.raises(RuntimeError, match="filed under its GPU, NVIDIA H200; set CUDA_VISIBLE_DEVICES="):
        run.check_device("cpu", ["chain"])


@pytest.fixture
def tiny(monkeypatch):
    """Give the command, with sizes that take no time."""
    sizes = {name: (prepare, 6, 2, 3) for name, (prepare, *_) in comparisons.COMPARISONS.items()}
    monkeypatch.setattr(comparisons, "COMPARISONS", sizes)
    monkeypatch.setattr(comparisons, "grid_points", lambda scale: [("RNN", 5, 2, 3, 1)])
    monkeypatch.setattr(comparisons, "regret_points", lambda scale: [(5, 2, 3)])
    monkeypatch.setattr(comparisons, "whole_points", lambda scale: [("GRU", 5, 2, 3, 1, "named")])
    monkeypatch.setattr(growth, "points", lambda scale: [{"over": "T", "T": 9, "B": 2, "H": 3, "layers": 2}])
    monkeypatch.setattr(growth, "memory", lambda point, name: 2**20)
    monkeypatch.setattr(run.peers, "installed", dict)
    monkeypatch.setattr(provenance, "gpu_name", lambda: None)
    monkeypatch.setitem(run.SECONDS, "quick", dict.fromkeys(run.SECONDS["quick"], 0.0))
    return run


def test_one_command_records_every_table(tiny, capsys):
    tiny.main(["--device", "cpu", "--quick"])
    said = capsys.readouterr().out
    for name in ("compare", "whole", "growth", "grid", "auto_regret"):
        assert f"recorded in data/measured/cpu/{name}.quick.csv" in said
        table = experiments.table(name, "quick")
        assert len(table) and table.attrs["provenance"]["backend"] in (["cpu", "numpy"], "cpu", ["cpu"])
    assert set(experiments.table("compare", "quick")["comparison"]) == set(tiny.comparisons.COMPARISONS)
    assert experiments.recordings("kernel_issue") == []
    tiny.main(["--device", "cpu", "--quick", "--only", "rnn"])  # a part of the comparisons is not recorded as all
    assert "not recorded" in capsys.readouterr().out


def test_the_command_needs_no_pandas():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['pandas', 'jax', 'torch', 'tqdm', 'matplotlib', 'seaborn']));"
        f"sys.path.insert(0, {str(FOLDER)!r}); import run; print(run.peers.installed())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=FOLDER.parent)
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr


ROWS = [{"name": "a", "n": 1, "x": np.float64(0.1), "good": np.True_}, {"name": "b", "n": 2, "x": 1e-9, "good": False}]


def test_plain_rows_are_recorded_as_a_table_is(project, monkeypatch):
    experiments.record(pandas.DataFrame(ROWS).assign(backend="cpu"), "by_pandas", "paper", seed=0)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pandas", None)
        rows = [row | {"backend": "cpu"} for row in ROWS]
        assert experiments.record(rows, "by_hand", "paper", 0, {"torch": "2"}).endswith("by_hand.paper.csv")
    one, two = (experiments.table(name, "paper") for name in ("by_pandas", "by_hand"))
    pandas.testing.assert_frame_equal(one, two)
    assert two.attrs["torch"] == "2" and two.attrs["provenance"]["backend"] == ["cpu"]
    texts = [next(project.rglob(f"{name}.paper.csv")).read_text() for name in ("by_pandas", "by_hand")]
    assert texts[0] == texts[1]
    experiments.record([{"x": 1, "y": 2}, {"x": None, "y": 2.5}], "holes", "quick", 0)  # where nothing was measured
    table = experiments.table("holes")
    assert np.isnan(table["x"][1]) and table["x"][0] == 1 and table["y"].tolist() == [2, 2.5]


@pytest.mark.parametrize(
    "rows, error",
    [([], ValueError), ([{"a": 1}, {"b": 1}], ValueError), ([{"a": [1]}], TypeError), ([{"a": ""}], TypeError),
     ([{"a": 1}, {"a": "x"}], TypeError), ([{"a": True}, {"a": None}], TypeError), ([{"a": None}], TypeError)],
)  # fmt: skip
def test_rows_that_are_no_table_are_refused(rows, error):
    with pytest.raises(error):
        experiments.record(rows, "wrong", "quick", 0)
    assert experiments.recordings("wrong") == []


@pytest.mark.gpu
@pytest.mark.usefixtures("few_threads")
@pytest.mark.parametrize("cell", ["RNN", more("GRU"), "dense"])
def test_what_stays_on_the_device_is_found_again(cell):
    rng = np.random.default_rng(0)
    if cell == "dense":
        chain = comparisons.dense_chain(4, 1, 3, rng)[0]
    else:
        model, x, y = comparisons.problem(cell, 4, 1, 3, 2, rng)
        activations = model.forward(x, backend="numpy")
        run, fetch = forward(model, x)
        run()
        np.testing.assert_allclose(fetch(), activations.hidden[0], atol=1e-6)
        chain = model.chain(activations, backend="numpy")
        grad_logits = rng.standard_normal((1, model.num_classes), np.float32)
    grad_output = (
        rng.standard_normal((1, 3), np.float32) if cell == "dense" else grad_logits @ model.params["fc.weight"]
    )
    expected = bp.backprop(chain, grad_output, method="linear", backend="numpy")
    for method in ("linear", "chunked", "blelloch"):
        with plan.chunks_of(1):
            run, fetch = on_gpu.gradients(chain, grad_output, method)
        for _ in range(2):  # nothing is left of the run before
            run()
            np.testing.assert_allclose(fetch(), expected, atol=1e-6, err_msg=method)
        if cell != "dense" and method == "chunked":
            with plan.chunks_of(1):
                run, fetch = on_gpu.backward(model, x, grad_output, method)
            run()
            grads = model.backward(activations, grad_logits, "linear", "numpy")
            for name, grad in fetch().items():
                np.testing.assert_allclose(grad, grads[name], atol=1e-5, err_msg=f"{method} {name}")
    if cell == "RNN":
        for stage in on_gpu.training_step(model, x, y, "chunked", graph=False):  # issued, and waited for
            stage()


@pytest.mark.full
def test_every_stage_of_the_first_minutes_ends_on_the_stand_in(tmp_path, monkeypatch):
    """Values are zeros there; what counts is that every call is one that Numba and the driver take."""
    if missing := on_driver.build(tmp_path):
        pytest.skip(missing)
    for name in ("bppsa_nb", "tests", "benchmarks"):
        shutil.copytree(FOLDER.parent / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "Makefile"):
        shutil.copy(FOLDER.parent / name, tmp_path)
    shutil.copytree(FOLDER.parent / "data" / "paper", tmp_path / "data" / "paper")
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path / "cache"))

    for stage in stages.STAGES:
        given = ["first_minutes.py", stage, "--minutes", "0.5", "--out", "out", "--commit", 40 * "a"]
        program = f"import runpy, sys; sys.argv = {given}; sys.path.insert(0, 'benchmarks')\n"
        program += "runpy.run_path('benchmarks/first_minutes.py', run_name='__main__')"
        on_driver.run(tmp_path, program, cwd=tmp_path)
        outcome = files.read_json(tmp_path / "build/first_minutes/stand-in/parts.json")[stage]["outcome"]
        assert outcome.startswith(("done", "cut off")), (stage, outcome)
        assert (tmp_path / "out" / "stand-in.tar.gz").is_file()
