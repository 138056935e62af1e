"""What a notebook's last line shows of everything that is public: what it is, in a line or two, and no numbers."""

from pathlib import Path

import numpy as np
import pytest
from garbage import badly_shown, evaluate
from scipy import sparse as scipy_sparse
from texts import beside

import bppsa_nb as bp
from bppsa_nb import multigrid, schedule, sparse
from bppsa_nb.machine.checks import repr_of
from bppsa_nb.operands import kinds, pattern
from bppsa_nb.papers.multigrid import recording as timelines
from bppsa_nb.scan import trace
from bppsa_nb.training.datasets.audio import FEATURES


def test_a_line_says_what_a_thing_is_that_no_public_call_makes():
    """What good calls make and take is looked at in test_garbage.py."""
    matrix = kinds.Dense(np.ones((9, 40, 40)))
    link = bp.BatchedCSR(np.ones((2, 9)), np.arange(9), np.arange(10), (9, 9))
    found, clips = trace.trace(50, "blelloch"), object.__new__(bp.Instruments)
    clips.x, clips.features, clips.data = np.zeros((2, 259, 38), np.float32), FEATURES["S"], "real"
    tasks = [timelines.Task(*[0] * len(timelines.Task._fields))] * 999
    things = [schedule.pipeline(schedule.Network.uniform(1), devices=1).operations, sparse.VGG11()]
    things += [matrix, kinds.Scaled(matrix), kinds.Affine(matrix, np.ones((9, 40))), clips]
    things += [pattern.Planned(link.pattern, link.values, "numpy"), pattern.Pattern(link.pattern, [])]
    things += [pattern.Cost("mm", 3, 4), found.levels[0], found.levels[0].level]
    things += [timelines.Recording(tasks, {"F": np.ones(4, int)}), kinds.CSR(scipy_sparse.csr_array(np.eye(99)))]
    assert badly_shown(*things) == []


@pytest.mark.parametrize("thing, text", beside(__file__)["words"])
def test_in_these_words(thing, text):
    assert repr(evaluate(thing)) == text


def test_half_made_things_are_shown_too():
    for kind in (bp.RNN, bp.Trainer, bp.SGD, sparse.Network, multigrid.ResidualModel):
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
