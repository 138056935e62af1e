"""Training whose steps and samples, or layers, are spread over MPI ranks: as on one process, or one error on all ranks.

`train_ranks.py` and `residual_ranks.py` hold what every rank does.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from on_mpi import ENVIRONMENT, FAULTY, command, start
from rings import more
from trainers import curve

import bppsa_nb as bp
from bppsa_nb.distributed.ranks import checksum
from bppsa_nb.papers import cli

STEPS, LAYERS = "train_ranks.py", "residual_ranks.py"


@pytest.fixture
def on_ranks(rank_session, tmp_path):
    """Do one of a program's tasks on some ranks; return what every rank found."""
    return lambda ranks, task, name=STEPS: rank_session.found(ranks, Path(__file__).with_name(name), task, tmp_path)


FULL = (2, STEPS), (4, STEPS), (7, STEPS), (2, LAYERS), (4, LAYERS), (5, LAYERS)  # more could not have layers each
FULL = [pytest.param(*each, marks=pytest.mark.full) for each in FULL]


@pytest.mark.parametrize("ranks, name", [(1, STEPS), (3, STEPS), (1, LAYERS), (3, LAYERS), *FULL])
def test_any_number_of_ranks_trains_as_one_process_does(on_ranks, ranks, name):
    assert on_ranks(ranks, "check", name) == [[]] * ranks


def test_a_checksum_is_of_all_arrays_in_order():
    a, b = np.arange(3.0), np.arange(4.0)
    assert len({checksum(*arrays) for arrays in ((), (a,), (b,), (a, b), (b, a), (a + 1, b), (a, b + 1))}) == 7


SOME = (2, STEPS), (3, LAYERS), *(pytest.param(4, name, marks=pytest.mark.full) for name in (STEPS, LAYERS))


@pytest.mark.parametrize("ranks, name", SOME)
def test_what_one_rank_cannot_do_none_does(on_ranks, ranks, name):
    assert on_ranks(ranks, "refused", name) == [[]] * ranks


def trained(epochs, *paths):
    """Train in this process: load the first path if it is there, save to the last one."""
    trainer = bp.Trainer(bp.GRU(1, 4, 3, 2, rng=1, dtype=np.float64), bp.Adam(lr=0.01), backend="numpy")
    if len(paths) > 1:
        trainer.load(paths[0])
    trainer.fit(bp.Bitstream(9, 17, 3, rng=1, dtype=np.float64), epochs, 8, rng=9, progress=False)
    trainer.save(paths[-1])
    return trainer


def test_a_checkpoint_is_of_no_number_of_ranks(on_ranks, tmp_path):
    begun = on_ranks(4, "begin")
    assert [rank.pop("written") for rank in begun] == [["begun.npz"], [], [], []]
    saves = [["every.npz", 4], ["every.npz", 9]]
    assert begun == [{"place": [0, 16, 2], "saves": saves}] * 4
    with np.load(tmp_path / "begun.npz", allow_pickle=False) as kept:
        assert kept["loss"].shape == (2,) and not any("rank" in name for name in kept.files)
        assert "rank" not in str(kept["note"])
    straight = trained(2, tmp_path / "straight.npz")
    trained(0, tmp_path / "alone.npz")
    assert on_ranks(2, "go_on") == [{"begun.npz": 3, "alone.npz": 3}] * 2
    for name in "begun.npz", "later begun.npz", "later alone.npz":
        one = trained(2, tmp_path / name, tmp_path / "again.npz")
        np.testing.assert_allclose(one.history.loss, straight.history.loss, rtol=1e-12)
        for name, param in straight.model.params.items():
            np.testing.assert_allclose(one.model.params[name], param, rtol=1e-9, atol=1e-12)


TRAIN = ["train", "--length", "20", "--samples", "64", "--backend", "numpy", "--learning-rate", "0.01"]


def test_the_command_trains_on_ranks_and_resumes_on_others(rank_session, tmp_path, capsys):
    one, four, two = (tmp_path / f"{name}.npz" for name in ("one", "four", "two"))
    assert cli.main([*TRAIN, "--epochs", "2", "--save", str(one)]) == 0
    alone = capsys.readouterr().out
    ours = ["-m", "bppsa_nb.papers.cli", *TRAIN, "--distributed"]
    begun = rank_session.run(4, *ours, "--sequence-ranks", "2", "--save", four)
    assert begun.returncode == 0 and not begun.stderr, begun.stderr
    lines = begun.stdout.splitlines()
    assert len(lines) == 4 and lines[0] == f"saved to {four}"
    assert re.search(r"^4 iterations, .* on 4 ranks: replicas 2, parts of a sequence 2$", lines[1])
    resumed = start(2, *ours, "--epochs", "2", "--resume", four, "--save", two)
    assert resumed.returncode == 0, resumed.stderr
    np.testing.assert_allclose(curve(two), curve(one), rtol=1e-5)
    assert resumed.stdout.splitlines()[2:] == alone.splitlines()[2:]  # the loss, and what is learned by it


@pytest.mark.outer
def test_the_command_trains_residual_layers_on_ranks_with_the_bits_of_one(rank_session, tmp_path, capsys):
    few = ["train", "--multigrid", "--layers", "16", "--backend", "numpy", "--batch-size", "449"]
    alone, two, again = (tmp_path / f"{name}.npz" for name in ("alone", "two", "again"))
    assert cli.main([*few, "--epochs", "2", "--save", str(alone)]) == 0
    said = capsys.readouterr().out
    done = rank_session.run(2, "-m", "bppsa_nb.papers.cli", *few, "--distributed", "--epochs", "1", "--save", two)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert re.search(r"^3 iterations, .* on 2 ranks, which share out the layers$", done.stdout, re.MULTILINE)
    assert cli.main([*few, "--epochs", "2", "--resume", str(two), "--save", str(again)]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == said.splitlines()[2:]
    with np.load(alone, allow_pickle=False) as one, np.load(again, allow_pickle=False) as other:
        assert one.files == other.files and "params/residual.weight" in one.files
        assert all((one[name] == other[name]).all() for name in one.files if name not in ("seconds", "note"))


@pytest.mark.parametrize("arguments, code, said", [
    (["--distributed", "--sequence-ranks", "2"], 1, "^rank 0: ValueError: sequence_ranks must divide .* 3, got 2$"),
    more(["--distributed", "--save", "/"], 1, "^rank 0: .*Error: "),
])  # fmt: skip
def test_what_is_wrong_is_said_once(arguments, code, said):
    done = start(3, "-m", "bppsa_nb.papers.cli", *TRAIN, *arguments)
    assert done.returncode == code
    assert len(re.findall(said, done.stderr, re.MULTILINE)) == 1, done.stderr
    assert len(re.findall("error|rank [0-9]:|^bppsa", done.stderr, re.MULTILINE | re.IGNORECASE)) <= 2, done.stderr
    assert not done.stdout


KILL, BATCH = "os.kill(os.getpid(), signal.SIGKILL)", ("training.datasets:Bitstream", "batch")


@pytest.mark.parametrize(
    "fault, rank, owner, name",
    [more(KILL, 1, *BATCH), (KILL, 0, "machine.files:os", "fsync"), more("raise KeyError('lost')", 2, *BATCH)],
)
def test_a_rank_that_dies_or_raises_ends_all_and_leaves_a_checkpoint(tmp_path, capsys, fault, rank, owner, name):
    path = tmp_path / "kept.npz"
    keep = ["--distributed", "--save", path, "--save-every", "1"]
    what = {"owner": owner, "name": name, "main": "papers.cli:main"}
    done = start(3, "-c", FAULTY.format(**what, number=4, rank=rank, fault=fault), *TRAIN, *keep)
    assert done.returncode
    if "KeyError" in fault:
        assert "rank 2 failed: KeyError: 'lost'" in done.stderr and "Traceback" in done.stderr
    assert len(curve(path)) == 3
    assert cli.main([*TRAIN, "--resume", str(path)]) == 0
    assert "1 iterations" in capsys.readouterr().out


def test_ctrl_c_ends_all_ranks_and_leaves_what_was_saved_last(tmp_path):
    path = tmp_path / "kept.npz"
    arguments = ["-m", "bppsa_nb.papers.cli", *TRAIN[:3], "--samples", "320000", "--distributed", "--backend", "numpy"]
    arguments += ["--save", path, "--save-every", "1"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(3, *arguments), env=os.environ | ENVIRONMENT, **pipes) as process:
        while not (path.exists() and len(curve(path)) > 2):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode and "what --save-every N saved last is kept" in said
    assert len(curve(path)) > 2 and "Traceback" not in said
