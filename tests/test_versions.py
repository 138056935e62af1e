"""The quick tests pass on every Python, with the oldest and with the newest dependencies that pyproject.toml allows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
ROOMS = "cells chains graphs machine multigrid networks operands puzzles scan schedule training test_cuda.py"
ROOMS += " test_garbage.py"
UV = [sys.executable, "-m", "uv"]  # unlike pip, it finds the oldest versions that there are wheels of


def run(command, folder, **environment):
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-2000:]}"


@pytest.mark.full
@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_quick_tests_pass(tmp_path, python, resolution):
    if subprocess.run([*UV, "python", "find", "--no-python-downloads", python], capture_output=True).returncode:
        pytest.skip(f"there is no Python {python} here")
    tree, there = tmp_path / "tree", tmp_path / "there"
    shutil.copytree(REPO, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "measured"))
    run([*UV, "venv", "--no-python-downloads", "--python", python, there], tree)
    wanted = ["--requirements", "pyproject.toml", "--extra", "all", "--extra", "test", "--only-binary", ":all:"]
    run([*UV, "pip", "install", "--python", there, "--resolution", resolution, *wanted], tree)
    python = there / ("Scripts" if os.name == "nt" else "bin") / "python"
    tests = [python, "-m", "pytest", "-q", "--numprocesses=logical"]
    own = {"PYTHONPATH": str(tree), "PYTEST_ADDOPTS": ""}
    quick = ["--dist=loadfile", "-m", "not outer and not full and not peers"]
    run([*tests, *quick, *(f"tests/{name}" for name in ROOMS.split())], tree, **own)
