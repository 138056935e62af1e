"""Runs Python on MPI ranks of this machine, for tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")

from bppsa_nb.distributed.engines import find_mpiexec

REPO = Path(__file__).parents[1]
ENVIRONMENT = {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | {
    "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'tests'}"
}


def command(ranks, *arguments):
    """Return the command that runs Python on so many ranks; on 0 of them without mpiexec."""
    launcher = [find_mpiexec(), "-n", str(ranks)] if ranks else []
    return [*launcher, sys.executable, "-W", "error", *map(str, arguments)]


def start(ranks, *arguments, seconds=100):
    """Run Python on ranks; all of them must end in time."""
    run = {"env": os.environ | ENVIRONMENT, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(command(ranks, *arguments), **run, timeout=seconds)
