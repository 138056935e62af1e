"""What the README shows: a missing barrier is found in each of its ways, told by exit status, line and threads."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import more

import warpwatch

pytest.importorskip("numba_cuda", reason="needs a CUDA compiler")
from numba import cuda

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
KERNELS, SUITE, PYTHON, FLAG = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"```sh\n((?:pytest|warpwatch|WARPWATCH).*?)\n```", TEXT)
SOURCE = str(Path(__file__).parents[1] / "src")
FOUND = r"race: reverse, kernels.py, line 8: thread 0 of block 0 reads shared array\[63\].* which thread 63 .* line 7;"


def begin(folder, *command, **environment):
    """Begin a command in a folder."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WARPWATCH", "PYTEST"))}
    env |= {"PYTHONPATH": os.pathsep.join([SOURCE, env.get("PYTHONPATH", "")])} | environment
    if command[0] in ("pytest", "warpwatch", "python"):
        program = {"pytest": ["-m", "pytest"], "warpwatch": ["-m", "warpwatch.cli"], "python": []}[command[0]]
        command = [sys.executable, *program, *command[1:]]
    way = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return subprocess.Popen(command, cwd=folder, env=env, **way)


def go(*command, **environment):
    """Run a command in a folder; return its exit status and all that it wrote."""
    with begin(*command, **environment) as process:
        said, _ = process.communicate()
    return process.returncode, said


@pytest.fixture
def folder(tmp_path):
    """Give a folder with the README's files."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "test_kernels.py").write_text(SUITE)
    return tmp_path


@pytest.mark.parametrize("command", [COMMANDS[0], *map(more, COMMANDS[1:])])
def test_each_command_finds_the_missing_barrier(folder, command):
    *settings, program = re.fullmatch(r"(?:(WARPWATCH)=(1) )?(.*)", command).groups()
    environment = {settings[0]: settings[1]} if settings[0] else {}
    status, said = go(folder, *shlex.split(program), *["-p", "no:cacheprovider"] * ("pytest" in program), **environment)
    assert status == 1 and re.search(FOUND, said), said


def test_python_finds_it_too(folder):
    status, said = go(folder, "python", "-c", PYTHON)
    assert status == 0 and len(re.findall(FOUND, said)) == 2 and "\n0 (0, 63)\n" in said, said


@pytest.mark.parametrize("missing", ["", "# 1", "# 2"])
def test_a_flag_needs_both_fences(missing):
    lines = [line for line in FLAG.splitlines() if not missing or missing not in line]
    exec("\n    ".join(["def kernel(data, flag, out):", *lines]), made := {"cuda": cuda})
    report = warpwatch.run(cuda.jit(made["kernel"]), 2, 1, np.zeros(1), np.zeros(1, "i4"), out := np.zeros(1))
    assert out[0] == 42 and [each.array for each in report.findings] == ["data"] * bool(missing)
    assert ("no fence comes after" in str(report)) == (missing == "# 2")


@pytest.mark.outer
@pytest.mark.parametrize("command", COMMANDS)
def test_with_the_barrier_nothing_is_found(folder, command):
    right = KERNELS.replace("    out[i] = shared[63 - i]", "    cuda.syncthreads()\n    out[i] = shared[63 - i]")
    (folder / "kernels.py").write_text(right)
    program = shlex.split(command.removeprefix("WARPWATCH=1 "))
    status, said = go(folder, *program, **({"WARPWATCH": "1"} if "WARPWATCH" in command else {}))
    assert status == 0 and "race" not in said.replace("a planted race", "") and "reverse" in said, said
