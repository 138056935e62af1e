"""A new cell joins by one file with its NumPy equations and its diagonals, and is scanned like the others."""

from functools import partial

import numpy as np
import pytest
from comparing import central_differences
from minimal_gated_unit import MinimalGatedUnit
from minimal_gru import MinimalGRU
from peephole_lstm import PeepholeLSTM
from rings import more
from texts import beside, refuses

from bppsa_nb import LSTM, RNN, Adam, Bitstream, Cell, Recurrent, Trainer, check_cell
from bppsa_nb.machine.cuda import REGISTERS
from bppsa_nb.machine.pointwise import tanh
from bppsa_nb.training.loss import cross_entropy

METHODS = [("linear", None), ("blelloch", None), ("chunked", None), *(("truncated", k) for k in (0, 2, 99))]
KINDS = {"minimal gated unit": MinimalGatedUnit, "relu": partial(RNN, nonlinearity="relu"), "peephole": PeepholeLSTM}
KINDS |= {"minimal GRU": MinimalGRU}
each_kind = pytest.mark.parametrize("kind", KINDS)


def draw(kind, dtype, layers):
    rng = np.random.default_rng(0)
    model = KINDS[kind](2, 5, 3, num_layers=layers, rng=rng, dtype=dtype)
    x, h0 = rng.standard_normal((17, 4, 2)), rng.uniform(-1, 1, (layers, 4, 5))
    h0 = h0.astype(dtype)
    return model, x.astype(dtype), h0 if model.cell.states == 1 else (h0, -h0), rng.integers(3, size=4)


@each_kind
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_are_central_differences(layers, kind):
    model, x, h0, y = draw(kind, np.float64, layers)

    def loss():
        return cross_entropy(model.forward(x, h0, backend="numpy").logits, y)[0]

    activations = model.forward(x, h0, backend="numpy")
    grads = model.backward(activations, cross_entropy(activations.logits, y)[1], backend="numpy")
    for name, expected in central_differences(loss, model.params).items():
        np.testing.assert_allclose(grads[name], expected, rtol=1e-5, atol=1e-9, err_msg=name)


@each_kind
@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), more(np.float64, 1e-12)])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("method, levels", METHODS)
def test_every_method_gives_the_same_gradients(method, levels, backend, dtype, tolerance, kind):
    model, x, h0, y = draw(kind, dtype, 2)
    expected = model.forward(x, h0, backend="numpy")
    grad_logits = cross_entropy(expected.logits, y)[1]
    linear = model.backward(expected, grad_logits, "linear", "numpy")
    activations = model.forward(x, h0, backend)
    np.testing.assert_allclose(activations.logits, expected.logits, rtol=0, atol=tolerance)
    for name, grad in model.backward(activations, grad_logits, method, backend, levels).items():
        largest = np.abs(linear[name]).max()
        np.testing.assert_allclose(grad, linear[name], rtol=0, atol=tolerance * largest, err_msg=name)


@each_kind
def test_it_is_trained(kind):
    trainer = Trainer(KINDS[kind](1, 8, 4, rng=0), Adam(lr=0.02), method="blelloch", backend="cpu")
    history = trainer.fit(Bitstream(20, 64, num_classes=4, rng=0), epochs=40, batch_size=16, progress=False)
    assert history.loss[-4:].mean() < 0.9 * history.loss[:4].mean()


@pytest.mark.parametrize("kind", [*KINDS.values(), LSTM])
def test_right_cells_pass(kind):
    check_cell(kind(1, 1, 1).cell)


@pytest.mark.gpu
def test_every_gate_may_take_its_sums_apart(from_ptx, monkeypatch):
    def step(sums, before):
        return (tanh(sums[0] + sums[1]),), ()

    def back(grads, before, after, kept):
        grad = grads[0] - grads[0] * after[0] * after[0]
        return (grad, grad), ()

    class Apart(Recurrent):
        cell = Cell(step, back, gates=1, split=1)

    check_cell(Apart.cell)
    model, x = Apart(2, 5, 3, rng=0), np.random.default_rng(0).standard_normal((5, 1, 2)).astype(np.float32)
    expected = model.forward(x, backend="numpy", method="linear")
    for registers in (REGISTERS, 0):  # by the kernels for one H, and for any
        monkeypatch.setattr("bppsa_nb.machine.cuda.REGISTERS", registers)
        found = model.forward(x, backend="cuda", method="linear")
        np.testing.assert_allclose(found.states, expected.states, rtol=0, atol=1e-6)


@pytest.mark.gpu
def test_vectors_of_a_cells_own_are_not_known_on_a_gpu(from_ptx):
    model, x = PeepholeLSTM(2, 3, 2), np.ones((4, 1, 2), np.float32)
    with pytest.raises(ValueError, match="must be 'numpy' or 'cpu' for a cell with vectors of its own, weight_ci, .*"):
        model.forward(x, backend="cuda")
    with pytest.raises(ValueError, match="got 'cuda'"):
        model.backward(model.forward(x), np.ones((1, 2), np.float32), backend="cuda")


def _scaled(by, k):
    def back(grads, before, after, kept):
        parts = [list(part) for part in LSTM.cell.back(grads, before, after, kept)]
        parts[by][k] = 1.001 * parts[by][k]
        return tuple(map(tuple, parts))

    return LSTM.cell._replace(back=back)


def _in_place(sums, before):
    (_, c), (i, f, g, o) = before, sums
    c *= f
    return (o * tanh(c), c + i * g), (i, f, g, o, tanh(c))


def helper(x):
    return tanh(x)


def _with_a_helper(sums, before):
    return (helper(sums[0]),), ()


PEEPHOLE, MINIMAL = PeepholeLSTM.cell, MinimalGRU.cell


def _doubled_last(cell):
    def back(grads, before, after, kept):
        (*grad_preacts, last), past = cell.back(grads, before, after, kept)
        return (*grad_preacts, 2 * last), past

    return cell._replace(back=back)


def _squared(grads, before, after, kept):
    return (grads[0] * grads[0] * (1 - after[0] ** 2),), ()


_huge = lambda x: np.exp(2000 * x)  # noqa: E731
EXP = Cell(lambda sums, _: ((np.exp(sums[0]),), ()), lambda grads, _, after, __: ((grads[0] * after[0],), ()))
LOST = ": overflow encountered in exp$"


@pytest.mark.parametrize("cell, message", beside(__file__)["wrong"])
def test_what_is_wrong_with_a_cell_is_said(cell, message):
    refuses(f"check_cell({cell})", message, globals())


def test_what_leaves_the_range_in_training_is_named():
    trainer = Trainer(type("Own", (Recurrent,), {"cell": EXP})(1, 3, 2), Adam())
    with pytest.raises(FloatingPointError, match=f"logits overflow float32, .* finite{LOST}"):
        trainer.step(np.linspace(-1e3, 1e3, 18, dtype=np.float32).reshape(9, 2, 1), np.zeros(2, int))


def test_numbers_of_64_bits_are_found():
    def step(sums, before):
        return (tanh(sums[0]) * (1 - tanh(sums[0])),), (tanh(sums[0]),)

    def back(grads, before, after, kept):
        (t,) = kept
        return (grads[0] * (t * t - 1) * (t + t - 1),), ()

    said = r"cell.step's next states must be float32 .* got float64: numbers are written constant\(1, x\)"
    with pytest.raises(TypeError, match=said):
        check_cell(Cell(step, back, kept=1))


def test_a_model_refuses_a_cell_whose_numbers_do_not_fit():
    class Forgetful(Recurrent):
        cell = LSTM.cell._replace(kept=4)

    class Nothing(Recurrent):
        pass

    with pytest.raises(ValueError, match="cell.step must return 4 kept numbers, got 5"):
        Forgetful(1, 2, 3)
    with pytest.raises(TypeError, match="cell must be a Cell, got None"):
        Nothing(1, 2, 3)
