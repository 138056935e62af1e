"""Use each public name with NumPy, SciPy and Numba alone; `python tests/on_core.py` does, whatever else is installed.

What needs more must say what to install. Names are those that docs/reference.md lists.
"""

import importlib
import re
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
CORE = {"bppsa_nb", "numpy", "scipy", "numba", "llvmlite"}


class CoreOnly:
    """Finds no package that is neither the core's nor Python's."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        package = name.partition(".")[0]
        if package not in CORE and package not in sys.stdlib_module_names and not package.startswith("_"):
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


sys.meta_path[:] = [CoreOnly, *(finder for finder in sys.meta_path if "numba_cuda" not in repr(finder))]
sys.path.insert(0, str(REPO))

import numpy as np  # noqa: E402
from scipy import sparse as scipy_sparse  # noqa: E402

import bppsa_nb as bp  # noqa: E402
from bppsa_nb import distributed, graphs, multigrid, puzzles, schedule, sparse  # noqa: E402
from bppsa_nb.puzzles import arrays, kernels, scans  # noqa: E402
from bppsa_nb.scan import scan, steps  # noqa: E402
from bppsa_nb.scan import trace as traces  # noqa: E402

rng = np.random.default_rng(0)
image = rng.standard_normal((3, 8, 8))


def chains():
    dense, end = rng.standard_normal((5, 2, 3, 3)), rng.standard_normal((2, 3))
    for method in ("linear", "blelloch", "chunked", "auto"):
        for backend in ("numpy", "cpu"):
            assert bp.backprop(dense, end, method=method, backend=backend).shape == (6, 2, 3)
    links = [scipy_sparse.random_array((n, m), density=0.5, format="csr", rng=rng) for n, m in ((2, 3), (3, 4))]
    assert len(bp.backprop(links, np.ones(4))) == 3
    batched = bp.BatchedCSR(np.ones((2, 3)), [0, 1, 2], [0, 1, 2, 3], (3, 3))
    assert bp.backprop([batched], end)[0].shape == (2, 3)
    structured = bp.StructuredChain(rng.standard_normal((1, 3, 3)), rng.standard_normal((1, 5, 2, 3)))
    assert bp.backprop(structured, end).shape == (6, 2, 3)
    assert "linear" in str(bp.explain(5, 2, 3))


def training():
    for cell in (bp.RNN, bp.GRU, bp.LSTM):
        bp.check_cell(cell.cell)
        assert isinstance(cell.cell, bp.Cell) and issubclass(cell, bp.Recurrent)
        for optimizer in (bp.Adam(lr=1e-3), bp.SGD(lr=1e-3)):
            model = cell(input_size=1, hidden_size=4, num_classes=10, rng=0)
            trainer = bp.Trainer(model, optimizer, method="blelloch")
            history = trainer.fit(bp.Bitstream(8, 32), epochs=1, batch_size=16, rng=0, progress=True)
            assert isinstance(history, bp.History) and len(history.loss) == 2
    states = bp.unroll(lambda h, x: np.tanh(h + x), np.zeros((2, 3)), rng.standard_normal((5, 2, 3)))
    assert states.states.shape == (6, 2, 3)


def scans_of_operands():
    def operands():
        log: list = []
        return [traces.Traced("matrix" if i else "vector", (i, i), log) for i in range(5)]

    for method, length in (("linear", None), ("blelloch", None), ("chunked", 2)):
        assert len(scan(operands(), method, length=length)) == 5 and list(steps(operands(), method, length=length))
    trace, again = traces.trace(8, "blelloch"), operands()
    assert isinstance(trace, traces.Trace) and isinstance(trace.levels[0], traces.TracedLevel)
    assert traces.record(again, steps(again, "linear"), "linear").levels


def sparse_products():
    plain = sparse.ReLU, sparse.Sigmoid, sparse.Tanh, sparse.Flatten
    pools = sparse.AvgPool2d("average", 2), sparse.MaxPool2d("max", 2)
    for operator in (*(kind("plain") for kind in plain), *pools):
        assert operator.jacobian_T(image).shape[0] == image.size
    assert sparse.Linear("fc", 3, 2).jacobian_T(np.ones(3), np.ones((2, 3))).nnz == 6
    a = sparse.Conv2d("conv", 3, 2, 3, padding=1).jacobian_T(image, rng.standard_normal((2, 3, 3, 3)))
    product = sparse.PlannedProduct(a, a.T.tocsr())
    assert isinstance(product.pattern, sparse.CSRPattern) and len(product(a.data, a.T.tocsr().data))
    assert sparse.kinds_of_zeros(sparse.ReLU("relu").jacobian_T(image)).shape == (192, 192)


def networks():
    operators = [sparse.Conv2d("conv", 3, 2, 3), sparse.ReLU("relu"), sparse.MaxPool2d("max", 2)]
    operators += [sparse.AvgPool2d("average", 3), sparse.Sigmoid("sigmoid"), sparse.Tanh("tanh")]
    operators += [sparse.Flatten("flatten"), sparse.Linear("fc", 2, 10)]
    network = sparse.Network((3, 8, 8), operators, rng=0)
    network.masks = sparse.prune(network.params, 0.5, "class_uniform")
    assert set(sparse.masks_of(network.params)) <= set(network.params)
    with tempfile.TemporaryDirectory() as folder:
        sparse.save_weights(network, Path(folder) / "weights")
        sparse.load_weights(network, Path(folder) / "weights")
    activations = network.forward(image[None].astype(np.float32))
    assert network.backward(activations, np.ones((1, 10), np.float32), method="blelloch")
    assert sparse.VGG11(rng=0).params


def schedules():
    network = schedule.Network.uniform(4)
    timeline = schedule.pipeline(network, devices=2, policy="fast_forward")
    assert isinstance(timeline, schedule.Timeline) and schedule.optimum(timeline).makespan <= timeline.makespan
    assert schedule.data_parallel(schedule.Network.uniform(4, sync=1), "fifo").makespan
    regions = schedule.Regions.blocks(network, [2, 4], schedule.Assumptions())
    assert isinstance(schedule.joint_regions(regions, [2], np.ones((1, len(regions)))), schedule.TwoStreams)
    assert schedule.Memory() and schedule.transfer_time(1, 2) and schedule.split(sparse.LeNet5(rng=0))


def layers():
    net = multigrid.ResidualNetwork(rng.standard_normal((16, 4, 4)) / 2, np.zeros((16, 4)), 1 / 16)
    assert isinstance(multigrid.solve(net, np.ones((2, 4)), tol=1e-9), multigrid.Solution)
    states = net.forward(np.ones((2, 4)))
    assert multigrid.solve_adjoint(net, states, states[-1], cycles=2).states.shape == states.shape
    assert multigrid.partition(16, 2) and distributed.partition(7, 4)
    opening, closing = [sparse.Linear("opening", 64, 8)], [sparse.Linear("closing", 8, 10)]
    model = multigrid.ResidualModel((64,), opening, 8, closing, h=1 / 8, rng=0)
    assert model.forward(np.ones((2, 64), np.float32)).logits.shape == (2, 10)


def described():
    graph = graphs.Graph("three")
    h, x = graph.input("h", "B", "H"), graph.input("x", "B", "H")
    graph.output(y=graphs.tanh(h) + graphs.sigmoid(x) * graphs.relu(h))
    assert isinstance(h, graphs.Node) and graph.backward().saved


def answered():
    for name in puzzles.NAMES:
        puzzles.hint(name)
    for name in (*scans.PUZZLES, *arrays.PUZZLES):
        assert puzzles.check(name, {**scans.PUZZLES, **arrays.PUZZLES}[name].solution), name
        puzzles.solution(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.json"
        assert puzzles.export(file) >= 16 and puzzles.grade(file, only=["pairs"])["pairs"][0] == 2
    assert puzzles.show(scans.PUZZLES["reduce"].solution, "abcd")
    assert kernels.PUZZLES and puzzles.progress() is not False


def says(what, call):
    """See that a call says what to install."""
    try:
        call()
    except (ImportError, OSError, TypeError) as error:
        install = "pip install -e ./warpwatch" if what == "warpwatch" else f"pip install 'bppsa-nb[{what}]'"
        assert install in str(error), error
    else:
        raise AssertionError(f"{what} was not missed")


def what_is_missing():
    from bppsa_nb.papers import experiments
    from bppsa_nb.training.datasets import instruments

    says("audio", lambda: instruments.stand_in(11, progress=False))
    says("data", lambda: bp.Images(num_samples=4).batch([0]))
    says("mpi", lambda: distributed.solve(np.ones((2, 1, 3, 3)), np.ones((1, 3)), comm=None))
    says("warpwatch", lambda: puzzles.check("up_level", kernels.PUZZLES["up_level"].solution))
    says("notebooks", lambda: experiments.make("figure_01"))
    says("notebooks", lambda: importlib.import_module("bppsa_nb.schedule.draw"))
    says("notebooks", lambda: importlib.import_module("bppsa_nb.graphs.drawing"))
    says("notebooks", lambda: importlib.import_module("bppsa_nb.papers.stepper"))


def listed():
    """Yield the module and the name of everything that docs/reference.md lists."""
    for part in (REPO / "docs" / "reference.md").read_text(encoding="utf-8").split("currentmodule:: ")[1:]:
        module = part.split()[0]
        for name in re.findall(r"^   (\w+)$", part.split("```")[0], re.MULTILINE):
            if module != "warpwatch":
                yield module, name


if __name__ == "__main__":
    source = Path(__file__).read_text(encoding="utf-8")
    for module, name in listed():
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"
        assert re.search(rf"\b{name}\b", source), f"{name} of {module} is not used here"
    for part in (
        *(chains, training, scans_of_operands, sparse_products, networks, schedules, layers, described),
        *(answered, what_is_missing),
    ):
        part()
        print(part.__name__, flush=True)
