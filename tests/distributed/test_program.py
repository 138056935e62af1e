import json
import re
import sys

import numpy as np
import pytest
from on_mpi import start

from bppsa_nb.distributed import __main__ as program
from bppsa_nb.distributed import measure, predict

FEW = ["--steps", "9", "5", "--batch", "2", "--width", "3", "--backend", "numpy", "--repeat", "1"]
PROGRAM = "-m", "bppsa_nb.distributed"


@pytest.fixture(scope="module")
def measured(rank_session, tmp_path_factory):
    """Run the program on some ranks, once; return what it wrote and printed."""
    folder, known = tmp_path_factory.mktemp("program"), {}

    def found(ranks, cell):
        if (ranks, cell) not in known:
            path = folder / f"{ranks}.{cell}.json"
            run = start if ranks in (0, 2) else rank_session.run  # as users do, or sooner
            done = run(ranks, *PROGRAM, "--cell", cell, *FEW, "--scan-widths", "2", "3", "--output", path)
            assert done.returncode == 0, done.stderr
            known[ranks, cell] = json.loads(path.read_text()), done.stdout
        return known[ranks, cell]

    return found


RUNS = [(0, "rnn"), (1, "residual"), (2, "residual"), (5, "gru")]
RUNS += [pytest.param(*run, marks=pytest.mark.full) for run in ((4, "residual"), (7, "rnn"))]


@pytest.mark.parametrize("ranks, cell", RUNS)
def test_every_rank_method_and_length_is_measured(measured, ranks, cell):
    found, printed = measured(ranks, cell)
    size = max(ranks, 1)
    assert found["arguments"]["ranks"] == size and found["arguments"]["scan_widths"] == [2, 3]
    key = [(row["steps"], row["rank"], row["method"]) for row in found["rows"]]
    assert sorted(key) == sorted((T, r, m) for T in (9, 5) for r in range(size) for m in ("chunked", "linear"))
    assert sorted(key) == sorted((row["steps"], row["rank"], row["method"]) for row in found["memory"])
    for row in found["rows"]:
        assert row["done_by"] == row["method"] and row["round"] == 0
        assert 0 <= row["communication"] <= row["seconds"]
    for T in (9, 5):
        links = [row["links"] for row in found["memory"] if (row["steps"], row["method"]) == (T, "linear")]
        assert sum(links) == T and max(links) - min(links) <= 1
        assert f"links on each rank: {', '.join(map(str, links))}" in printed
    if sys.platform == "linux":
        assert all(row["bytes"] >= 0 for row in found["memory"])


@pytest.mark.parametrize("ranks, cell", RUNS)
def test_methods_agree(measured, ranks, cell):
    differences = measured(ranks, cell)[0]["differences"]
    assert len(differences) == 2 * max(ranks, 1)
    assert max(row["difference"] for row in differences) <= 1e-5
    if ranks == 4:  # whose middle ranks have multiplied in another order
        assert max(row["difference"] for row in differences) > 0


@pytest.mark.parametrize("ranks, cell", RUNS)
def test_calls_of_the_operation_are_those_of_recursive_doubling(measured, ranks, cell):
    size = max(ranks, 1)
    found = measured(ranks, cell)[0]
    known = predict.exscan(np.zeros(size), predict.Interconnect(0, 1), predict.Diamonds(0, 0, 0, 0, 0))[1][::-1]
    assert max(known) <= 2 * np.ceil(np.log2(size))
    for row in found["exscans"] + [row for row in found["rows"] if row["method"] == "chunked"]:
        assert row["combined"] == known[row["rank"]]
    assert all(row["combined"] == 0 for row in found["rows"] if row["method"] == "linear")


def test_one_rank_is_timed_by_itself_and_several_exchange_messages(measured):
    rnn, residual, several = (measured(*which)[0] for which in (RUNS[0], RUNS[1], RUNS[2]))
    parts = {"steps", "forward", "sweep", "backward", "product"}
    assert [set(row) for row in rnn["parts"]] == [parts] * 2
    assert [set(row) for row in residual["parts"]] == [parts | {"jacobians", "back"}] * 2
    assert [row["bytes"] for row in several["messages"]] == list(measure.MESSAGES)
    assert "messages" not in rnn and "parts" not in several and "diamonds" not in several
    for row in rnn["diamonds"]:  # kind; exponents, rows and offset of two samples
        assert row["bytes"] == 8 + 2 * (8 * row["width"] + 4 * row["width"] ** 2 + 4 * row["width"])
        assert min(row["merge"], row["apply"], row["keep"]) > 0
    assert [row["bytes"] for row in several["exscans"] if row["rank"] == 0] == [r["bytes"] for r in rnn["diamonds"]]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--scan-widths", "4", "0"], "--scan-widths must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--cell", "lstm"], "argument --cell: invalid choice: 'lstm'"),
        (["--output", "nowhere/times.json"], "--output must be a file in a folder that exists"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit) as error:
        program.main(arguments)
    assert error.value.code == 2 and said in capsys.readouterr().err


def test_one_rank_says_what_is_wrong(rank_session):
    done = rank_session.run(3, *PROGRAM, "--cell", "residual", "--steps", "2")
    said = "--steps of a residual network must be at least the 3 ranks, got 2"
    assert done.returncode != 0 and len(re.findall(said, done.stderr)) == 1


def test_a_program_that_fails_on_one_rank_ends(tmp_path):
    # The last rank has no room for its steps; the others wait for nobody.
    script = tmp_path / "fail.py"
    script.write_text(
        "from mpi4py import MPI\n"
        "from bppsa_nb.distributed import __main__ as program, measure\n"
        "def peak(call):\n"
        "    if MPI.COMM_WORLD.rank == 1:\n"
        "        raise MemoryError('no room')\n"
        "    return call(), None\n"
        "measure.peak = peak\n"
        "program.main(['--steps', '6', '--backend', 'numpy', '--repeat', '1'])\n"
    )
    done = start(2, script)
    assert done.returncode != 0 and "rank 1: MemoryError: no room" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_peak_is_what_a_call_adds_even_where_memory_was_freed_before():
    size = 40 * 2**20
    np.ones(size // 8)  # freed at once

    def call():
        np.ones(size // 8)
        return np.ones(size // 16)

    result, most = measure.peak(call)
    assert result.nbytes == size // 2 and 0.9 * size < most < 1.4 * size
    assert measure.peak(lambda: None)[1] < 0.1 * size


def test_a_peak_is_unknown_where_the_system_does_not_tell(monkeypatch):
    def refuse(*arguments, **named):
        raise FileNotFoundError

    monkeypatch.setattr(measure.Path, "read_text", refuse)
    assert measure.peak(lambda: 3) == (3, None)
