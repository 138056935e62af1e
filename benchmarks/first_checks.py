"""Does it run, and is it right: stages of `first_minutes.py` that time nothing."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from parts import AGAIN, METHODS, SHORT, TINY, notes, tool, write

import bppsa_nb as bp
from bppsa_nb.papers import provenance

REPO = Path(__file__).resolve().parents[1]
PATHS = os.pathsep.join([str(REPO), str(REPO / "warpwatch/src")])
# A tiny step, whose losses are those of NumPy.
STEP = """
import sys
import numpy as np
import bppsa_nb as bp
cell, method, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
x, y = np.random.default_rng(0).standard_normal((2 * size, 2, 3)).astype(np.float32), np.array([1, 3])
forward = "chunked" if method == "chunked" else "linear"
def losses(**how):
    trainer = bp.Trainer(getattr(bp, cell)(3, size, 4, rng=0), bp.Adam(lr=1e-2), **how)
    return np.array([trainer.step(x, y) for _ in range(3)])
off = abs(losses(method=method, backend="cuda", forward=forward) - losses(method="linear", backend="numpy")).max()
said = "losses off by %.0e" % off
print(said)
"""


def smoke(part):
    """See that anything works at all."""
    part.do("versions", versions)
    for method in METHODS:
        part.do(f"backprop {method}", off_by, method)
    for cell in ("RNN", "GRU"):
        for method in METHODS:
            part.do(f"{cell} step, {method}", step_off_by, cell, method)


def versions():
    """Name the machine, and what is installed there."""
    import peers

    known = provenance.versions() | peers.installed()
    wanted = ("python", "numpy", "numba-cuda", "torch", "cudnn", "jax")
    said = [f"{name} {known[name]}" for name in wanted if known.get(name)]
    if "jax" in known:
        import jax

        said[-1] += f" on {jax.default_backend()}"
    if tool("nvidia-smi"):
        query = [tool("nvidia-smi"), "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"]
        said.insert(0, "driver " + subprocess.run(query, capture_output=True, text=True).stdout.strip())
    return (", ".join(said),)


def off_by(method):
    """Hold the gradients of a small chain against NumPy's."""
    chain = np.random.default_rng(0).uniform(-0.5, 0.5, (5 if TINY else 50, 2, 4, 4)).astype(np.float32)
    end = np.ones((2, 4), np.float32)
    found = bp.backprop(chain, end, method=method, backend="cuda")
    off = np.abs(found - bp.backprop(chain, end, method="linear", backend="numpy")).max()
    return (f"{'' if off < 1e-5 else 'WRONG, '}off by {off:.0e}",)


def step_off_by(cell, method):
    """Hold the losses of a tiny step against NumPy's."""
    given, sys.argv = sys.argv, ["", cell, method, "2" if TINY else "20"]
    try:
        exec(compile(STEP, "STEP", "exec"), found := {})
    finally:
        sys.argv = given
    return (f"{'' if found['off'] < 1e-4 else 'WRONG, '}{found['said']}",)


class OneOfEachFirst:
    """A plugin of pytest: of every test function one case, then a second one; every case is noted."""

    def __init__(self, part):
        self.part, self.broken = part, False

    def pytest_collectreport(self, report):
        """Note what cannot be collected."""
        if report.failed:
            self.part.note(f"collect {report.nodeid}", _last(report), failed=True)

    def pytest_collection_modifyitems(self, items):
        """Put the first case of every function first, and leave out what is known."""
        turns, order = {}, {}
        for item in items:
            function = item.nodeid.partition("[")[0]
            order[item] = turns[function] = turns.get(function, -1) + 1
        number, count = map(int, os.environ["SHARD"].split("/"))
        shard = sorted(items, key=order.get)[number::count]
        items[:] = [item for item in shard if item.nodeid not in self.part.known]

    def pytest_runtest_protocol(self, item):
        """Begin a case, unless time is over, or the process has seen a GPU's error, which stays with it."""
        if self.broken or not self.part.begins(item.nodeid):
            item.session.shouldstop = "begun again" if self.broken else "time is over"
            return True  # nothing else runs it

    def pytest_runtest_logreport(self, report):
        """Note a case."""
        if report.failed:
            self.broken |= bool(re.search("CUDA_ERROR|CudaAPIError|CUDA error", report.longreprtext))
            self.part.note(report.nodeid, _last(report), failed=True)
        elif report.when == "call" or report.skipped:
            self.part.note(report.nodeid, report.outcome, seconds=report.duration)


def _last(report):
    """Return the words of an error."""
    text = report.longreprtext.strip().splitlines() or ["failed"]
    return next((line[1:].strip() for line in text if line.startswith("E ")), text[-1])


def tests(part):
    """Run the tests that need a GPU, in many processes, for most of the time they compile; each has a share of them."""
    if "SHARD" in os.environ:
        return share_of_tests(part)
    count = max(1, min(12, provenance.cores() - 2))
    program = [sys.executable, Path(__file__).with_name("stages.py"), part.name, "--seconds"]

    def run(shard):
        # What NumPy's products wait for where cores are many and all taken is one another.
        environment = os.environ | {"SHARD": shard, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        while part.left() > 1:
            status = subprocess.run([*program, f"{part.left():.1f}"], env=environment).returncode
            if status in (0, SHORT):
                part.short |= status == SHORT
                return
            for item, note in notes(part.path).items():  # what ended the process
                if note.get("shard") == shard and "said" not in note:
                    write(part.path, item=item, said=f"ended the process: {status}", failed=True)
                    break
            else:
                if status != AGAIN:
                    return

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, [f"{k}/{count}" for k in range(count)]))


def share_of_tests(part):
    """Run the tests of a shard, of which ``SHARD`` says the number, and of how many."""
    import pytest

    marks = re.compile("mark.gpu|on_gpu")
    marked = [path for path in sorted((REPO / "tests").rglob("test_*.py")) if marks.search(path.read_text("utf-8"))]
    wanted = ["-m", "gpu", *map(str, marked)]
    if TINY:
        wanted = ["-m", "gpu", "-k", "row_of_zeros", str(REPO / "tests" / "test_cuda.py")]
    plugin = OneOfEachFirst(part)
    how = ["-W", "default", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    status = pytest.main([*how, *wanted], plugins=[plugin])
    if plugin.broken:
        raise SystemExit(AGAIN)
    if status not in (0, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest ended with status {status}")


def sanitize(part):
    """Run NVIDIA's checkers on a tiny step of each cell and method, side by side."""
    checker = tool("compute-sanitizer")
    if checker is None or TINY:
        part.do("compute-sanitizer", lambda: ("there is none here",))
        return
    checks = [
        (f"{check} {cell} {method}", [checker, "--tool", check, "--error-exitcode", "9"], (cell, method, "20"))
        for check in ("memcheck", "racecheck", "synccheck", "initcheck")
        for cell in ("RNN", "GRU")
        for method in METHODS
    ]
    plain = os.environ | {"PYTHONPATH": PATHS, "BPPSA_NB_CUDA_GRAPH": "0"}

    def check(item, command, arguments):
        if not part.begins(item):
            return
        program = [*command, sys.executable, "-c", STEP, *arguments]
        log = part.path.with_name(f"{item.replace(' ', '-')}.txt")
        with open(log, "w", encoding="utf-8") as file:
            how = {"env": plain, "cwd": REPO, "stdout": file, "stderr": file, "timeout": max(part.left() - 1, 1)}
            try:
                status = subprocess.run(program, **how).returncode
            except subprocess.TimeoutExpired:
                part.short = True
                return
        summary = re.findall("=+ (.*SUMMARY.*)", log.read_text(encoding="utf-8", errors="replace"))
        if status == 0:
            part.note(item, "clean")
        else:
            part.note(item, f"exit status {status}; {'; '.join(summary)}; see {log.name}", failed=True)

    with ThreadPoolExecutor(min(8, provenance.cores())) as pool:
        list(pool.map(check, *zip(*checks, strict=True)))


def counters(part):
    """Have `ncu` count what every kernel of tiny steps does."""
    counter = tool("ncu")
    for cell in ("RNN", "GRU"):
        for method in METHODS:
            part.do(f"{cell} {method}", counted, part, counter, cell, method)


def counted(part, counter, cell, method):
    """Count for one cell and method."""
    if counter is None:
        return ("there is no ncu here",)
    log = part.path.with_name(f"ncu-{cell}-{method}.txt")
    options = "--set basic --csv --launch-count 200 --clock-control none".split()  # whose card it is sets its clocks
    command = [counter, *options, sys.executable, "-c", STEP]
    environment = os.environ | {"PYTHONPATH": PATHS, "BPPSA_NB_CUDA_GRAPH": "0"}
    with open(log, "w", encoding="utf-8") as file:
        how = {"env": environment, "cwd": REPO, "stdout": file, "stderr": file, "timeout": max(part.left() - 1, 1)}
        status = subprocess.run([*command, cell, method, "20"], **how).returncode
    return (f"exit status {status}, see {log.name}",)
