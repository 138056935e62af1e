"""Measure what it takes to reproduce each figure: seconds, memory and disk of `bppsa-nb figures --only NAME`.

Run ``python benchmarks/costs.py`` in a checkout, with nothing else at work, and with compiled code cached: run it, or
`make figures`, once before. Every command runs in a process of its own, at the quick scale. Its memory is the most that
it, or one of the processes that it starts, held at a time. Its disk is its table and its pictures. It redraws
figures/ from what it measures; `git restore figures` brings the committed ones back.
"""

import argparse
import os
import subprocess
import sys
import time

from tqdm.auto import tqdm

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, provenance


def measure(name):
    """Run the command that measures and draws one figure; return what it took, a row."""
    command = [sys.executable, "-m", "bppsa_nb.papers.cli", "figures", "--only", name]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=files.root(), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    made = [*files.root().glob(f"figures/{name}.*")]
    made += files.root().glob(f"data/measured/{provenance.device()}/{name}.quick.*")
    return {"name": name, "seconds": seconds, "memory": memory, "bytes": sum(path.stat().st_size for path in made)}


def main():
    """Measure all experiments that measure, print each, and record the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", action="store_true", help="record references, which git tracks")
    arguments = parser.parse_args()
    if arguments.reference:
        provenance.check_committed()
    rows = []
    for name in tqdm(experiments.names(), disable=None):
        try:
            rows.append(measure(name))
        except subprocess.CalledProcessError:  # it is drawn from a benchmark's recording, which is not here
            print(f"{name:<28} left out", flush=True)
            continue
        row = rows[-1]
        held, written = f"{row['memory'] / 2**20:8.0f} MiB", f"{row['bytes'] / 1e3:8.0f} kB"
        print(f"{name:<28}{row['seconds']:8.1f} s{held}{written}", flush=True)
    with experiments.references(arguments.reference):
        print(experiments.record(rows, "costs", "quick", 0))


if __name__ == "__main__":
    main()
