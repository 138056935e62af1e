import json
import re
from pathlib import Path

import numpy as np
import pytest
from on_mpi import start

from bppsa_nb import multigrid
from bppsa_nb.multigrid import __main__ as program

FEW = ["--depth", "21", "--width", "3", "--backend", "numpy", "--coarsening", "2", "--levels", "3", "--repeat", "1"]


@pytest.fixture(scope="module")
def on_ranks(rank_session, tmp_path_factory):
    """Run `ranks.py` on some ranks, once; return what every rank found."""
    folder, known = tmp_path_factory.mktemp("ranks"), {}

    def found(ranks):
        if ranks not in known:
            path = folder / f"{ranks}.json"
            done = rank_session.run(ranks, Path(__file__).with_name("ranks.py"), path)
            assert done.returncode == 0, done.stderr
            known[ranks] = json.loads(path.read_text())
        return known[ranks]

    return found


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4))])
def test_any_number_of_ranks_finds_the_same_bits(on_ranks, ranks):
    every = on_ranks(ranks)
    assert len(every) == ranks
    assert [rank["differing"] for rank in every] == [[]] * ranks


# What the rank at fault says, and what the others do; None where all say the same.
REFUSALS = {
    "nan": ("ValueError: u0 must be finite, got nan", "rank LAST raised ValueError: u0 must be finite, got nan"),
    "adjoint nan": (
        "ValueError: grad_output must be finite",
        "rank LAST raised ValueError: grad_output must be finite",
    ),
    "nan state": ("ValueError: states must be finite", "rank LAST raised ValueError: states must be finite"),
    "type": ("TypeError: u0 must have the model's dtype", "rank LAST raised TypeError: u0 must have the model's dtype"),
    "option": ("ValueError: relaxation must be one of", "rank LAST raised ValueError: relaxation must be one of"),
    "initial": ("ValueError: initial must have shape", "rank LAST raised ValueError: initial must have shape"),
    "two at fault": ("ValueError: u0 must be finite, got nan", "^ValueError: u0 must be finite, got inf"),
    "h": (r"net must be the same .*: rank LAST has another .*h=0\.054", r"rank LAST has another .*h=0\.027"),
    "batch": (r"u0 or grad_output must be the same .* shape \(1, 5\)", r"rank LAST has another .* shape \(2, 5\)"),
    "u0": ("u0 or grad_output must be the same on all ranks: rank LAST has another", None),
    "some initial": ("whether initial is given must be the same .* it is False", "rank LAST has another .* it is True"),
    "cycles": ("cycles must be the same .* it is 2", "rank LAST has another .* it is 3"),
    "tol": ("tol must be the same .* it is 1e-08", "rank LAST has another .* it is 1e-09"),
    "skip_downcycle": ("skip_downcycle must be the same .* it is True", "rank LAST has another .* it is False"),
    "solver": ("the solver must be the same .* it is solve_adjoint", "rank LAST has another .* it is solve$"),
    "cut": (r"^ValueError: ranks must hold multiples of 3 layers, all but the last, .*; got \[1, 1", None),
    "levels": ("^ValueError: levels must be at most 5 for 37 layers", None),
    "overflow": ("^FloatingPointError: cycle 1 leaves the range of float64", None),
    "no communicator": ("^TypeError: comm must be an mpi4py.MPI.Intracomm, .* got 'COMM_WORLD'", None),
    "no rank": ("^TypeError: comm must be an mpi4py.MPI.Intracomm", None),
    "left out": ("^TypeError: comm must be an mpi4py.MPI.Intracomm", None),
}


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_one_rank_cannot_do_none_does(on_ranks, ranks):
    every = [rank["refused"] for rank in on_ranks(ranks)]
    for rank, said in enumerate(every):
        assert said.keys() == REFUSALS.keys()
        for name, (at_fault, otherwise) in REFUSALS.items():
            expected = at_fault if rank == ranks - 1 or otherwise is None else otherwise
            assert re.search(expected.replace("LAST", str(ranks - 1)), said[name]), (rank, name, said[name])


def test_a_communicator_is_one_of_mpi4py_s():
    net = multigrid.ResidualNetwork(np.zeros((4, 2, 2)), np.zeros((4, 2)), 0.25)
    for wrong in "world", 4, object():
        with pytest.raises(TypeError, match=r"comm must be an mpi4py\.MPI\.Intracomm, such as .*, or None, got"):
            multigrid.solve(net, np.zeros((1, 2)), comm=wrong)
    assert multigrid.solve(net, np.zeros((1, 2)), backend="numpy", comm=None).communication == 0


def results(done):
    assert done.returncode == 0, done.stderr
    return re.search(r"results (\w+),", done.stdout)[1]


@pytest.mark.parametrize("kind", [[], ["--channels", "2", "--image", "4", "--kernel", "5", "--weights", "independent"]])
def test_the_program_prints_and_stores_the_same_on_any_number_of_ranks(rank_session, tmp_path, kind):
    arguments = ["-m", "bppsa_nb.multigrid", *FEW[:2], *(kind or FEW[2:4]), *FEW[4:]]
    run = rank_session.run if kind else start  # sooner, or as users do
    one, three = rank_session.run(1, *arguments), run(3, *arguments, "--output", tmp_path / "times.json")
    assert results(one) == results(three)
    stored = json.loads((tmp_path / "times.json").read_text())
    assert stored["layers"] == [8, 8, 5] and stored["results"] == results(one)
    assert max(stored["residuals"]["states"][-1], stored["residuals"]["gradients"][-1]) <= 1e-9
    assert [(row["rank"], row["method"], row["task"]) for row in stored["rows"]] == [
        (rank, method, task)
        for rank in range(3)
        for method in ("multigrid", "serial")
        for task in ("inference", "training")
    ]
    assert all(0 < row["communication"] <= row["seconds"] for row in stored["rows"])
    lines = one.stdout.splitlines(), three.stdout.splitlines()
    assert [line.split()[0] for line in lines[1][-3:]] == ["0", "1", "2"]
    assert [line for line in lines[0] if "residuals" in line] == [line for line in lines[1] if "residuals" in line]
    assert "layers on each rank: 8, 8, 5" in lines[1]


def test_the_program_needs_mpi4py_for_several_ranks_only():
    script = (
        "import sys; sys.modules['mpi4py'] = None\nfrom bppsa_nb.multigrid import __main__ as p\np.main(sys.argv[1:])"
    )
    assert results(start(0, "-c", script, *FEW)) == results(start(0, "-m", "bppsa_nb.multigrid", *FEW))
    done = start(2, "-c", script, *FEW)
    assert done.returncode and "`pip install 'bppsa-nb[mpi]'` installs mpi4py" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--depth", "0"], "depth must be at least 1, got 0"),
        (["--levels", "4"], "ranks must be at most the 1 steps"),
        (["--tol", "-1"], "tol must be >= 0"),
        (["--time", "0"], "h must be positive"),
        (["--batch", "0"], "--batch must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--kernel", "3"], "--kernel and --image are of convolutions: give their --channels too"),
        (["--skip-downcycle", "--nested-iteration"], "take one of them"),
        (["--cycles", "2", "--tol", "1"], "not allowed with argument"),
        (["--weights", "wide"], "invalid choice: 'wide'"),
        (["--output", "no such folder/times.json"], "--output must be a file in a folder that exists, got 'no such"),
        (["--output", "/"], "--output must be a file in a folder that exists, got '/'"),
        (["--output", ""], "--output must be a file in a folder that exists, got ''"),
    ],
)
def test_bad_arguments_are_errors_of_usage(arguments, error, monkeypatch, capsys):
    monkeypatch.setattr(program.ranks, "world", lambda: type("TwoRanks", (), {"size": 2, "rank": 0}))
    with pytest.raises(SystemExit, match="2"):
        program.main(["--depth", "8", "--coarsening", "2", "--backend", "numpy", *arguments])
    assert error in capsys.readouterr().err


def test_a_tolerance_that_is_not_reached_is_a_sentence(monkeypatch):
    monkeypatch.setattr(program.ranks, "world", lambda: None)
    with pytest.raises(SystemExit, match="^RuntimeError: tol=0 is not reached: "):
        program.main(["--depth", "100", "--time", "20", "--tol", "0", "--backend", "numpy", "--weights", "independent"])


def test_too_many_ranks_say_so_once(rank_session):
    done = rank_session.run(3, "-m", "bppsa_nb.multigrid", "--depth", "8", "--backend", "numpy")
    assert done.returncode == 2
    assert done.stderr.count("ranks must be at most the 2 steps that 2 levels leave") == 1


FAULTY = """
import os, signal, sys
from mpi4py import MPI
from bppsa_nb.multigrid import __main__ as program

train, steps = program._train, []

def fault(*arguments):
    steps.append(1)
    if len(steps) == 2 and MPI.COMM_WORLD.rank == 1:
        {}
    return train(*arguments)

program._train = fault
program.main(sys.argv[1:])
"""


@pytest.mark.parametrize("fault", ["os.kill(os.getpid(), signal.SIGKILL)", "raise OSError('lost')", "sys.exit('lost')"])
def test_a_rank_that_dies_or_raises_ends_all(fault):
    done = start(3, "-c", FAULTY.format(fault), *FEW)
    assert done.returncode
    if "SIGKILL" not in fault:
        assert "lost" in done.stderr
    if "OSError" in fault:
        assert "Traceback" in done.stderr and "OSError: lost" in done.stderr
