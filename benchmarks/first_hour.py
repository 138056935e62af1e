"""The first hour on a GPU that one has for minutes only: what works, how fast it is, and why.

``python benchmarks/first_hour.py STAGE`` needs the source tree and a machine's own Python (numpy, numba, numba-cuda,
scipy, pandas, pytest, hypothesis; PyTorch, CuPy and JAX compete where they are). A stage takes less than nine minutes,
and packs what it has into ``<out>/<device>.tar.gz`` whenever something is complete, so that little is lost when it is
cut off. Unpacked over the source tree, that is ``data/results/<device>/``.

Stages: smoke (versions, one kernel, one recorded step, NVIDIA's memory and race checker), tests (those marked `gpu`),
quick (the README's comparisons, few rounds), profile (every kernel of a training step beside what its machine code
predicts; `ncu` where there is one), speed (the README's comparisons; Figures 8 and 9, Tables 4 to 6), layers (steps in
PyTorch, by its own layers and by ours), grid (training steps over their sizes), sizes (what "auto" takes over sizes,
and this GPU's prices).
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tarfile
import time
import types
from pathlib import Path

os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "benchmarks")]
MINUTES = 8.5  # of a stage
TOOLS = "/usr/local/cuda/bin"


def stand_in_for_tqdm():
    """Let sweeps run where there is no tqdm: without bars."""

    class Silent:
        def __init__(self, items=(), **_):
            self.items, self.n = items, 0

        def __iter__(self):
            return iter(self.items)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, *_):
            pass

        set_postfix = update

    sys.modules["tqdm"] = sys.modules["tqdm.auto"] = types.SimpleNamespace(tqdm=Silent)


try:
    import tqdm  # noqa: F401
except ImportError:
    stand_in_for_tqdm()

import numpy as np  # noqa: E402

import bppsa_nb as bp  # noqa: E402
from bppsa_nb.cells import calibrate  # noqa: E402
from bppsa_nb.chains import costs, plan, prices  # noqa: E402
from bppsa_nb.machine import backends, files  # noqa: E402
from bppsa_nb.papers import experiments, provenance  # noqa: E402
from bppsa_nb.papers.bppsa import epochs, iterations  # noqa: E402


class Hour:
    """What a stage has until when, where its results go, and how large its problems are."""

    def __init__(self, out, minutes):
        self.begun, self.seconds, self.out = time.monotonic(), 60 * minutes, Path(out)
        self.tiny = backends.simulated()
        if self.tiny:  # no table of this machine is one of its processor
            provenance.device = lambda: "simulator"
        self.device = provenance.device()

    def left(self):
        """Return how many seconds are left."""
        return self.begun + self.seconds - time.monotonic()

    def folder(self):
        """Return where tables of this device are, and make it."""
        folder = files.root() / "data" / experiments.REFERENCES / self.device
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def say(self, line):
        """Print a line at once, with the time."""
        print(f"[{self.seconds - self.left():5.0f} s] {line}", flush=True)

    def keep(self, name, rows, notes=None, scale="paper"):
        """Record a table, and pack all there are."""
        with experiments.references():
            experiments.record_rows(rows, {"backend": "cuda"} | (notes or {}), name, scale, seed=0)
        self.pack()

    def pack(self):
        """Pack this device's tables."""
        self.out.mkdir(parents=True, exist_ok=True)
        target = self.out / f"{self.device}.tar.gz"
        with tarfile.open(target.with_suffix(".new"), "w:gz") as archive:
            archive.add(self.folder(), f"data/{experiments.REFERENCES}/{self.device}")
        target.with_suffix(".new").replace(target)

    def run(self, name, command, **environment):
        """Run a program, keep the end of what it says, and return its exit status; None if it ran out of time."""
        self.say(" ".join(map(str, command)))
        path = self.folder() / f"{name}.txt"
        with open(path, "w", encoding="utf-8") as log:
            try:
                how = {"cwd": REPO, "stdout": log, "stderr": subprocess.STDOUT, "timeout": max(self.left(), 1)}
                status = subprocess.run(list(map(str, command)), env=os.environ | environment, **how).returncode
            except subprocess.TimeoutExpired:
                status = None
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(lines[-40:]), flush=True)
        self.say(f"{name}: {'out of time' if status is None else f'exit status {status}'}")
        self.pack()
        return status


def tool(name):
    """Find one of NVIDIA's programs, or return None."""
    return shutil.which(name) or shutil.which(name, path=TOOLS)


def problem(cell):
    """Return the paper's T, B, H and number of inputs for a cell."""
    from bppsa_nb.training.datasets.audio import FEATURES

    return (1000, 16, 20, 1) if cell == "RNN" else (FEATURES["L"].frames, 16, 20, FEATURES["L"].size)


# A tiny step of each kind, for NVIDIA's checkers.
STEP = """
import numpy as np
import bppsa_nb as bp
for kind in (bp.RNN, bp.GRU):
    for method in ("linear", "chunked", "blelloch"):
        trainer = bp.Trainer(kind(3, SIZE, 4, rng=0), bp.Adam(), method=method, backend="cuda")
        x, y = np.random.default_rng(0).standard_normal((2 * SIZE, 2, 3)).astype(np.float32), np.array([1, 3])
        print(kind.__name__, method, [round(trainer.step(x, y), 5) for _ in range(3)])
"""


def smoke(hour):
    """See that anything works at all."""
    hour.say(f"{hour.device}, Python {sys.version.split()[0]}")
    for package, version in provenance.versions().items():
        hour.say(f"{package} {version or 'not installed'}")
    chain, end = np.full((5, 1, 2, 2), 0.5, np.float32), np.ones((1, 2), np.float32)
    for method in ("linear", "chunked", "blelloch"):
        found = bp.backprop(chain, end, method=method, backend="cuda")
        off = np.abs(found - bp.backprop(chain, end, method="linear", backend="numpy")).max()
        hour.say(f"backprop, {method}: off by {off:.1e}")
    step = STEP.replace("SIZE", "2" if hour.tiny else "20")
    hour.run("smoke", [sys.executable, "-W", "default", "-c", step], PYTHONPATH=str(REPO))
    checker = tool("compute-sanitizer")
    if checker is None or hour.tiny:
        hour.say("no compute-sanitizer here")
        return
    for check in ("memcheck", "racecheck"):
        plain = {"PYTHONPATH": str(REPO), "BPPSA_NB_CUDA_GRAPH": "0"}
        hour.run(check, [checker, "--tool", check, sys.executable, "-c", step], **plain)


def tests(hour):
    """Run the tests that need a GPU."""
    simulated = (REPO / "Makefile").read_text(encoding="utf-8").split("SIMULATED := ")[1].splitlines()[0].split()
    wanted = ["-m", "simulator", "-k", "row_of_zeros"] if hour.tiny else ["-m", "gpu"]
    hour.run("tests", [sys.executable, "-m", "pytest", "-W", "default", "-q", "--maxfail=25", *wanted, *simulated])


def quick(hour):
    """Compare with the others, briefly."""
    _compare(hour, seconds=2.0, scale="quick")


def speed(hour):
    """Measure what the README and the paper's figures and tables quote."""
    warm_up(hour)
    _compare(hour, seconds=20.0, scale="paper")
    if hour.tiny:
        hour.say("figures and tables take the paper's sizes: not on the simulator")
        return
    iterations.RNN_SECONDS["paper"] = epochs.GRU_SECONDS["paper"] = 2.5
    for name in ("figure_08", "figure_09", "tables_4_5", "table_6"):
        if hour.left() < 60:
            hour.say(f"no time left for {name}")
            continue
        with experiments.references():
            experiments.run(name, "paper", progress=False)
        hour.say(f"measured {name}")
        hour.pack()


def _compare(hour, seconds, scale):
    import comparisons
    import peers

    present, rows = peers.installed(), []
    for name, (prepare, *sizes) in comparisons.COMPARISONS.items():
        if hour.tiny:
            comparisons.COMPARISONS[name], seconds = (prepare, 4, 2, 2), 0.1
        if hour.left() < 3 * seconds:
            hour.say(f"no time left for {name} at {sizes}")
            continue
        rows += comparisons.compare([name], "cuda", present, seconds, hour.say)
        hour.keep("compare", rows, present, scale)


def profile(hour):
    """Time every kernel of a training step, and hold its time steps against the prediction."""
    import on_gpu
    from comparisons import problem as make

    if hour.tiny:
        hour.say("kernels are not timed on the simulator")
        return
    rows = []
    for cell in ("RNN", "GRU"):
        T, B, H, inputs = problem(cell)
        model, x, y = make(cell, T, B, H, inputs, np.random.default_rng(0))
        for method in ("linear", "chunked", "blelloch"):
            issue, wait = on_gpu.training_step(model, x, y, method, graph=False)
            issue()
            wait()
            for kernel, (launches, micros) in launches_of(issue, wait).items():
                row = {"cell": cell, "T": T, "B": B, "H": H, "method": method, "kernel": kernel}
                rows.append(row | {"launches": launches, "microseconds": micros, "predicted": None})
                steps = {"run_forward": "forward", "sweep_chunks": "sweep"}
                if method == "linear" and kernel in steps:
                    rows[-1]["predicted"] = 1e6 * T * costs.table()[f"{cell} {steps[kernel]}"].seconds
                shown = "" if rows[-1]["predicted"] is None else f", predicted {rows[-1]['predicted']:.1f}"
                hour.say(f"{cell} {method:<9} {kernel:<24} {launches:3d} launches {micros:10.1f} us{shown}")
        hour.keep("kernel_times", rows)
    counter = tool("ncu")
    if counter is None:
        hour.say("no ncu here")
        return
    program = [sys.executable, "-c", STEP.replace("SIZE", "20")]
    command = [counter, "--set", "basic", "--csv", "--launch-count", "200", *program]
    hour.run("ncu", command, PYTHONPATH=str(REPO), BPPSA_NB_CUDA_GRAPH="0")


def launches_of(issue, wait, rounds=20):
    """Time each kernel of a step whose launches are issued one by one.

    Returns
    -------
    dict of str to (int, float)
        By kernel: its launches in a step, and the microseconds that these take together, a median.
    """
    from numba import cuda

    configuration, marks = type(cuda.jit(lambda: None)[1, 1]), []
    launch = configuration.__call__

    def timed(self, *arguments):
        before, after = cuda.event(), cuda.event()
        stream = cuda.external_stream(int(self.stream.handle)) if hasattr(self.stream, "handle") else self.stream
        before.record(stream)
        launch(self, *arguments)
        after.record(stream)
        marks.append((self.dispatcher.py_func.__name__, before, after))

    seconds = {}
    configuration.__call__ = timed
    try:
        for _ in range(rounds):
            marks.clear()
            issue()
            wait()
            together = {}
            for name, before, after in marks:
                together.setdefault(name, []).append(1e3 * before.elapsed_time(after))
            for name, times in together.items():
                seconds.setdefault(name, (len(times), []))[1].append(sum(times))
    finally:
        configuration.__call__ = launch
    return {name: (count, float(np.median(sums))) for name, (count, sums) in seconds.items()}


def layers(hour):
    """Time training steps in PyTorch, on the GPU, by its own layers and by ours in their place."""
    import comparisons
    import peers
    from turns import quartiles, take_turns

    if hour.tiny or "cudnn" not in peers.installed():
        hour.say("no PyTorch with a GPU here")
        return
    warm_up(hour)
    rows = []
    for cell in ("RNN", "GRU"):
        T, B, H, inputs = problem(cell)
        made = comparisons.problem(cell, T, B, H, inputs, np.random.default_rng(0))
        steps = {name: peers.torch_step(*made, "cuda", library=name) for name in ("torch.nn", "bppsa_nb.torch")}
        for name, rounds in take_turns(steps, 20.0, (3, 501)).items():
            rows.append({"cell": cell, "T": T, "B": B, "H": H, "name": name} | quartiles("seconds", rounds.sum(axis=1)))
            hour.say(f"{name}.{cell}: {1e3 * rows[-1]['seconds']:.2f} ms")
        hour.keep("layers", rows, peers.installed())


def grid(hour):
    """Time training steps over the sizes of Figures 8 and 9, for several H."""
    import comparisons
    import peers

    warm_up(hour)
    present, rows = peers.installed(), []
    points = [("RNN", 4, 2, 2, 1)] if hour.tiny else comparisons.grid_points("paper")
    for point in points:
        if hour.left() < 30:
            hour.say(f"no time left from {point} on")
            break
        rows += comparisons.grid([point], "cuda", present, 2.0, hour.say)
        hour.keep("grid", rows, present)


def sizes(hour):
    """Measure this GPU's prices, and what "auto" gives away over sizes."""
    import comparisons

    warm_up(hour)
    if not hour.tiny:
        records = calibrate.run(["cuda"], progress=False)
        shutil.copy(prices.path(), hour.folder() / "prices.json")
        hour.say("prices off by {:.0%} (median), {:.0%} (worst)".format(*calibrate.errors(records["cuda"])))
    rows, points = [], [(4, 2, 2)] if hour.tiny else comparisons.regret_points("paper")
    for point in points:
        if hour.left() < 30:
            hour.say(f"no time left from {point} on")
            break
        rows += comparisons.regret([point], ["cuda"], 0.5, hour.say)
        hour.keep("auto_regret", rows)


def warm_up(hour, seconds=3.0):
    """Keep the GPU busy until its clock is up."""
    if hour.tiny:
        return
    chain = np.zeros((500, 64, 32, 32), np.float32)
    run = functools.partial(bp.backprop, method="blelloch", backend="cuda")
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        run(chain, np.zeros(chain.shape[1:3], np.float32))


STAGES = {stage.__name__: stage for stage in (smoke, tests, quick, profile, speed, layers, grid, sizes)}


def main(arguments=None):
    """Run a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="after which nothing new begins; %(default)s")
    parser.add_argument("--out", default=os.environ.get("OUT", "first_hour"), help="where the archive goes")
    chosen = parser.parse_args(arguments)
    if not backends.cuda_available() and not backends.simulated():
        parser.error("no GPU was found; NUMBA_ENABLE_CUDASIM=1 tries a stage at tiny sizes")
    plan.refresh()
    hour = Hour(chosen.out, chosen.minutes)
    try:
        STAGES[chosen.stage](hour)
    finally:
        hour.pack()
    hour.say(f"{chosen.stage}: done, {hour.out / hour.device}.tar.gz")


if __name__ == "__main__":
    main()
