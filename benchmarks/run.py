"""Measure everything side by side, in one process and one run: this package, PyTorch and JAX.

Install the peers with ``pip install -e '.[bench]'``, then run ``python benchmarks/run.py``. Peers that are not
installed do not compete. What takes part in one comparison takes turns, warm, so that a busy moment of the machine
meets all of it, and waits until its device is done; reported are medians and quartiles. Compilation is not counted;
what a method must prepare, Jacobians included, is. The tables are recorded in ``data/measured/<device>/``, at scale
"paper", or "quick" with ``--quick``, each as soon as it is complete; with ``--reference`` in ``data/results/``, which
git tracks, saying what each replaces. ``bppsa-nb measure whole_steps against_pytorch``, and ``kernel_issue``
from a GPU, draws those of scale "paper".

Parts: chain, rnn and gru are comparisons of methods, which docs/speed.md quotes (table ``compare``); whole times whole
training steps on a CPU, of layers from small to large (``whole``); growth says how they, and their memory, grow with
length, batch, hidden size and layers (``growth``); grid times backward passes and whole steps over the sizes of Figures
8 and 9 (``grid``), and asks how well "auto" chooses (``auto_regret``); issue asks a GPU how long kernels take to be
issued (``kernel_issue``).
"""

import argparse
import time

import comparisons
import growth
import issue
import peers

from bppsa_nb.machine import backends
from bppsa_nb.papers import experiments, provenance

PARTS = ("chain", "rnn", "gru", "whole", "growth", "grid", "issue")
# For a comparison, a size of a whole step, one of its growth, a point of the grid, a point where "auto" is judged.
SECONDS = {
    "quick": {"compare": 2.0, "whole": 0.3, "growth": 0.3, "grid": 0.3, "regret": 0.1},
    "paper": {"compare": 12.0, "whole": 3.0, "growth": 3.0, "grid": 1.5, "regret": 0.5},
}


def main(arguments=None):
    """Run the parts that were asked for, and record their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default a GPU where there is one")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds, for a first look")
    parser.add_argument("--reference", action="store_true", help="record references, which git tracks")
    chosen = parser.parse_args(arguments)
    backend = chosen.device or backends.resolve("auto")
    try:
        check_device(backend, chosen.only)
        if chosen.reference:
            provenance.check_committed()
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    scale = "quick" if chosen.quick else "paper"
    start = time.perf_counter()
    for name, rows, notes in measure(chosen.only, backend, scale, peers.installed(), say):
        with experiments.references(chosen.reference):
            say(f"recorded in {experiments.record(rows, name, scale, 0, notes)}")
    say(f"{time.perf_counter() - start:.0f} s in all")


def say(line):
    """Print a line at once."""
    print(line, flush=True)


def check_device(backend, parts):
    """Raise RuntimeError where parts cannot be measured on a backend, or their tables would be filed wrongly."""
    if backend == "cuda" and (backends.emulated() or not backends.cuda_available()):
        raise RuntimeError("--device cuda needs an NVIDIA GPU, not what stands in for one; none was found")
    if backend == "cpu" and provenance.gpu_name():
        gpu = provenance.gpu_name()
        raise RuntimeError(
            f"tables of this machine are filed under its GPU, {gpu}; set CUDA_VISIBLE_DEVICES= to measure its CPU"
        )
    if "growth" in parts and backend == "cpu" and not growth.PEAK.exists():
        raise RuntimeError("growth needs Linux, which counts memory: leave it out, by --only and the other parts")
    if backend == "cpu" and list(parts) == ["issue"]:
        raise RuntimeError("issue times how a GPU is given its work: run it with --device cuda, on a machine with one")


def measure(parts, backend, scale, present, say):
    """Measure parts one after the other.

    Parameters
    ----------
    parts : sequence of str
        Of `PARTS`.
    backend : {"cpu", "cuda"}
    scale : {"quick", "paper"}
    present : dict of str to str
        The peers, and their versions.
    say : callable
        Takes lines of text, to watch.

    Yields
    ------
    name : str
        A table, as soon as it is complete.
    rows : list of dict
    notes : dict
    """
    seconds, notes = SECONDS[scale], present | {"backend": backend}
    names = [name for part in parts for name in comparisons.PARTS.get(part, ())]
    if names:
        rows = comparisons.compare(names, backend, present, seconds["compare"], say)
        if len(names) == len(comparisons.COMPARISONS):
            yield "compare", rows, notes
        else:
            say("not recorded: the table compare holds chain, rnn and gru of one run")
    if "whole" in parts and backend == "cpu":
        say("whole training steps, medians")
        points = comparisons.whole_points(scale)
        yield "whole", comparisons.whole_steps(points, present, seconds["whole"], say), notes
    if "growth" in parts and backend == "cpu":
        say("how whole training steps grow: medians, and how much memory they take")
        yield "growth", growth.growth(growth.points(scale), present, seconds["growth"], say), notes
    if "grid" in parts:
        say("training steps over the sizes of Figures 8 and 9, medians")
        points = comparisons.grid_points(scale)
        yield "grid", comparisons.grid(points, backend, present, seconds["grid"], say), notes
        where = ["cuda"] if backend == "cuda" else ["numpy", "cpu"]
        points = comparisons.regret_points(scale)
        yield "auto_regret", comparisons.regret(points, where, seconds["regret"], say), notes
    if "issue" in parts and backend == "cuda":
        yield "kernel_issue", issue.kernel_issue(present, seconds["compare"], say), notes


if __name__ == "__main__":
    main()
