"""What a notebook's last line shows of everything that is public: what it is, in a line or two, and no numbers."""

from pathlib import Path

import numpy as np
import pytest
from garbage import badly_shown
from scipy import sparse as scipy_sparse

import bppsa_nb as bp
from bppsa_nb import multigrid, schedule, sparse
from bppsa_nb.cells.recurrent import Activations
from bppsa_nb.machine.reprs import repr_of
from bppsa_nb.operands import batched, counted, dense, scaled
from bppsa_nb.scan import trace
from bppsa_nb.schedule import cycles as timelines
from bppsa_nb.training.datasets.audio import FEATURES


def test_a_line_says_what_a_thing_is_that_no_public_call_makes():
    """What good calls make and take is looked at in test_garbage.py."""
    matrix = dense.Dense(np.ones((9, 40, 40)))
    link = bp.BatchedCSR(np.ones((2, 9)), np.arange(9), np.arange(10), (9, 9))
    found, clips = trace.trace(50, "blelloch"), object.__new__(bp.Instruments)
    clips.x, clips.features, clips.data = np.zeros((2, 259, 38), np.float32), FEATURES["S"], "real"
    tasks = [timelines.Task(*[0] * len(timelines.Task._fields))] * 999
    model = sparse.Network((1, 4, 4), [sparse.Flatten("flat"), sparse.Linear("fc", 16, 2)])
    timeline = schedule.pipeline(schedule.Network.uniform(1), devices=1)
    with schedule.Executor(timeline, model, 2) as run:
        things = [run, run(np.zeros((2, 1, 4, 4), np.float32), np.array([0, 1])), timeline.operations, sparse.VGG11()]
    things += [matrix, scaled.Scaled(matrix), dense.Affine(matrix, np.ones((9, 40))), clips]
    things += [batched.Planned(link.pattern, link.values, "numpy"), counted.Pattern(link.pattern, [])]
    things += [counted.Cost("mm", 3, 4), found.levels[0], found.levels[0].level]
    things += [timelines.Recording(tasks, {"F": np.ones(4, int)}), dense.CSR(scipy_sparse.csr_array(np.eye(99)))]
    assert badly_shown(*things) == []


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (bp.SGD(lr=1, momentum=0.5), "SGD(lr=1.0, momentum=0.5)"),
        (
            bp.Trainer(bp.RNN(1, 2, 3), bp.SGD(0.1), "truncated", "numpy", 2),
            "Trainer(model=RNN(input_size=1, hidden_size=2, num_classes=3, num_layers=1, dtype=float32), "
            "optimizer=SGD(lr=0.1, momentum=0.0), method='truncated', backend='numpy', levels=2, steps='in parts', "
            "epoch=0, position=0)",
        ),
        (bp.History(np.empty(0), np.empty(0)), "History(iterations=0)"),
        (bp.History(np.array([2.0, 1.23456789]), np.ones(2)), "History(iterations=2, last_loss=1.23457)"),
        (
            Activations(np.ones((7, 2, 1)), np.ones((1, 1, 8, 2, 3)), None, np.ones((2, 5))),
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
