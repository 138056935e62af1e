"""``python -m bppsa_nb.papers.ranks``: what it measures of chains and of layers, and how it ends."""

import itertools
import json
import re
import sys

import numpy as np
import pytest
from on_mpi import FAULTY, start
from rings import large, more
from texts import beside

from bppsa_nb.papers.ranks import __main__ as program
from bppsa_nb.papers.ranks import measure, model

FEW = ["--steps", "9", "5", "--batch", "2", "--width", "3", "--backend", "numpy", "--repeat", "1"]
LAYERS = ["--depth", "21", "--backend", "numpy", "--coarsening", "2", "--levels", "3", "--repeat", "1"]
PROGRAM = "-m", "bppsa_nb.papers.ranks"


@pytest.fixture(scope="module")
def measured(rank_session, tmp_path_factory):
    """Run the program for chains on some ranks, once; return what it wrote."""
    folder, known = tmp_path_factory.mktemp("program"), {}

    def found(ranks, cell):
        if (ranks, cell) not in known:
            path = folder / f"{ranks}.{cell}.json"
            run = start if ranks in (0, 2) else rank_session.run  # as users do, or sooner
            done = run(ranks, *PROGRAM, "--cell", cell, *FEW, "--scan-widths", "2", "3", "--output", path)
            assert done.returncode == 0, done.stderr
            known[ranks, cell] = json.loads(path.read_text())
            assert f"ranks {max(ranks, 1)}\n\nrows\n  steps 9, rank 0, method " in done.stdout
        return known[ranks, cell]

    return found


RUNS = [(0, "rnn"), (1, "residual"), (2, "residual"), (4, "gru"), more(5, "gru")]
RUNS += [large(*run) for run in ((4, "residual"), (7, "rnn"))]


@pytest.mark.parametrize("ranks, cell", RUNS)
def test_every_rank_method_and_length_is_measured(measured, ranks, cell):
    found, size = measured(ranks, cell), max(ranks, 1)
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
    if sys.platform == "linux":
        assert all(row["bytes"] >= 0 for row in found["memory"])
    differences = [row["difference"] for row in found["differences"]]
    assert len(differences) == 2 * size and max(differences) <= 1e-5
    if ranks == 4:  # whose middle ranks have multiplied in another order
        assert max(differences) > 0
    known = model.exscan(np.zeros(size), model.Interconnect(0, 1), model.OperatorCosts(0, 0, 0, 0))[1][::-1]
    assert max(known) <= 2 * np.ceil(np.log2(size))
    for row in found["scans"] + [row for row in found["rows"] if row["method"] == "chunked"]:
        fewer = row["combined"] < known[row["rank"]] and row.get("steps", size) < size  # segments without links
        assert fewer or row["combined"] == known[row["rank"]]
    assert all(row["combined"] == 0 for row in found["rows"] if row["method"] == "linear")


def test_one_rank_is_timed_by_itself_and_several_exchange_messages(measured):
    rnn, residual, several = (measured(*which) for which in (RUNS[0], RUNS[1], RUNS[2]))
    parts = {"steps", "forward", "sweep", "backward", "product"}
    assert [set(row) for row in rnn["parts"]] == [parts] * 2
    assert [set(row) for row in residual["parts"]] == [parts | {"jacobians", "back"}] * 2
    assert [row["bytes"] for row in several["messages"]] == list(measure.MESSAGES)
    assert rnn["messages"] == several["parts"] == several["operator"] == residual["forward"] == []
    assert {row["method"] for row in rnn["forward"]} == {"chunked", "linear"}
    for row in rnn["operator"]:  # exponents, rows and offset of two samples
        assert row["bytes"] == 2 * (8 * row["width"] + 4 * row["width"] ** 2 + 4 * row["width"])
        assert min(row["product"], row["apply"]) > 0
    assert [row["bytes"] for row in several["scans"] if row["rank"] == 0] == [r["bytes"] for r in rnn["operator"]]


@pytest.mark.parametrize(
    "kind", [["--width", "3"], ["--channels", "2", "--image", "4", "--kernel", "5", "--weights", "independent"]]
)
def test_layers_are_the_same_on_any_number_of_ranks(rank_session, tmp_path, kind):
    every = []
    for ranks in 1, 3:
        run, path = rank_session.run if ranks == 1 or "--width" in kind else start, tmp_path / f"{ranks}.json"
        done = run(ranks, "-m", "bppsa_nb.papers.ranks", "layers", *LAYERS, *kind, "--output", path)
        assert done.returncode == 0 and "\n\nresiduals\n  of states, cycle 1, " in done.stdout, done.stderr
        every.append(json.loads(path.read_text()))
    one, three = every
    assert one["residuals"] == three["residuals"] and three["residuals"][-1]["residual"] <= 1e-9
    assert {row["of"] for row in one["residuals"]} == {"states", "gradients"}
    assert [row["layers"] for row in three["layers"]] == [8, 8, 5]
    wanted = itertools.product(range(3), ("multigrid", "serial"), ("inference", "training"), [0])
    assert [(row["rank"], row["method"], row["task"], row["round"]) for row in three["rows"]] == list(wanted)
    assert all(0 < row["communication"] <= row["seconds"] for row in three["rows"])
    assert all(0 <= row[name] < 1e-8 for row in three["differences"] for name in ("states", "gradients"))


@pytest.mark.outer
def test_layers_need_mpi4py_for_several_ranks_only():
    script = f"import sys; sys.modules['mpi4py'] = None; from {program.__name__} import main; main(sys.argv[1:])"
    few = ["layers", *LAYERS, "--width", "3"]
    assert start(0, "-c", script, *few).returncode == 0
    done = start(2, "-c", script, *few)
    assert done.returncode and "`pip install 'bppsa-nb[mpi]'` installs mpi4py" in done.stderr
    done = start(0, "-c", script, *FEW)
    assert done.returncode == 2 and "ranks need mpi4py: `pip install 'bppsa-nb[mpi]'`" in done.stderr


@pytest.mark.parametrize("arguments, said", beside(__file__)["refused"])
def test_wrong_arguments_are_refused(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(program.ranks, "world", lambda: type("TwoRanks", (), {"size": 2, "rank": 0}))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(SystemExit) as error:
        program.main(arguments)
    assert error.value.code == 2 and said in capsys.readouterr().err


def test_one_rank_says_what_is_wrong(rank_session):
    done = rank_session.run(3, "-m", "bppsa_nb.papers.ranks", "layers", "--depth", "8", "--backend", "numpy")
    said = "usage: python -m bppsa_nb.papers.ranks .*\n.*error: ranks must be at most the 2 steps that 2 levels leave"
    assert done.returncode == 2 and len(re.findall(said, done.stderr)) == 1


ENDS = [("_train", "os.kill(os.getpid(), signal.SIGKILL)", ""), more("_train", "sys.exit('lost')", "lost")]
ENDS += [more("_train", "raise OSError('lost')", "Traceback(?s:.*)OSError: lost")]
ENDS += [more("peak", "raise MemoryError('no room')", "^rank 1: MemoryError: no room$")]


@pytest.mark.parametrize("name, fault, said", ENDS)
def test_a_rank_that_dies_or_raises_ends_all(name, fault, said):
    # The others wait for nobody.
    owner, arguments = ("measure", FEW) if name == "peak" else ("layers", ["layers", *LAYERS, "--width", "3"])
    what = {"owner": f"papers.ranks.{owner}", "name": name, "main": "papers.ranks.__main__:main"}
    done = start(3, "-c", FAULTY.format(**what, number=2, rank=1, fault=fault), *arguments)
    assert done.returncode and re.search(said, done.stderr, re.MULTILINE), done.stderr


def test_what_can_be_foreseen_is_a_sentence(monkeypatch):
    monkeypatch.setattr(program.ranks, "world", lambda: None)
    with pytest.raises(SystemExit, match="^RuntimeError: tol=0 is not reached: "):
        program.main("layers --depth 100 --time 20 --tol 0 --backend numpy --weights independent".split())


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
