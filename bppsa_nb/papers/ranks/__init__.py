"""Programs that measure on MPI ranks, how experiments start them, and ranks that a notebook talks to."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bppsa_nb.machine import files
from bppsa_nb.papers.ranks.engines import find_mpiexec
from bppsa_nb.papers.ranks.model import Costs, Interconnect, OperatorCosts

SLOW, FAST = "25 Gb/s Ethernet", "200 Gb/s InfiniBand"
LINKS = {SLOW: Interconnect(30e-6, 25e9 / 8), FAST: Interconnect(2e-6, 200e9 / 8)}


def run(ranks, program, *arguments):
    """Run a program of `bppsa_nb.papers.ranks` on some ranks, one thread each; return what it measured.

    Programs are "chain" and "layers". If one fails, there is a RuntimeError with what it printed.
    """
    alone = {f"{name}_NUM_THREADS": "1" for name in ("NUMBA", "OPENBLAS", "OMP", "MKL")}
    alone["PYTHONPATH"] = os.pathsep.join([str(files.root()), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "measured.json")
        command = [find_mpiexec(), "-n", ranks, sys.executable, "-m", "bppsa_nb.papers.ranks", program, *arguments]
        how = {"env": os.environ | alone, "stdin": subprocess.DEVNULL, "capture_output": True, "errors": "replace"}
        done = subprocess.run([str(part) for part in (*command, "--output", output)], **how)
        if done.returncode:
            raise RuntimeError(f"{ranks} ranks ended with {done.returncode}:\n{done.stderr or done.stdout}")
        return json.loads(output.read_text())


def alone(cell, width, steps, batch, rounds):
    """Run the program on one rank; return a row of seconds per step, and per ⋄."""
    how = ["--cell", cell, "--width", width, "--steps", steps, "--batch", batch, "--backend", "cpu"]
    measured = run(1, "chain", *how, "--repeat", rounds)
    parts, operator, scan = (measured[name][0] for name in ("parts", "operator", "scans"))
    sweep = parts.get("back", parts["sweep"])  # with Jacobians or without, whatever the network has
    seconds = {"forward": parts["forward"], "sweep": sweep, "gradients": max(parts["backward"] - sweep, 0)}
    seconds |= {"jacobian": parts.get("jacobians", 0), "product": parts["product"]}
    row = {"width": width, "matrix": width**2 if cell == "residual" else width, "bytes": operator["bytes"]}
    row |= {"merge": operator["product"], "apply": operator["apply"], "start": scan["seconds"]}
    return [row | {name: each / steps for name, each in seconds.items()}]


def costs(row, batch):
    """Turn a row that `alone` measured for a batch into what models take."""
    operator = OperatorCosts(*(row[name] for name in ("merge", "apply", "start", "bytes")))
    steps = (row[name] for name in ("forward", "sweep", "gradients", "jacobian", "product"))
    return Costs(*steps, 4 * batch * int(row["width"]), operator)
