"""What torch.nn's layers do and ours do not know, ours do as well: results, gradients, errors and their words."""

import inspect
import itertools
import os
import pydoc
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from texts import beside
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: F401
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_flatten

import bppsa_nb.torch as ours
from bppsa_nb.machine import workers
from bppsa_nb.torch import choice
from bppsa_nb.torch.threads import lent

# Ignored are warnings of PyTorch, of what it will not keep.
pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("always_ours"), pytest.mark.filterwarnings("ignore")]
X, KINDS = torch.linspace(-1, 1, 30).view(5, 2, 3), ("RNN", "GRU", "LSTM")
Y = X.clone().requires_grad_()
PACKED = pack_sequence([X[:, 0], X[:2, 1]])


@pytest.fixture(autouse=True)
def as_it_was():
    choice.table.cache_clear()
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    choice.table.cache_clear()


class Own(torch.Tensor):
    """A tensor of a class of one's own."""


class First(torch.nn.Module):
    def forward(self, results):
        return results[0]


class WithStates(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, hx):
        return self.layers(x, hx)


def changed(layers, **attributes):
    """Layers whose attributes were set after they were made."""
    for name, value in attributes.items():
        setattr(layers, name, value)
    return layers


def derived(layers, x):
    x = x.clone().requires_grad_()
    output, last = layers(x)
    (output.sin().sum() + sum(each.cos().sum() for each in last)).backward()
    return output, last, x.grad, *(each.grad for each in layers.parameters())


def penalty(layers, x):
    """Gradients of the squares of a gradient."""
    x = x.clone().requires_grad_()
    output, last = layers(x, None)
    loss = output.sin().sum() + sum(each.cos().sum() for each in last)
    first = torch.autograd.grad(loss, [x, *layers.parameters()], create_graph=True)
    loss = sum(each.square().sum() for each in first)
    return first, torch.autograd.grad(loss, [x, *layers.parameters()], materialize_grads=True)


def in_forward_mode(layers, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(layers(forward_ad.make_dual(x, x))[0]).tangent


def faked(kind):
    with FakeTensorMode():
        output, last = kind(3, 4)(torch.ones(5, 2, 3))
    return output.shape, last.shape, str(type(output))


def under_autocast(layers, x, hx=None):
    with torch.autocast("cpu"):
        output, last = layers(x, hx)
    sum(each.float().sum() for each in (output, *last)).backward()
    return output.dtype, [each.dtype for each in last], *(each.grad.dtype for each in layers.parameters())


def meanwhile(layers, change, unpack=lambda saved: saved):
    """What goes back is what went forward, whatever becomes of layers in between."""
    x, hx = X.clone().requires_grad_(), torch.zeros(1, 2, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
        output, _ = layers(x, (hx, torch.ones(1, 2, 4)) if isinstance(layers, torch.nn.LSTM) else hx)
    wanted = [x, hx, *layers.parameters()]
    change(layers)
    found = torch.autograd.grad(output.sin().sum(), wanted)
    return found, found[1].view(-1)


def dropped(layers, x):
    output, _ = layers(x)
    torch.nn.functional.dropout(output, 0.5, inplace=True).sum().backward()
    return [each.grad for each in layers.parameters()]


def outcome(nn, call):
    """What a call gives: its tensors and all else, by their order, or an error's class and words."""
    torch.manual_seed(0)
    try:
        found = eval(call, {**globals(), "nn": nn, "layers": nn.GRU(3, 4)})  # where functions within find them, too
    except Exception as error:
        return [type(error), str(error)]
    return tree_flatten(found)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{}, {"bidirectional": True}, {"resets": True}])
def test_gradients_by_sample_and_ensembles(kind, how):
    """Which torch.nn's GRU and RNN refuse."""
    resets = {"resets": torch.rand(6, 1) < 0.3} if (how := dict(how)).pop("resets", False) else {}
    of_all = {name: each.expand(6, 5) for name, each in resets.items()}
    models = [getattr(ours, kind)(3, 4, 2, **how, dtype=torch.float64) for _ in range(3)]
    x, run = torch.randn(6, 5, 3, dtype=torch.float64), partial(torch.func.functional_call, models[0])
    params, _ = torch.func.stack_module_state(models)
    found = torch.func.vmap(lambda own: run(own, (x,), of_all)[0])(params)
    torch.testing.assert_close(found, torch.stack([each(x, **of_all)[0] for each in models]))
    own = {name: each.detach() for name, each in models[0].named_parameters()}
    loss = lambda own, x: run(own, (x[:, None],), resets)[0].sin().sum()  # noqa: E731
    found = torch.func.vmap(torch.func.grad(loss), (None, 1))(own, x)
    for b in range(5):
        expected = torch.autograd.grad(loss(dict(models[0].named_parameters()), x[:, b]), list(models[0].parameters()))
        torch.testing.assert_close([each[b] for each in found.values()], list(expected))


@pytest.mark.parametrize("call", beside(__file__)["same"])
def test_they_do_what_layers_of_pytorch_do(call):
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        expected, found = outcome(torch.nn, call), outcome(ours, call)
    assert len(expected) == len(found) > 0 and expected[0] is not NameError
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, torch.Tensor) and not one.is_meta:
            torch.testing.assert_close(one, other, equal_nan=True)
        else:
            assert str(one) == str(other)


def test_hooks_on_saved_tensors_keep_their_shapes():
    with pytest.raises(RuntimeError, match="same shapes and dtypes"):
        meanwhile(ours.GRU(3, 4), id, lambda saved: saved[:1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{"num_layers": 2}, {"bidirectional": True}, {"resets": True}, {"packed": True}])
def test_gradients_of_gradients_are_those_of_differences(kind, how):
    how = dict(how)
    resets, packed = torch.tensor([[0, 0], [0, 1], [1, 0]]).bool(), how.pop("packed", False)
    resets = resets if how.pop("resets", False) else None
    layers = getattr(ours, kind)(2, 2, **how, dtype=torch.float64)
    new, rows = {"dtype": torch.float64, "requires_grad": True}, layers.num_layers * (1 + layers.bidirectional)
    states = [torch.randn(rows, 2, 2, **new) for _ in range(layers.cell.states)]

    def run(x, *states):
        read = pack_sequence([x[:, 0], x[:2, 1]]) if packed else x
        output, last = layers(read, states if len(states) > 1 else states[0], resets)
        return (output.data if packed else output), *(last if len(states) > 1 else (last,))

    every = torch.randn(3, 2, 2, **new), *states
    assert torch.autograd.gradgradcheck(lambda *each: run(*each[: len(every)]), (*every, *layers.parameters()))


def test_a_tensor_that_is_given_twice_has_both_gradients_of_gradients():
    found = []
    for nn in torch.nn, ours:
        torch.manual_seed(0)
        layers, x = nn.GRU(4, 4), torch.ones(1, 2, 4, requires_grad=True)
        first = torch.autograd.grad(layers(2 * x, x)[0].sin().sum(), x, create_graph=True)[0]
        found.append((first, torch.autograd.grad(first.square().sum(), x)[0]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_says_what_is_taken(kind):
    taken = inspect.signature(getattr(ours, kind)).parameters
    more = ["method", "backend", "levels", "forward", "checkpoint_every"]
    assert [*taken][:2] == ["input_size", "hidden_size"] and [*taken][-5:] == more
    assert taken["dropout"].default == 0.0 and "input_size" in pydoc.render_doc(getattr(ours, kind))


def test_whose_code_runs_is_told(monkeypatch):
    assert ours.LSTM(3, 4, proj_size=2).runs_by(X) == ("torch.nn", "mode is 'LSTM', proj_size 2")
    assert ours.GRU(3, 4).runs_by(X[:, :0]) == ("torch.nn", "the input is empty")
    for layers in ours.GRU(3, 4, method="linear"), ours.RNN(3, 4, forward="chunked"), ours.LSTM(3, 4, backend="cpu"):
        assert layers.runs_by(X) == layers.runs_by(PACKED) == ("bppsa_nb.torch", "no table is asked")
    layers, ran, asked = ours.GRU(3, 4, 2, batch_first=True), [], []
    monkeypatch.setattr(choice, "ratio", lambda *sizes: asked.append(sizes) or (2 if torch.is_grad_enabled() else 0.5))
    monkeypatch.setattr(torch.nn.GRU, "forward", lambda self, *_: ran.append("torch.nn") or (X, X))
    for grad in True, False, True, False:
        with torch.set_grad_enabled(grad):
            assert layers.runs_by(X)[0] == ("bppsa_nb.torch" if grad else "torch.nn")
            asked.clear()
            layers(X)
    assert ran == ["torch.nn"] * 2 and not asked  # chosen once for a size
    layers.method = "chunked"
    with torch.no_grad():
        layers(X)
    assert len(ran) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_asked_for_what_comes(kind, monkeypatch):
    """Samples without an axis of their own, packed rows, dtypes that oneDNN has or has not; and sizes are forgotten."""
    asked = []
    monkeypatch.setattr(choice, "ratio", lambda *of: asked.append(of[:2]) or 2)
    monkeypatch.setattr("bppsa_nb.torch.layers._SIZES", 2)
    layers = getattr(ours, kind)(3, 4, 2)
    for x in X, X[:, 0], PACKED, X[:3]:
        layers(x)
    for dtype in torch.bfloat16, torch.float64:
        layers.to(dtype).runs_by(X.to(dtype))
    with torch.autocast("cpu"):
        layers.float().runs_by(X)
    usual = "GRU" if kind == "LSTM" else kind
    half = "LSTM, bfloat16" if kind == "LSTM" else kind
    sizes = [(10, 2, 4), (10, 1, 4), (10, 1.4, 4), (6, 2, 4), *[(10, 2, 4)] * 3]  # two layers are as twice the steps
    assert asked[1::2] == list(zip([kind, kind, f"{kind}, packed", kind, half, usual, half], sizes, strict=True))
    assert asked[::2] == [(name, (T // 2, *more)) for name, (T, *more) in asked[1::2]]
    assert len(layers._chosen) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_interpolated(kind, monkeypatch):
    monkeypatch.undo()
    for count, training in itertools.product((1, 2), (False, True)):
        torch.set_num_threads(count)
        table = np.exp(choice.table()[f"{kind}, {count}"][..., int(training)])
        for place in np.ndindex(table.shape):
            sizes = [own[i] for own, i in zip(choice.GRID.values(), place, strict=True)]
            assert np.isclose(choice.ratio(kind, sizes, training), table[place])
        between = choice.ratio(kind, (2, 8, 64), training), choice.ratio(kind, (9999, 999, 9999), training)
        assert np.allclose(between, [np.sqrt(table[0, 1, 1] * table[1, 1, 1]), table[-1, -1, -1]])


def test_an_unknown_machine_takes_the_least(monkeypatch):
    """Of what the known ones have: if it is like one of them, no layer is slower than torch.nn's."""
    monkeypatch.undo()
    names, tables = [each["machine"] for each in choice.files.read_json(choice.KNOWN)], []
    for name in (*names, "another"):
        monkeypatch.setattr(choice.prices, "machine", lambda name=name: name)
        choice.table.cache_clear()
        tables.append(choice.table()["LSTM, 2"])
    assert len(names) == 2 and np.array_equal(tables[2], np.minimum(*tables[:2])) and not np.array_equal(*tables[:2])


def test_a_machine_is_measured(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path))
    monkeypatch.setattr(choice, "GRID", {"T": (1, 2), "B": (1, 2), "H": (2, 3)})
    monkeypatch.setattr(choice, "_time", lambda both, x, training: len(x) ** (-1 if training else 1))
    threads = torch.get_num_threads()
    assert ours.calibrate(progress=False) == tmp_path / "torch.json"
    assert np.isclose(choice.ratio("LSTM, bfloat16", (2, 1, 3), False), 2) and torch.get_num_threads() == threads
    assert np.isclose(choice.ratio("GRU", (2, 2, 2), True), 1 / 2)
    assert np.isclose(choice.ratio("RNN, packed", (2, 2, 2), True), 1 / 4)  # a batch has four parts


@pytest.mark.parametrize(
    "content", ["[]", "{", "{}", "{THIS}", '{THIS, "ratios": {"GRU, 1": [1]}}', '{THIS, "ratios": [1]}']
)
def test_a_damaged_table_is_told(content, monkeypatch, tmp_path):
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path))
    this = f'"machine": "{choice.prices.machine()}", "sizes": "{choice.GRID}"'
    (tmp_path / "torch.json").write_text(content.replace("THIS", this), encoding="utf-8")
    with pytest.raises(choice.files.CorruptFileError, match="torch.json is damaged"):
        choice.table()


@pytest.mark.parametrize("training", [False, True])
def test_layers_are_timed(training):
    both = torch.nn.RNN(3, 400, 9), torch.nn.RNN(3, 4)
    assert choice._time(both, Y, training) > 0
    assert all((each.weight_hh_l0.grad is not None) == training for each in both)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_model_is_converted_in_place_and_back(kind):
    class Mine(getattr(torch.nn, kind)):
        """A class of one's own."""

    model = torch.nn.ModuleList([getattr(torch.nn, kind)(3, 4), torch.nn.Linear(4, 3), Mine(3, 4)])
    layers, optimizer, expected = model[0], torch.optim.SGD(model.parameters(), lr=1), model[0](X)
    assert ours.convert(model) is model and model[0] is layers and type(layers) is getattr(ours, kind)
    assert type(model[2]) is Mine
    torch.testing.assert_close(layers(X), expected)
    layers(X)[0].sum().backward()
    optimizer.step()
    changed = layers(X)
    assert not torch.equal(changed[0], expected[0])
    ours.convert(model, back=True)
    assert type(layers) is getattr(torch.nn, kind) and vars(layers).keys() == vars(getattr(torch.nn, kind)(3, 4)).keys()
    torch.testing.assert_close(layers(X), changed)


def test_a_parametrized_layer_is_converted():
    layers = torch.nn.utils.parametrizations.weight_norm(torch.nn.GRU(3, 4), "weight_hh_l0")
    expected = layers(X)
    assert isinstance(ours.convert(layers), ours.GRU)
    torch.testing.assert_close(layers(X), expected)
    ours.convert(layers, back=True)
    assert not isinstance(layers, ours.GRU)
    torch.testing.assert_close(layers(X), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_class_alone_can_be_set(kind):
    layers = getattr(torch.nn, kind)(3, 4)
    expected = layers(X)
    layers.__class__ = getattr(ours, kind)
    torch.testing.assert_close(layers(X), expected)
    assert repr(layers) == f"{kind}(3, 4)" and layers.runs_by(X)[0] == "bppsa_nb.torch"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_loops_run_on_threads_of_pytorch(count, monkeypatch):
    seen, helped = [], []
    monkeypatch.setattr(workers, "THREADS", 2)
    torch.set_num_threads(count)
    with lent():
        assert workers.parallel_for(lambda first, last: seen.append(threading.current_thread()) or time.sleep(0.05), 4)
        with workers.beside(lambda: helped.append(threading.current_thread()), 1):  # a second core, and no third
            pass
    assert not any(thread.name.startswith("bppsa_nb") for thread in seen)
    assert count > 1 or {*seen} == {threading.main_thread()}
    assert len(helped) == (count > 1) and threading.main_thread() not in helped
    with pytest.raises(ZeroDivisionError), lent():
        workers.parallel_for(lambda first, last: 1 // 0, 4)


def test_a_child_has_no_threads_of_pytorch():
    layers, x = ours.GRU(40, 40), torch.ones(48, 16, 40)  # of more, PyTorch itself hangs, for it waits for them
    torch.set_num_threads(2)
    layers(x)
    if (child := os.fork()) == 0:
        signal.alarm(20)
        layers(x)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
