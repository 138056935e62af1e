import errno
import fcntl
import io
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from rings import more
from texts import beside
from trainers import curve

import bppsa_nb
from bppsa_nb.cells import calibrate
from bppsa_nb.chains import plan, prices
from bppsa_nb.distributed import ranks
from bppsa_nb.machine import files
from bppsa_nb.papers import cli, experiment, experiments, notebooks, provenance, report
from bppsa_nb.papers.bppsa import machine_code
from bppsa_nb.papers.ranks import __main__ as program
from bppsa_nb.training.datasets import downloads

REPO, TEXTS = Path(__file__).parents[2], beside(__file__)


@pytest.fixture
def toys(project, monkeypatch, committed):
    """Give two experiments, `first` and `second`; calls of `measure` are counted."""

    def plot(table):
        from matplotlib import pyplot

        fig, ax = pyplot.subplots()
        ax.plot(table["n"])
        return fig

    modules = {}
    for name in ("first", "second"):

        def measure(scale, rng, progress, name=name):
            modules[name].measured += 1
            return progress.collect([{"n": 1}, {"n": 2}], modules[name].measure_point, rng)

        figure = experiment.Figure("counted", "It is a line.", "A line.")
        modules[name] = types.SimpleNamespace(measure=measure, plot=plot, measured=0, FIGURE=figure)
        modules[name].__doc__ = f"The {name}."
        modules[name].measure_point = lambda point, rng: [{"x": rng.random()}]
    monkeypatch.setattr(experiments, "names", lambda: sorted(modules))
    monkeypatch.setattr(experiments, "load", lambda name: modules[name])
    return types.SimpleNamespace(**modules)


@pytest.fixture
def run(capsys):
    """Give what runs a command, expects a code, and returns what is said; of what is wrong, in one line."""

    def run(*arguments, ends=0):
        capsys.readouterr()
        assert cli.main([*map(str, arguments)]) == ends
        out, err = capsys.readouterr()
        assert ends != 1 or err.startswith("bppsa-nb: ") and err.count("\n") == 1
        return out + err if ends else out

    return run


FIRST, BOTH = ["measure", "first"], ["measure", "first", "second"]


def write_notebook(project, name, *cells, parameters="scale = 'quick'\nseed = 0"):
    code = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [code | {"source": source} for source in (parameters, *cells)]
    cells[0]["metadata"] = {"tags": ["parameters"]}
    cells = [{"cell_type": "markdown", "metadata": {}, "source": f"# {name}"}, *cells]
    cells = [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cells)]
    (project / "notebooks").mkdir(exist_ok=True)
    path = project / "notebooks" / f"{name}.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


@pytest.mark.parametrize("arguments, said", TEXTS["usage"])
def test_wrong_usage_exits_with_2(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments.split())
    shown = capsys.readouterr()
    assert "usage: bppsa-nb" in shown.err and said in shown.err and not shown.out


COMMANDS = "measure draw explain check notebooks list train fetch info calibrate report puzzles".split()


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    assert set(COMMANDS) <= set(capsys.readouterr().out.split())


def test_measure_measures_and_draws_at_a_scale(toys, project, run):
    said = run(*BOTH, "--seed", 3)
    assert (toys.first.measured, toys.second.measured) == (1, 1)
    for name in ("first", "second"):
        assert (project / "figures" / f"{name}.png").exists()
        assert files.read_json(project / "figures" / f"{name}.json")["provenance"]["seed"] == 3
    assert [line.split()[0] for line in said.splitlines()] == ["first", "second"]
    run("measure", "second", "--scale", "paper")
    assert (toys.first.measured, toys.second.measured) == (1, 2)
    assert experiments.recordings("second") == [(provenance.device(), scale) for scale in ("quick", "paper")]


def test_draw_draws_what_a_device_recorded_or_the_reference_and_measures_nothing(toys, project, describe_as, run):
    describe_as(device="gpu-x", gpu="GPU X")
    experiments.run("first", progress=False)
    describe_as()
    run("draw", "first", "--of", "gpu-x")
    drawn, device = project / "figures" / "first.json", provenance.device()
    assert files.read_json(drawn)["provenance"]["gpu"] == "GPU X"
    run(*FIRST, "--seed", 1, "--reference")
    run(*FIRST, "--seed", 2)
    for seed, arguments in ((2, []), (2, ["--of", device]), (1, ["--reference"]), (1, ["--of", device, "--reference"])):
        run("draw", "first", *arguments)
        origin = files.read_json(drawn)["provenance"]
        assert (origin["seed"], origin["reference"]) == (seed, seed == 1)
    assert toys.first.measured == 3
    for flags, said in ([], "no recording of"), (["--reference"], "no reference of"):
        error = run("draw", "second", "--of", device, *flags, ends=1)
        assert f"{said} second at scale quick for {device!r}" in error
        assert f"{' '.join(['', *flags])}` makes one" in error


def test_draw_without_names_draws_what_no_notebook_does(toys, project, run, monkeypatch):
    run(*BOTH)
    write_notebook(project, "01_see", 'experiments.make("first", scale, seed)')
    assert [line.split()[0] for line in run("draw").splitlines()] == ["second"]
    toys.second.FIGURE = experiment.Figure("collected", "It is put together.", "A line.")
    run("draw")
    assert (toys.first.measured, toys.second.measured) == (1, 2)  # recordings are collected anew
    assert "no recording of second at scale paper" in run("draw", "second", "--scale", "paper", ends=1)
    assert toys.second.measured == 2
    toys.second.FIGURE = experiment.Figure("waiting", "It waits.", "A line.")
    assert run("draw") == ""


def recorded(project, folder):
    return sorted(path.name for path in (project / "data" / folder / provenance.device()).glob("*"))


def test_references_are_recorded_only_on_request_which_says_what_they_replace(toys, project, monkeypatch, run):
    run(*BOTH)
    assert recorded(project, "results") == []
    place = f"data/results/{provenance.device()}/first.quick.csv"
    assert f"reference {place}: new\n" in run(*FIRST, "--reference")
    assert recorded(project, "results") == ["first.quick.csv", "first.quick.json"]

    monkeypatch.setattr(provenance, "machine", lambda origin: f"a machine with {origin['cores']} cores")
    path = project / place.replace(".csv", ".json")
    described = files.read_json(path)
    described["provenance"] |= {"date": "2020-02-02", "commit": 4 * "0123456789", "dirty": True, "cores": 77}
    files.write_json(path, described)
    for words in ("2020-02-02, 0123456789 and changes, a machine with 77 cores", "one that could not be read"):
        assert f"reference {place}: in place of {words}\n" in run(*FIRST, "--reference")
        path.write_text("{}")


def test_ctrl_c_keeps_finished_figures_and_points_which_go_on_as_they_began(toys, project, capsys, run):
    def stop_at_two(point, rng):
        if point["n"] == 2:
            raise KeyboardInterrupt
        return [{}]

    toys.second.measure_point = stop_at_two
    said = run(*BOTH, "--reference", ends=130)
    assert "Finished figures: first." in said and "second at scale quick: 1 measured points are kept" in said
    assert (project / "figures" / "first.png").exists()
    assert recorded(project, "results") == ["first.quick.csv", "first.quick.json", "second.quick.partial.json"]
    toys.second.measure_point = lambda point, rng: [{}]
    assert cli.main(["measure", "second"]) == 0  # of one's own, measured afresh
    assert "goes on" not in capsys.readouterr().err
    assert cli.main(["measure", "second", "--reference"]) == 0
    assert "second: goes on after 1 points measured before" in capsys.readouterr().err
    assert recorded(project, "results")[2:] == ["second.quick.csv", "second.quick.json"]


@pytest.mark.parametrize("command", ["measure figure_09", "notebooks"])
def test_what_needs_a_checkout_says_so(command, project, run):
    """As an installed package in an empty folder."""
    said = run(*command.split(), ends=1)
    assert said.startswith(f"bppsa-nb: {project}") and said.endswith(f"{TEXTS['NEEDS_CHECKOUT']}\n")
    assert not list(project.iterdir())


BLOCKED = [("data", FIRST), ("figures", FIRST), ("figures", ["notebooks"]), ("REPRODUCTION.md", ["report"])]


@pytest.mark.parametrize("name, command", BLOCKED)
def test_what_cannot_be_written_is_named_in_a_line(name, command, toys, project, run, monkeypatch):
    """A file is in the place of a folder, or a folder in that of a file: that stops everybody, root too."""
    monkeypatch.setattr("bppsa_nb.papers.report.text", lambda: "It works.")
    place = project / name
    place.mkdir() if place.suffix else place.write_text("")
    write_notebook(project, "01_draw", "raise OSError")
    assert str(place) in run(*command, ends=1)


WRITTEN = [*2 * ["first.quick.partial.json"], "first.quick.csv", "first.quick.json", "first.png", "first.json"]


@pytest.mark.parametrize("place", range(len(WRITTEN)))
def test_a_full_disk_is_said_with_the_file_that_it_keeps_from_being_written(place, toys, run, monkeypatch):
    files_so_far, fsync = itertools.count(), os.fsync

    def fill(descriptor):
        if next(files_so_far) == place:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", fill)
    said = run(*FIRST, ends=1)
    assert "No space left on device: " in said and said.endswith(f"{WRITTEN[place]}'\n")


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_damaged_table_is_named_in_a_line(kind, toys, project, run):
    run(*FIRST, "--reference")
    (path,) = project.glob(f"data/results/*/first.quick.{kind}")
    path.write_bytes(path.read_bytes()[:-5])
    assert str(path) in run("draw", "first", "--reference", ends=1)


def test_an_unknown_name_is_explained(toys, project, run):
    write_notebook(project, "01_see_a_scan")
    said = run("draw", "third", ends=1)
    assert said == "bppsa-nb: there is no figure 'third'; there are first, second\n"
    assert "there is no notebook '07'; there are 01_see_a_scan" in run("notebooks", "07", ends=1)


def test_list_shows_figures_how_their_numbers_are_made_and_which_notebook_draws_them(toys, project, run):
    write_notebook(project, "01_see", 'experiments.make("first", scale, seed)')
    write_notebook(project, "02_go", 'experiments.draw(experiments.table("second", scale))')
    lines = [line.split() for line in run("list").splitlines()]
    assert lines[:2] == [["first", "counted", "01", "The", "first"], ["second", "counted", "02", "The", "second"]]
    assert lines[-1][:2] == ["2", "figures:"]


@pytest.fixture
def planner(cache, monkeypatch):
    """Give a planner without prices of this machine; measuring takes no time, and every call a millisecond."""
    measured = []

    def measure(backend, progress):
        measured.append(backend)
        return np.full(len(calibrate.points()), 1e-3)

    monkeypatch.setattr(calibrate, "measure", measure)
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    return measured


def test_calibrate_measures_all_that_runs_here_and_shows_prices(planner, run):
    shown = run("calibrate")
    assert planner == calibrate.runnable()
    for backend in planner:
        assert f"{backend} on {prices.machine()}, nanoseconds:" in shown
        assert "measured on this machine" in plan.explain(10, 2, 3, backend=backend).source
    lines = shown.splitlines()
    assert lines[1].split() == ["start", "step", "multiply-add"]
    for line, (kind, costs) in zip(lines[2:], prices.load("numpy")["prices"].items(), strict=False):
        assert line.startswith(kind) and [float(word) for word in line.split()[-3:]] == pytest.approx(
            [1e9 * cost for cost in costs], rel=0.01
        )
    assert f"predictions of {len(calibrate.points())} points are" in shown
    assert lines[-1] == f"stored in {prices.path()}"


@pytest.mark.peers
def test_calibrate_measures_layers_for_pytorch(planner, run, monkeypatch):
    layers, shown = pytest.importorskip("bppsa_nb.torch"), []
    monkeypatch.setattr(cli, "find_spec", lambda name: True)
    monkeypatch.setattr(layers, "calibrate", lambda progress: shown.append(progress) or "there.json")
    assert run("calibrate", "--backend", "cpu") and shown == []
    assert run("calibrate").splitlines()[-1] == "of layers for PyTorch in there.json" and shown == [False]


def test_calibrate_measures_the_backend_that_is_asked_for(planner, run):
    assert "got 'cuda'" in run("calibrate", "--backend", "cuda", ends=1) and planner == []
    run("calibrate", "--backend", "cpu")
    assert planner == ["cpu"] and prices.load("numpy") is None


def test_ctrl_c_stores_no_prices_and_info_says_whether_there_are_any(planner, run, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "runnable", lambda: ["numpy", "cpu"])
    with monkeypatch.context() as patch:
        patch.setattr(calibrate, "measure", stop)
        assert "Nothing is stored" in run("calibrate", ends=130) and not prices.path().exists()
    assert "planner     not calibrated: numpy, cpu; `bppsa-nb calibrate`" in run("info")
    calibrate.run(["cpu"])
    shown = run("info")
    assert f"planner     calibrated: cpu ({prices.load('cpu')['date']})" in shown
    assert "            not calibrated: numpy;" in shown
    prices.path().write_text("{")
    assert f"planner     {prices.path()} is damaged" in run("info")


def test_info_prints_what_kernels_became_as_far_as_they_can_be_compiled(monkeypatch, run):
    pytest.importorskip("numba.cuda")
    monkeypatch.setattr(machine_code, "read", lambda name: machine_code.Cost(64, 0, 73.5, 26.0, 129.5, 8.2))
    shown = run("info", "--kernels")
    forward = next(line for line in shown.splitlines() if line.startswith("RNN forward"))
    assert forward.split()[-3:] == ["a", "time", "step"] and "Microseconds are predicted" in shown

    def read(name):
        raise ModuleNotFoundError("No module named 'cuda'")

    monkeypatch.setattr(machine_code, "read", read)
    said = run("info", "--kernels", ends=1)
    assert "no compiler for kernels here; `pip install 'bppsa-nb[gpu]'` brings it" in said


def test_info_shows_backends_versions_and_data_sets(project, run):
    shown = run("info")
    assert all(word in shown for word in ("numpy", "cpu", "cuda", "auto", np.__version__, "bitstreams"))
    assert "IRMAS: not here, `bppsa-nb fetch irmas` downloads" in shown
    assert "CIFAR-10: not here, `bppsa-nb fetch cifar10` downloads 0.2 GB" in shown
    assert "MNIST: not here, `bppsa-nb fetch mnist` downloads" in shown
    folder = project / "data" / "downloads"
    (folder / "IRMAS-TrainingData").mkdir(parents=True)
    (archive := folder / "cifar-10-binary.tar.gz").touch()
    shown = run("info")
    assert f"IRMAS: in {project}" in shown and f"CIFAR-10: in {archive}\n" in shown


@pytest.mark.parametrize("key, title", [("irmas", "IRMAS"), ("cifar10", "CIFAR-10")])
def test_fetch_says_where_the_data_is_or_what_went_wrong(monkeypatch, capsys, key, title):
    def fetched(what):
        def fetch(name):
            assert name == key
            if isinstance(what, Path):
                return what / name
            raise what

        monkeypatch.setattr(downloads, "fetch", fetch)
        return cli.main(["fetch", key]), *capsys.readouterr()

    assert fetched(Path("downloads")) == (0, f"{title} is in downloads/{key}\n", "")
    for error in (OSError("no network"), ValueError("wrong checksum")):
        assert fetched(error) == (1, "", f"bppsa-nb: {error}\n")
    said = "\nStopped. The downloaded part is kept; the same command resumes.\n"
    assert fetched(KeyboardInterrupt()) == (130, "", said)


def test_report_goes_to_the_project_or_where_it_is_told(monkeypatch, run):
    monkeypatch.setattr(report, "write", lambda path: f"it to {path}")
    assert run("report") == "wrote it to None\n" and run("report", "--output", "x.md") == "wrote it to x.md\n"


TRAIN = ["train", "--length", "8", "--samples", "64", "--backend", "numpy", "--learning-rate", "0.01"]


def test_train_says_how_it_went_and_goes_on_from_what_it_saved(tmp_path, run):
    whole, part, gru = (tmp_path / f"{name}.npz" for name in ("whole", "part", "gru"))
    shown = run(*TRAIN, "--epochs", 2, "--save", whole)
    assert "8 iterations" in shown and "loss" in shown and "unseen" in shown
    run(*TRAIN, "--save", part)
    run(*TRAIN, "--epochs", 2, "--resume", part, "--save", part)
    assert len(curve(whole)) == 8
    np.testing.assert_array_equal(curve(whole), curve(part))
    assert "nothing to do: all 2 epochs are done" in run(*TRAIN, "--epochs", 2, "--resume", part)
    run(*TRAIN, "--cell", "gru", "--layers", 2, "--save", gru)
    with np.load(gru, allow_pickle=False) as kept:
        assert kept["params/weight_hh_l1"].shape == (60, 20)


def test_train_keeps_what_came_before_an_overflow(tmp_path, monkeypatch, run):
    from bppsa_nb.training import optimizers

    step = optimizers.step

    def overflow(optimizer, *arrays):
        if optimizer.steps == 3:
            raise FloatingPointError("fc.bias leaves the range of float32")
        return step(optimizer, *arrays)

    monkeypatch.setattr(optimizers, "step", overflow)
    path = tmp_path / "kept.npz"
    said = run(*TRAIN, "--save", path, ends=1)
    assert f"fc.bias leaves the range of float32; 3 iterations are saved in {path}; " in said
    trainer = bppsa_nb.Trainer(bppsa_nb.RNN(1, 20, 10), bppsa_nb.Adam(0.01), backend="numpy")
    trainer.load(path)
    assert len(trainer.history.loss) == 3
    assert run(*TRAIN, ends=1) == "bppsa-nb: fc.bias leaves the range of float32\n"
    run(*TRAIN, "--resume", path, "--save", tmp_path / "more.npz", ends=1)  # at its first step
    assert not (tmp_path / "more.npz").exists()


@pytest.mark.outer
def test_train_on_audio(project, run):
    from bppsa_nb.training.datasets import instruments

    folder = instruments.stand_in(44, progress=False)
    train = ["train", "--audio", str(folder), "--backend", "numpy", "--batch-size", "22"]
    assert "1 iterations" in (shown := run(*train)) and "22 unseen samples (chance is 9%)" in shown
    assert "folder must be the name of a file or a folder" in run("train", "--audio", "", ends=1)
    for option in ("--length", "--samples"):
        assert f"{option} is for bitstreams only" in run(*train, option, 3, ends=1)


SIGNALS = signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("again", SIGNALS)
def test_what_ends_a_program_comes_once(number, again, monkeypatch, handlers):
    now = iter([100.0, 100.0, 100.1, 100.9, 101.2, 101.2])
    monkeypatch.setattr(cli.time, "monotonic", lambda: next(now))
    with cli._ended_once() as arrived:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(again)  # which means the same
        signal.raise_signal(again)
        with pytest.raises(KeyboardInterrupt):  # and who goes on pressing comes out of what hangs
            signal.raise_signal(again)
    assert arrived == [number, *3 * [again]]
    assert [*map(signal.getsignal, SIGNALS)] == [signal.default_int_handler, signal.SIG_DFL]


def test_what_is_ignored_or_handled_stays_so(handlers):
    heard = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background jobs
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with cli._ended_once() as arrived:
        for number in SIGNALS:
            signal.raise_signal(number)
    assert arrived == [] and heard == [signal.SIGTERM]


@pytest.mark.parametrize("save", [True, False])
def test_a_second_ctrl_c_at_once_loses_nothing(tmp_path, monkeypatch, capsys, foreground, save):
    batch, fsync, path, batches = bppsa_nb.Bitstream.batch, os.fsync, tmp_path / "kept.npz", []

    def press():
        signal.raise_signal(signal.SIGINT)

    def batch_then_stop(self, indices):
        if len(batches) == 2:
            try:
                press()
            finally:
                press()  # while the first one is on its way
        batches.append(indices)
        return batch(self, indices)

    monkeypatch.setattr(bppsa_nb.Bitstream, "batch", batch_then_stop)
    monkeypatch.setattr(files.os, "fsync", lambda number: (press(), fsync(number)))  # while the file is written
    assert cli.main([*TRAIN, *(["--save", str(path)] if save else [])]) == 130
    said = f"2 iterations are saved in {path}" if save else "2 iterations are not saved"
    assert f"Stopped. {said}" in capsys.readouterr().err
    assert not save or len(curve(path)) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_stops_as_ctrl_c_does(tmp_path):
    path = tmp_path / "kept.npz"
    done = subprocess.run([sys.executable, "-c", TEXTS["SIGTERM"], path], cwd=REPO, capture_output=True, text=True)
    assert done.stdout.split() == "train 143 measure 143 notebooks 143 calibrate 143 fetch 143".split(), done.stderr
    for said in (f"2 iterations are saved in {path}", "Finished figures: none", "Nothing is stored", "resumes"):
        assert said in done.stderr
    assert len(curve(path)) == 2


def test_wrong_arguments_leave_what_was_saved(tmp_path, monkeypatch):
    path, batch, batches = tmp_path / "run.npz", bppsa_nb.Bitstream.batch, []

    def batch_then_stop(self, indices):
        batches.append(indices)
        if len(batches) == 3:
            raise KeyboardInterrupt
        return batch(self, indices)

    with monkeypatch.context() as patch:
        patch.setattr(bppsa_nb.Bitstream, "batch", batch_then_stop)
        assert cli.main([*TRAIN, "--save", str(path)]) == 130
    kept = path.read_bytes()
    in_the_middle_of_another_epoch = ["--samples", "32", "--epochs", "2"]
    for wrong in (["--epochs", "-1"], ["--samples", "0"], in_the_middle_of_another_epoch):
        for save in ([path], [path, "--save-every", "1"], [tmp_path / "a" / "b"]):
            assert cli.main([*TRAIN, *wrong, "--resume", str(path), "--save", *map(str, save)]) == 1
    assert path.read_bytes() == kept and os.listdir(tmp_path) == ["run.npz"]


@pytest.mark.parametrize("resume", [None, "other.npz", "gone.npz"])
def test_train_replaces_no_file_but_the_one_it_goes_on_from(tmp_path, monkeypatch, run, resume):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*TRAIN, "--save", "run.npz"]) == 0
    (tmp_path / "link.npz").symlink_to("run.npz")
    (tmp_path / "other.npz").write_bytes((tmp_path / "run.npz").read_bytes())
    kept = (tmp_path / "run.npz").read_bytes()
    for name in ("run.npz", "link.npz"):
        said = run(*TRAIN, "--save", name, *(["--resume", resume] if resume else []), ends=1)
        assert f": --save {name}: file exists and will not be overwritten; resume with --resume {name} or" in said
    assert (tmp_path / "run.npz").read_bytes() == kept
    assert cli.main([*TRAIN, "--epochs", "2", "--save", "link.npz", "--resume", "run.npz"]) == 0
    assert (tmp_path / "link.npz").is_symlink()
    assert len(curve("run.npz")) == 8


@pytest.mark.parametrize("wrong, said", TEXTS["train"])
def test_train_explains_wrong_options(run, monkeypatch, wrong, said):
    monkeypatch.setattr(cli.cli_train.ranks, "world", lambda: None)  # without mpi4py
    assert said in run(*TRAIN, *shlex.split(wrong), ends=1)


def test_notebooks_run_in_their_folder_with_this_package_and_the_scale(project, run, monkeypatch):
    write_notebook(project, "01_say_hello", TEXTS["CELL"], "print(scale)")
    write_notebook(project, "02_stay_out", "1 / 0")
    notebook, kept = project / "notebooks" / "01_say_hello.ipynb", project / "build" / "notebooks"
    notebook.write_text(notebook.read_text().replace('["parameters"]', '["parameters", "timed"]'))
    before, alone = notebook.read_bytes(), []
    monkeypatch.setattr(notebooks, "_turn", lambda alone=False, turns=alone: turns.append(alone) or nullcontext())
    name, seconds, unit = run("notebooks", "01", "--scale", "paper", "--keep", kept).split()
    seen = (project / "seen.txt").read_text().splitlines()
    assert seen == ["paper", "0", "notebooks", bppsa_nb.__file__]
    assert notebook.read_bytes() == before and alone == [False, False, True, False, False]
    assert (name, unit) == ("01_say_hello", "s") and float(seconds) > 0
    _, parameters, _, hello = files.read_json(kept / "01_say_hello.ipynb")["cells"]
    assert parameters["source"][0] == "scale = 'paper'\n" and "quick" not in str(parameters["source"])
    assert hello["outputs"][0]["text"] == ["paper\n"] and hello["execution_count"] == 3


def test_notebooks_run_side_by_side_and_one_that_fails_ends_the_others(project, run, monkeypatch):
    for name in ("01_a", "02_b", "03_c"):
        write_notebook(project, name)
    at_once, ended, codes = [], [], {}

    class Process:
        terminate, wait = lambda self: ended.append(f"{self.name} terminated"), lambda self: None

        def __init__(self, command):
            self.name, self.returncode, self.left = command[-1], codes.get(command[-1], 0), 3
            assert not at_once.append(self.name) and len(at_once) <= 2

        def poll(self):
            self.left -= 1
            return None if self.left else at_once.remove(self.name) or ended.append(self.name) or self.returncode

    monkeypatch.setattr(cli.subprocess, "Popen", Process)
    run("notebooks", "--jobs", 2, "01", "01_a", "02", "03")
    assert ended == ["01_a", "02_b", "03_c"]  # the first is asked for twice
    for code, said in ((1, "01_a failed, as said above"), (-9, "01_a ended by signal 9")):
        ended[:], codes["01_a"] = [], code
        assert said in run("notebooks", "--jobs", 2, ends=1)
        assert ended[0] == "01_a" and ended[-1] == "02_b terminated"


def test_a_cell_that_times_something_is_alone_and_not_overtaken(project):
    write_notebook(project, "01_wait")
    names, ran, queue = ("beside", "timed", "other"), [], os.open(project / "notebooks", os.O_RDONLY)

    def cell(name, alone):
        with notebooks._turn(alone):
            ran.append(name)
            time.sleep(0.05)
            ran.append(name)

    beside, timed, other = (threading.Thread(target=cell, args=(name, name == "timed")) for name in names)
    with notebooks._turn():
        beside.start()
        beside.join(10)
        timed.start()
        with pytest.raises(BlockingIOError):  # once it has its place in the queue
            for _ in range(1000):
                fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(queue, fcntl.LOCK_UN)
                time.sleep(0.01)
        other.start()
        other.join(0.05)
        assert ran == ["beside", "beside"]
    timed.join()
    other.join()
    os.close(queue)
    assert ran == [each for name in names for each in (name, name)]


def test_a_failing_notebook_is_named_with_cell_and_traceback(project, capsys):
    write_notebook(project, "01_divide", "x = 3", "y = x / (x - 3)", "unreached = 1")
    write_notebook(project, "02_die", "import os; os._exit(1)")
    assert cli.main(["notebooks"]) == 1
    said = capsys.readouterr().err
    assert "01_divide.ipynb, cell 4 of 5" in said and "y = x / (x - 3)" in said and "ZeroDivisionError" in said
    assert "\x1b" not in said
    assert cli.main(["notebooks", "02"]) == 1  # its kernel dies
    assert "02_die.ipynb, cell 3 of 3" in capsys.readouterr().err


def test_a_notebook_needs_its_parameters(project, run):
    write_notebook(project, "01_plain")
    path = project / "notebooks" / "01_plain.ipynb"
    path.write_text(path.read_text().replace("parameters", "other"))
    assert "01_plain.ipynb must have one cell tagged `parameters`, found 0" in run("notebooks", ends=1)
    path.write_text(path.read_text().replace("other", "parameters").replace("scale = ", "scale=1; scales = "))
    with pytest.raises(ValueError, match="must set `scale` on one line of its cell tagged `parameters`, found 0"):
        notebooks.run("01_plain")


@pytest.mark.outer
def test_ctrl_c_in_a_notebook_ends_its_kernel_and_exits_130(project):
    code = 'import os, pathlib, time; pathlib.Path("pid").write_text(str(os.getpid())); time.sleep(60)'
    write_notebook(project, "01_wait", code)
    command = [sys.executable, "-c", TEXTS["INTERRUPTED"], str(project)]
    pid = project / "notebooks" / "pid"
    with subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, text=True) as process:
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert "Stopped. Finished notebooks: none." in process.stderr.read()
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_terminal_that_lacks_letters_shows_them_escaped(toys, project, monkeypatch):
    toys.first.__doc__ = "δO ⋄ J"
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "latin-1"))
    assert cli.main(["list"]) == 0
    assert "\\u03b4O \\u22c4 J" in shown.getvalue().decode("latin-1")


@pytest.fixture
def unread():
    """Give the writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize("unbuffered", [more(""), "1"])  # an error comes at the end, or with the first line
def test_a_program_whose_reader_is_gone_ends_quietly(unread, unbuffered):
    command = [sys.executable, "-m", "bppsa_nb.papers.cli", "list"]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=REPO, env=environment, stdout=unread, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("buffering", [-1, 1])
@pytest.mark.parametrize("command", ["--help", "info", "train --length 2 --samples 2 --backend numpy", "program"])
def test_no_command_minds_that_nobody_reads(unread, buffering, command, project, monkeypatch):
    monkeypatch.setattr(ranks, "world", lambda: None)
    with open(unread, "w", buffering, closefd=False) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        if command == "program":  # of ranks
            with pytest.raises(SystemExit, match="1"):
                program.main(["layers", "--depth", "2", "--backend", "numpy", "--repeat", "1"])
        else:
            assert cli.main(command.split()) == 1


@pytest.mark.parametrize("command", ["info", "draw no_such"])
def test_closed_streams_are_no_error(command, project, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(command.split()) == ("no_such" in command)


PAGES = [REPO / "Makefile", *(path for folder in (".", "docs", "notebooks") for path in REPO.glob(f"{folder}/*.md"))]
PAGES = [*PAGES, *REPO.glob("notebooks/*.ipynb")]


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CHANGELOG.md"], ids=lambda path: path.name)
def test_every_command_that_a_page_names_is_one(path):
    """Those of code, where placeholders stand for a figure; a name alone need not be a whole command."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    known = {*experiments.names(), *notebooks.names(), *(name.split("_")[0] for name in notebooks.names())}
    spans = [re.sub(r"\s+", " ", span) for span in re.findall(r"`(bppsa-nb [^`]*)`", text)]
    blocks = [text] if path.name == "Makefile" else re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.split("\n")]
    for said in [*spans, *lines]:
        for words in re.findall(r"^[^#]*?bppsa-nb ([^#|;&$\"]*)", said.replace("$(KEPT)", "build")):
            stand_for = {"NAME": "figure_08", "figure_99": "figure_08", "N": "8"}
            words = [stand_for.get(each, each) for each in words.split()]
            if words[:1] in (["make"], []) or "--help" in words:  # an image of Docker's has this name, too
                continue
            if len(words) == 1:
                assert words[0] in COMMANDS, said
                continue
            parsed = cli._parser().parse_args(words)
            if words[0] in ("measure", "draw", "explain", "check", "notebooks"):
                assert {*parsed.name} <= known, said


@pytest.mark.parametrize("rank", ["0", "2"])
@pytest.mark.parametrize("arguments, code, said", TEXTS["mpiexec"])
@pytest.mark.parametrize("prefix", ["PMI", "OMPI_COMM_WORLD"])
def test_of_all_processes_of_mpiexec_one_says_what_is_wrong(monkeypatch, capsys, prefix, arguments, code, said, rank):
    monkeypatch.setenv(f"{prefix}_SIZE", "3")
    monkeypatch.setenv(f"{prefix}_RANK", rank)
    if code == 2:
        with pytest.raises(SystemExit, match="2"):
            cli.main([*TRAIN, *arguments])
    else:
        assert cli.main([*TRAIN, *arguments]) == code
    shown = capsys.readouterr()
    assert shown.err.endswith(f"{said}\n") if rank == "0" else not shown.err
    assert not shown.out


def test_train_distributed_without_mpiexec_is_one_process_that_saves_now_and_then(monkeypatch, tmp_path):
    from bppsa_nb.training import checkpoints

    write, saved = checkpoints.write, []

    def record(path, model, optimizer, history, *rest):
        write(path, model, optimizer, history, *rest)
        saved.append(len(history.loss))

    monkeypatch.setattr(cli.ranks, "world", lambda: None)  # without mpi4py
    monkeypatch.setattr(checkpoints, "write", record)
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    assert cli.main([*TRAIN, "--save", str(one), "--epochs", "2"]) == 0
    assert cli.main([*TRAIN, "--distributed", "--save", str(other), "--save-every", "3", "--epochs", "2"]) == 0
    assert saved == [8, 3, 6, 8]  # and nothing before the first iteration
    np.testing.assert_array_equal(curve(one), curve(other))
