"""Programs and suites that are watched without edits: who is told what, children too, and what is left out."""

import json
import re

import pytest
from test_readme import KERNELS, SOURCE, go

from warpwatch import program

SUITE = """
import multiprocessing, os, subprocess, sys
import numpy as np, pytest
from kernels import flipped
X = np.arange(64, dtype=np.float32)

@pytest.fixture
def launched():
    yield flipped(X)

def test_race(): flipped(X)
def test_wrong_and_race(): assert flipped(X)[0] == 1
def test_child(): subprocess.run([sys.executable, "kernels.py"], check=True)
def test_fork():
    process = multiprocessing.get_context("fork").Process(target=flipped, args=(X,))
    process.start(), process.join()
def test_caught():
    try:
        flipped(X)
    except AssertionError:
        pass
def test_fixture(launched): pass
@pytest.mark.xfail
def test_expected(): flipped(X)
@pytest.mark.warpwatch(ignore=["rev*: race"])
def test_left_out(): flipped(X)
@pytest.mark.warpwatch(ignore=["reverse: barrier"])
def test_another_kind(): flipped(X)
def test_nothing(): pass
def test_skipped(): flipped(X); pytest.skip("later")
def test_refused():
    try:
        flipped.__globals__["reverse"][1, 2000](X, X)
    except ValueError:
        pass

class Case(__import__("unittest").TestCase):
    def test_case(self): flipped(X)
    def test_failing_case(self): self.assertEqual(flipped(X)[0], 1)
"""
LOOPS = """
import numpy as np
from kernels import cuda, flipped

@cuda.jit
def count(out):
    for i in range(100):
        out[i % 3] += 1

flipped(np.ones(64, 'f'))
count[1, 1](np.zeros(3))
"""
OUTCOMES = {
    "FAILED": "race wrong_and_race child fork caught another_kind skipped refused case failing_case",
    "ERROR": "fixture", "XFAIL": "expected", "PASSED": "left_out nothing",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Give a folder with a kernel and a suite."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "test_kernels.py").write_text(SUITE)
    return tmp_path


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.outer)])
def test_what_is_found_fails_the_test_that_launched_it(folder, workers):
    status, said = go(folder, "pytest", "-v", "-rA", "-p", "no:cacheprovider", "--warpwatch", *workers)
    for outcome, names in OUTCOMES.items():
        for name in names.split():
            assert f"{outcome} test_kernels.py::{'Case::' * ('case' in name)}test_{name}" in said, said
    assert status == 1 and re.search(r"E +assert np.float32\(63.0\) == 1\n(E .*\n)*E +race: reverse", said), said
    assert re.search(r"AssertionError: np.float32.63.0. != 1\n(E .*\n)*E? *race: reverse", said), said
    assert "reverse        13  race (in 11 of them), not run (in 1 of them), 1 left out by `ignore`" in said
    assert "launches: 13; kernels: 1, of which faulty: 1; a planted race and a planted overrun were found" in said


@pytest.mark.outer
def test_without_the_option_nothing_is_imported(folder):
    (folder / "test_kernels.py").write_text("import sys\ndef test(): assert 'warpwatch.program' not in sys.modules\n")
    assert go(folder, "pytest", "-q", "-p", "no:cacheprovider")[0] == 0


@pytest.mark.outer
def test_what_is_launched_outside_of_tests_fails_the_session(folder):
    module = "import numpy\nfrom kernels import flipped\nflipped(numpy.ones(64, 'f'))\ndef test_nothing(): pass\n"
    (folder / "test_kernels.py").write_text(module)
    status, said = go(folder, "pytest", "-p", "no:cacheprovider", "--warpwatch")
    assert status == 1 and "1 passed" in said and "Outside of tests:\nrace: reverse" in said


def test_pyproject_leaves_out_and_sets_a_limit(folder):
    (folder / "pyproject.toml").write_text('[tool.warpwatch]\nignore = ["reverse: race"]\nsteps = 20\n')
    (folder / "loops.py").write_text(LOOPS)
    status, said = go(folder, "warpwatch", "run", "loops.py")
    assert status == 1 and "reverse         1  nothing, 1 left out by `ignore`" in said
    assert "count           1  endless (in 1 of them)" in said and "is here after 21 steps\n" in said


@pytest.mark.outer
def test_a_program_s_own_status_and_annotations(folder):
    (folder / "fails.py").write_text("import sys, kernels\nsys.exit(int(sys.argv[1]))\n")
    assert go(folder, "warpwatch", "run", "fails.py", "7")[0] == 7
    status, said = go(folder, "warpwatch", "run", "-m", "kernels", GITHUB_ACTIONS="true")
    assert status == 1 and "::error file=kernels.py,line=8,title=warpwatch::race: reverse" in said
    status, said = go(folder, "warpwatch", "run", "-m", "pytest", "-p", "no:cacheprovider", "-k", "test_race")
    assert status == 1 and said.count("reverse         1  race (in 1 of them)") == 2  # by pytest, and after it
    assert go(folder, "warpwatch", "run", "-c", "")[1].endswith("warpwatch: no kernel was launched\n")
    status, said = go(folder, "warpwatch", "run", "./none", "--help")
    assert status == 2 and "No such file or directory: './none'" in said


def test_the_simulator_is_refused(folder):
    status, said = go(folder, "warpwatch", "run", "kernels.py", NUMBA_ENABLE_CUDASIM="1")
    assert status != 0 and "NUMBA_ENABLE_CUDASIM is set" in said


@pytest.mark.outer
def test_a_hidden_sitecustomize_runs_as_well(folder, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('mine')\n")
    said = go(folder, "warpwatch", "run", "-c", "pass", PYTHONPATH=f"{tmp_path / 'own'}:{SOURCE}")[1]
    assert said.count("mine") == 2  # of the command itself, too


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("race", "ignore is a list"), ([1], "ignore is a list"), (["k: rase"], "'k: rase' is not KERNEL or KERNEL: KIND"),
     ([": race"], "': race' is not KERNEL")],
)  # fmt: skip
def test_rules_that_say_nothing_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        program.rules(wrong)


def test_settings_that_are_unknown_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("ignored = []", "steps = 1.5", "steps = true"):
        (tmp_path / "pyproject.toml").write_text(f"[tool.warpwatch]\n{text}\n")
        with pytest.raises(ValueError, match="pyproject.toml: .tool.warpwatch. has a list `ignore` and a number"):
            program.settings()


def test_rows_are_read_as_they_come_whole(tmp_path):
    watch = program.Watch()
    watch.path = tmp_path / "launches"
    row = {"kernel": "k", "unchecked": [], "found": []}
    watch.path.write_text(json.dumps(row) + "\n" + json.dumps(row)[:9])  # the second is being written
    assert watch.take() == [row | {"left": 0}] and watch.take() == []
    with watch.path.open("a") as file:
        file.write(json.dumps(row)[9:] + "\n")
    assert watch.take() == [row | {"left": 0}] and len(watch.rows) == 2
