"""Programs and suites that are watched without edits: who is told what, children too, and what is left out."""

import json
import os
import re
import signal

import pytest
from test_readme import KERNELS, SOURCE, begin, go

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


SLOW = """
import time, numpy, kernels
kernels.flipped(numpy.ones(64, "f"))
try:
    print("ready", flush=True)
    time.sleep(60)
finally:
    print("tidied")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_interrupted_is_told_all_the_same(folder, number):
    (folder / "slow.py").write_text(SLOW)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background process would ignore
    try:
        with begin(folder, "warpwatch", "run", "slow.py") as process:
            assert process.stdout.readline() == "ready\n"
            # A shell sends Ctrl-C to the command and the program, and `kill` to the command only.
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            said, _ = process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == 128 + number and ("tidied" in said) == (number == signal.SIGINT), said
    assert "race: reverse" in said and "reverse         1  race (in 1 of them)" in said, said


ALONE = """
import warpwatch, numpy
from kernels import flipped
file = open("written.txt", "w")
file.write("all of it")
with warpwatch.device():
    try:
        flipped(numpy.ones(64, "f"))
    except AssertionError:
        print("raised")
"""


@pytest.mark.parametrize("command", [["python", "alone.py"], ["warpwatch", "run", "alone.py"]])
def test_a_device_within_a_program_is_watched_and_files_are_whole(folder, command):
    (folder / "alone.py").write_text(ALONE)
    status, said = go(folder, *command, **{"WARPWATCH": "1"} if command[0] == "python" else {})
    assert status == 1 and "raised" in said and "reverse         1  race (in 1 of them)" in said, said
    assert (folder / "written.txt").read_text() == "all of it"


@pytest.mark.outer
@pytest.mark.parametrize(("value", "status"), [("0", 0), ("", 0), ("yes", 1)])
def test_the_environment_says_1_or_0(folder, value, status):
    (folder / "alone.py").write_text("import warpwatch")
    found, said = go(folder, "python", "alone.py", WARPWATCH=value)
    assert found == status and ("ValueError: WARPWATCH is 1 or 0, not 'yes'" in said) == status, said


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
    for text in ("ignored = []", "steps = 1.5", "steps = true", "steps = 0"):
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
