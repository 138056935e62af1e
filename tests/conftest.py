import csv
import gc
import importlib.util
import math
import os
import signal
import sys
from collections import defaultdict
from pathlib import Path

# Before anything imports Matplotlib: tests draw to memory, never to a window.
os.environ["MPLBACKEND"] = "Agg"
# What a user has calibrated is no matter of the tests; the PTX of kernels is, which all of their processes share.
os.environ["BPPSA_NB_CACHE"] = str(Path(__file__).parents[1] / "build" / "cache-of-tests")

import pytest
import recorder
from hypothesis import settings

import warpwatch
from bppsa_nb.chains import plan
from bppsa_nb.machine import backends, files
from bppsa_nb.machine.backends import cores, cpu_name
from bppsa_nb.machine.files import atomic_write
from bppsa_nb.papers import experiments, provenance

# What a hook sets would lead tests that make repositories to the one that it is of.
for name in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[name]
# Again and again, the garbage collector would look through all that Numba and Hypothesis hold.
gc.set_threshold(50_000, 50, 100)
# No example fails for being slow, or differs from one run to the next. The outer ring has more of them.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=25)
RANKS = "test_solver", "test_layer_scaling", "test_ranks", "test_forward_experiments"
DURATIONS = Path(__file__).with_name("durations.csv")


@pytest.fixture(scope="session")
def rank_session(pytestconfig):
    """MPI ranks that all tests of this process share: `on_mpi.Session`."""
    from on_mpi import Session  # which skips the test where there is no mpi4py

    with Session(7 if asked_for("outer", pytestconfig) or asked_for("full", pytestconfig) else 4) as session:
        yield session


def nothing_measured(names, folders=experiments._folders):
    """Keep what was measured in this checkout from tests: they read references, or record in a folder of their own."""
    found = folders(names)
    if (files.root() / "pyproject.toml").is_file():
        nowhere = Path(os.devnull)  # nothing can be read below it, and nothing written
        found = [nowhere if path.name == experiments.MEASURED else path for path in found]
    return found


experiments._folders = nothing_measured


@pytest.fixture(scope="session")
def tracked():
    """The names of all files that git tracks."""
    if (printed := provenance.git("ls-files", "-z")) is None:
        pytest.skip("needs git, and a checkout")
    return os.fsdecode(printed).split("\0")[:-1]


@pytest.fixture
def committed(monkeypatch):
    """Let references be recorded, as in a checkout without changes."""
    monkeypatch.setattr(provenance, "source_state", lambda: (4 * "0123456789", False))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Give an empty project folder."""
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Give an empty cache folder, in which the planner has found no prices of this machine."""
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path / "cache"))
    plan.refresh()
    yield tmp_path / "cache"
    plan.refresh()


@pytest.fixture
def describe_as(monkeypatch):
    """Have whatever is recorded from here on say something else of this machine, or nothing else again."""
    describe = provenance.describe
    return lambda **about: monkeypatch.setattr(provenance, "describe", lambda *args: describe(*args) | about)


@pytest.fixture(autouse=True)
def from_ptx(request):
    """Run what is marked `gpu` on the CPU where there is no GPU, every access watched; what is found fails the test."""
    if not request.node.get_closest_marker("gpu") or backends.cuda_available():
        yield
        return
    with warpwatch.device(watch=True), pytest.MonkeyPatch.context() as patch:
        recorder.stand_in(patch)
        yield


@pytest.fixture(autouse=True)
def closed_figures():
    """Leave no figure open for the next test: Matplotlib warns of the twentieth."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def foreground():
    """Ctrl-C as a program finds it that a shell starts in the foreground: in the background, it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def handlers(foreground):
    """SIGTERM, too, as a program finds it that a shell starts in the foreground."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def few_threads(from_ptx, monkeypatch):
    """Fewer threads than numbers where there is no GPU, so that every loop over them goes round."""
    if backends.emulated():
        from bppsa_nb.cells import layer_cuda as cells
        from bppsa_nb.chains import methods_cuda as structured
        from bppsa_nb.machine import items_cuda as items
        from bppsa_nb.operands import products_cuda as products
        from bppsa_nb.training import kernels_cuda as training

        monkeypatch.setattr(items, "LANES", 2)
        monkeypatch.setattr(products, "SHARED_BYTES", 16)
        for module in (cells, structured):
            monkeypatch.setattr(module, "MAX_THREADS", 2)
            monkeypatch.setattr(module, "_THREADS", 4)
        # A kernel is made for as many as its module names, and kept for the tests that come after.
        monkeypatch.setattr(training, "one_block", lambda kernel, stream: kernel[1, 4, stream])


@pytest.fixture
def fetched(from_ptx, monkeypatch):
    """Sizes of all arrays that came back from the GPU to the host."""
    from bppsa_nb.machine.cuda_compiler import cuda

    kind, sizes = type(cuda.device_array(1)), []
    fetch = kind.copy_to_host

    def copy_to_host(self, *args, **how):
        sizes.append(self.size)
        return fetch(self, *args, **how)

    monkeypatch.setattr(kind, "copy_to_host", copy_to_host)
    return sizes


def runs_ranks(file):
    return Path(file).parent.name in ("distributed", "ranks") or Path(file).stem in RANKS


def pytest_xdist_make_scheduler(config, log):
    """Have all files that run MPI ranks go to one process, for its ranks start once."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "ranks" if runs_ranks(file) else file

    return Files(config, log) if config.getvalue("dist") == "loadfile" else None


def asked_for(mark, config):
    return mark in config.getoption("-m").replace(f"not {mark}", "")


def pytest_configure(config):
    settings.load_profile("steady" if asked_for("outer", config) else "quick")


def lacking(config):
    """Return which of PyTorch and JAX are missing; none where `-m` asks for tests that need them."""
    missing = [name for name in ("torch", "jax") if importlib.util.find_spec(name) is None]
    return [] if asked_for("peers", config) else missing


def pytest_ignore_collect(collection_path, config):
    return collection_path.match("test_torch*.py") and bool(lacking(config)) or None


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(config, items):
    missing = lacking(config)
    seconds, ring = durations(DURATIONS), asked_for("outer", config)

    def order(item):
        file = item.nodeid.partition("::")[0]
        took = seconds.get(file, (float("inf"),) * 2)[ring]
        return -min(took, 3) if runs_ranks(file) else -took

    # What is long comes first, and what is new; ranks come when others have compiled what they run.
    items.sort(key=order)
    for item in items:
        if ring and hasattr(item.obj, "hypothesis"):
            item.add_marker("outer")  # once more, with more examples
        if missing and item.get_closest_marker("peers"):
            item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(missing)}: make test-peers"))
        if item.get_closest_marker("gpu") and importlib.util.find_spec("numba_cuda") is None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA compiler: the gpu extra"))
        elif item.get_closest_marker("gpu") and item.get_closest_marker("full") and not backends.cuda_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU: from PTX on the CPU it would take many minutes"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and item.get_closest_marker("peers") and asked_for("peers", item.config):
        report.outcome = "failed"  # what was asked for is not skipped
    return report


def pytest_collection_finish():
    gc.freeze()  # what is imported stays; nothing that a test asks to be collected is among it


TOOK = defaultdict(lambda: [0.0, 0.0])


def durations(path):
    """Read how long files of tests took, in the inner and the outer ring."""
    if not path.is_file():
        return {}
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {row["file"]: [float(row["inner"]), float(row["outer"])] for row in csv.DictReader(lines)}


def pytest_runtest_logreport(report):
    TOOK[report.nodeid.partition("::")[0]]["outer" in report.keywords] += report.duration


def pytest_sessionfinish(session):
    """Note in `build/durations.csv` how long files took now, beside the other ring's last run."""
    if not hasattr(session.config, "workerinput"):
        path = session.config.rootpath / "build" / "durations.csv"
        both = durations(path)
        for file, took in TOOK.items():
            both[file] = [now or before for now, before in zip(took, both.get(file, took), strict=True)]
        with atomic_write(path, "w") as out:
            out.write(f"# {cpu_name()}, {cores()} cores\n")
            rows = [(file, *(f"{each:.1f}" for each in both[file])) for file in sorted(both)]
            csv.writer(out, lineterminator="\n").writerows([("file", "inner", "outer"), *rows])


@pytest.fixture
def always_ours(monkeypatch):
    """Have layers for PyTorch never leave to torch.nn what they know, though it may be faster."""
    from bppsa_nb.torch import choice

    monkeypatch.setattr(choice, "ratio", lambda *_: math.inf)
