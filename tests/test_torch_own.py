"""Layers of a cell of one's own in PyTorch, where they differ from others: what they begin with, and who runs them."""

import copy
import pickle

import numba
import pytest
import torch
from minimal_gated_unit import MinimalGatedUnit
from minimal_gru import MinimalGRU
from peephole_lstm import PeepholeLSTM
from texts import beside, refuses

import bppsa_nb as bp
import bppsa_nb.torch as ours
from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.lstm import LSTM
from bppsa_nb.machine.pointwise import tanh

pytestmark = pytest.mark.peers
CELLS = [kind.cell for kind in (MinimalGatedUnit, MinimalGRU, PeepholeLSTM)]
X = torch.randn(6, 2, 3)


@pytest.mark.parametrize("cell, theirs", [(GRU.cell, torch.nn.GRU), (LSTM.cell, torch.nn.LSTM)])
def test_of_a_known_cell_they_are_torchs(cell, theirs):
    made = []
    for make in theirs, lambda *sizes, **how: ours.Recurrent(cell, *sizes, **how):
        torch.manual_seed(0)
        made.append(make(3, 4, 2, bidirectional=True))
    assert [name for name, _ in made[0].named_parameters()] == [name for name, _ in made[1].named_parameters()]
    torch.testing.assert_close(*(layers.state_dict() for layers in made), rtol=0, atol=0)
    torch.testing.assert_close(*(layers(X) for layers in made))
    assert made[1].runs_by(X)[0] == "bppsa_nb.torch"


def test_parameters_are_those_that_the_cell_has():
    names = {cell: set(dict(ours.Recurrent(cell, 3, 4, bias=False).named_parameters())) for cell in CELLS}
    both = {"weight_ih_l0", "weight_hh_l0"}
    assert [*names.values()] == [both, {"weight_ih_l0"}, both | {f"{vector}_l0" for vector in CELLS[2].vectors}]
    layers = ours.Recurrent(CELLS[1], 3, 4, 2, bidirectional=True)
    assert [p.shape for own in layers.all_weights[2:] for p in own] == [(8, 8), (8,)] * 2


@pytest.mark.filterwarnings("ignore:.*jit.(trace|script)", "ignore::torch.jit.TracerWarning", "ignore:Complex modules")
@pytest.mark.parametrize("cell", CELLS)
def test_what_only_pytorchs_operations_can_do_they_do(cell):
    layers = ours.Recurrent(cell, 3, 4, 2)
    expected = layers(X)[0]
    for found in (
        torch.jit.trace(layers, X)(X)[0],
        torch.compile(layers, backend="eager")(X)[0],
        torch.export.export(layers, (X,)).module()(X)[0],
        torch.func.jvp(lambda x: layers(x)[0], (X,), (X,))[0],
        torch.func.vmap(lambda x: layers(x)[0], 1, 1)(X),
        copy.deepcopy(layers).to(torch.complex64)(X.to(torch.complex64))[0].real,
        torch.fx.symbolic_trace(torch.nn.Sequential(layers))(X)[0],
        pickle.loads(pickle.dumps(layers))(X)[0],
    ):
        torch.testing.assert_close(found, expected)
    there = ours.Recurrent(cell, 3, 4, 2, device="meta")
    assert there(X.to("meta"))[0].shape == expected.shape
    assert there.runs_by(X.to("meta")) == ("torch", "parameters are torch.float32 on meta")


def test_functions_that_numba_compiles_are_read_by_pytorch():
    @numba.njit
    def square(x):
        return x * x

    @numba.njit
    def fourth(x):
        return square(square(x))

    def step(preacts, before):
        z = tanh(preacts[0])
        return (before[0] + fourth(z),), (z,)

    def back(grads, before, after, kept):
        (z,), (grad,) = kept, grads
        twice = grad * z * square(z) + grad * z * square(z)
        return ((twice + twice) * (1 - square(z)),), (grad,)

    layers = ours.Recurrent(bp.Cell(step, back, kept=1, carry=True), 3, 4, dtype=torch.float64)
    x = X.double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: layers(x)[0], (x,))


@pytest.mark.parametrize("call, error", beside(__file__)["refused"])
def test_what_is_wrong_is_said(call, error):
    layers, peephole = ours.Recurrent(CELLS[1], 3, 4, 2), ours.Recurrent(CELLS[2], 3, 4)
    refuses(call, error, {**globals(), "layers": layers, "peephole": peephole, "cell": CELLS[1]})
