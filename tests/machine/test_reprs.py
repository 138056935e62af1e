"""What a notebook's last line shows of everything that is public: what it is, in a line or two, and no numbers."""

import functools
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse as scipy_sparse

import bppsa_nb as bp
from bppsa_nb import distributed, graphs, multigrid, schedule, sparse
from bppsa_nb.cells.recurrent import Activations
from bppsa_nb.distributed import engines
from bppsa_nb.machine.reprs import repr_of
from bppsa_nb.operands import batched, counted, dense, scaled
from bppsa_nb.scan import trace
from bppsa_nb.schedule import cycles as timelines
from bppsa_nb.training import datasets
from bppsa_nb.training.datasets.audio import FEATURES
from bppsa_nb.training.history import History


def recurrent():
    for cell in bp.RNN, bp.GRU:
        model = cell(1, 20, 10)
        yield model
        yield model.forward(np.zeros((300, 16, 1), np.float32), backend="numpy")
    trainer = bp.Trainer(bp.RNN(1, 4, 3, num_layers=2, dtype=np.float64), bp.Adam(lr=1e-5), method="blelloch")
    yield from (trainer, trainer.history, trainer.optimizer, bp.SGD(lr=0.1, momentum=0.9))
    trained = bp.Trainer(bp.RNN(1, 4, 3), bp.SGD(lr=0.1), backend="numpy")
    yield trained.fit(bp.Bitstream(5, 32, 3), 1, 16, progress=False)
    yield trained


def data_sets():
    yield bp.Bitstream(100, 32)
    yield datasets.ArrayDataset(np.zeros((100, 50, 3)), np.zeros(50, int))
    images, clips = object.__new__(bp.Images), object.__new__(bp.Instruments)  # not read from files
    images.source, images.split, images.pixels = "MNIST", "train", np.zeros((99, 3, 32, 32), np.uint8)
    yield images
    clips.features, clips.data = FEATURES["S"], "real"
    clips.x = np.zeros((259, 2, 38), np.float32)
    yield clips


def chains():
    yield bp.StructuredChain(np.ones((1, 50, 50)), np.ones((1, 99, 4, 50)))
    link = bp.BatchedCSR(np.ones((2, 999)), np.arange(999), np.arange(1000), (999, 999))
    yield from (link, link.pattern, link.pattern.times(link.pattern))
    matrix = dense.Dense(np.ones((9, 40, 40)))
    yield from (matrix, scaled.Scaled(matrix), dense.Affine(matrix, np.ones((9, 40))))
    yield dense.CSR(scipy_sparse.csr_array(np.eye(99)))
    yield from (batched.Planned(link.pattern, link.values, "numpy"), counted.Pattern(link.pattern, []))
    yield counted.Cost("mm", 3, 4)
    found = trace.trace(50, "blelloch")
    yield from (found, found.levels[0], found.levels[0].level)
    yield distributed.Solution(np.ones((99, 4, 50)), "linear", 3, 0.1, True)


def networks():
    model = sparse.LeNet5()
    others = sparse.AvgPool2d("mean", 2), sparse.Sigmoid("gate"), sparse.Tanh("tanh")
    yield from (model, sparse.VGG11(), *model.operators, *others)
    yield model.forward(np.zeros((2, 3, 32, 32), np.float32), backend="numpy")
    layers = [sparse.Tanh("tanh")], 32, [sparse.Linear("out", 64, 10)]
    residual = multigrid.ResidualModel((64,), *layers, solver={"cycles": 2})
    yield residual
    yield residual.forward(np.zeros((2, 64), np.float32), backend="numpy")
    net = multigrid.ResidualNetwork(np.zeros((64, 8, 8)), np.zeros((64, 8)), 0.1)
    yield net
    yield multigrid.solve(net, np.ones((2, 8)), cycles=2, backend="numpy")
    yield timelines.Recording([timelines.Task(*[0] * len(timelines.Task._fields))] * 999, {"F": np.ones(4, int)})


def schedules():
    network = schedule.Network.uniform(3)
    yield from (network, network.memory, schedule.Assumptions())
    timeline = schedule.pipeline(network, devices=2, micro_batches=4)
    yield from (timeline, timeline.operations)
    regions = schedule.Regions.blocks(schedule.Network.uniform(8), [2, 5, 8])
    yield from (regions, schedule.joint_regions(regions, range(2, 9), np.full((7, len(regions)), 1.3)))
    model = sparse.Network(
        (1, 4, 4), [sparse.Conv2d("conv", 1, 2, 3), sparse.Flatten("flat"), sparse.Linear("fc", 8, 2)]
    )
    timeline = schedule.pipeline(schedule.Network.uniform(2), devices=1)
    with schedule.Executor(timeline, model, 2) as run:
        yield from (model, run)
        yield run(np.zeros((2, 1, 4, 4), np.float32), np.array([0, 1]))


def derived_graphs():
    graph = graphs.Graph("one")
    yield from (graph, graph.input("h", "B", "H"))


MAKERS = [recurrent, data_sets, chains, networks, schedules, derived_graphs]
ELSEWHERE = {"Engines", "Fixed", "Traced"}  # one needs MPI, one is a base class, one a symbol


@functools.cache
def made(maker):
    return list(maker())


@pytest.mark.parametrize("maker", MAKERS)
def test_a_line_says_what_it_is(maker):
    for thing in made(maker):
        text = repr(thing)
        assert re.match(rf"(Timeline|{type(thing).__name__})[( ]", text), text
        assert not re.search(r"object at 0x|array\(|<|\n", text) and len(text) < 400, text


def test_all_that_is_public_is_shown():
    shown = {type(thing) for maker in MAKERS for thing in made(maker)}
    for package in (bp, sparse, multigrid, schedule, distributed, engines, datasets, dense, scaled, batched, counted):
        for name in getattr(package, "__all__", None) or vars(package):
            kind = getattr(package, name)
            if inspect.isclass(kind) and kind.__module__.startswith("bppsa_nb") and not issubclass(kind, Exception):
                assert kind in shown or name.startswith("_") or name in ELSEWHERE, name


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (bp.SGD(lr=1, momentum=0.5), "SGD(lr=1.0, momentum=0.5)"),
        (
            bp.Trainer(bp.RNN(1, 2, 3), bp.SGD(0.1), "truncated", "numpy", 2),
            "Trainer(model=RNN(input_size=1, hidden_size=2, num_classes=3, num_layers=1, dtype=float32), "
            "optimizer=SGD(lr=0.1, momentum=0.0), method='truncated', backend='numpy', levels=2, epoch=0, position=0)",
        ),
        (History(np.empty(0), np.empty(0)), "History(iterations=0)"),
        (History(np.array([2.0, 1.23456789]), np.ones(2)), "History(iterations=2, last_loss=1.23457)"),
        (
            Activations(np.ones((7, 2, 1)), np.ones((1, 8, 2, 3)), None, np.ones((2, 5))),
            "Activations(x=float64[7, 2, 1], hidden=float64[1, 8, 2, 3], gates=None, logits=float64[2, 5])",
        ),
        (dense.CSR(scipy_sparse.csr_array(np.eye(9))), "CSR(matrix=float64[9, 9] with 9 entries)"),
    ],
)
def test_in_these_words(thing, text):
    assert repr(thing) == text


def test_half_made_things_are_shown_too():
    for kind in (bp.RNN, bp.Trainer, bp.SGD, sparse.Network, multigrid.ResidualModel, schedule.Executor):
        assert repr(object.__new__(kind)) == f"{kind.__name__}()"


def test_of_many_things_the_first_are_shown():
    class Holder:
        few, one, _none = ["a", Path("b")], (np.dtype("f4"),), {}
        many = {name: np.zeros(3) for name in "abcdefghi"}
        long, number, scalar = list(range(1000)), 0.1, np.float32(0.5)

    assert repr_of(Holder(), "few", "one", "_none", "missing", "many", "long", "number", "scalar", more=1) == (
        "Holder(few=['a', 'b'], one=(float32,), none={}, many={'a': float64[3], 'b': float64[3], ... 9 in all}, "
        "long=[0, 1, ... 1000 in all], number=0.1, scalar=0.5, more=1)"
    )
