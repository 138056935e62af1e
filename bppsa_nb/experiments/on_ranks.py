"""Starts the package's measuring programs on MPI ranks of this machine, for several experiments."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from bppsa_nb import files

LINKS = {  # latency in seconds, bytes per second
    "shared memory": (2e-6, 5e9),
    "25 Gb/s Ethernet": (30e-6, 25e9 / 8),
    "200 Gb/s InfiniBand": (2e-6, 200e9 / 8),
}


def mpiexec(what):
    """Find the mpiexec that belongs to this Python.

    Parameters
    ----------
    what : str
        What wants to know; the error names it.

    Returns
    -------
    str

    Raises
    ------
    RuntimeError
        If it or mpi4py is missing, saying what to install.
    """
    beside = shutil.which("mpiexec", path=sysconfig.get_path("scripts"))
    found = beside or shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        raise RuntimeError(
            f"{what} runs on MPI ranks and needs mpi4py and mpiexec: `pip install 'bppsa-nb[mpi]'` installs both"
        )
    return found


def run(mpiexec, ranks, program, *arguments):
    """Run a program of the package on some ranks, one thread each.

    Parameters
    ----------
    mpiexec : str
    ranks : int
    program : str
        A module with ``--output``, such as ``"bppsa_nb.multigrid"``.
    *arguments
        Its other arguments.

    Returns
    -------
    dict
        What it wrote.

    Raises
    ------
    RuntimeError
        If it fails, with what it printed.
    """
    alone = {f"{name}_NUM_THREADS": "1" for name in ("NUMBA", "OPENBLAS", "OMP", "MKL")}
    alone["PYTHONPATH"] = os.pathsep.join([str(files.root()), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "measured.json")
        command = [mpiexec, "-n", ranks, sys.executable, "-m", program, *arguments, "--output", output]
        how = {"env": os.environ | alone, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run([str(part) for part in command], **how)
        if done.returncode:
            raise RuntimeError(f"{ranks} ranks ended with {done.returncode}:\n{done.stderr or done.stdout}")
        return json.loads(output.read_text())
