"""Training steps on the device: a GPU, or what runs its PTX on the CPU."""

import dataclasses
from functools import partial
from itertools import product

import numpy as np
import pytest
from rings import large, more
from texts import beside
from trainers import Scaled, state

import bppsa_nb as bp
from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells import stack, stack_cuda
from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
from bppsa_nb.cells.unroll import SolverOptions
from bppsa_nb.chains import plan
from bppsa_nb.training import step_cuda as module
from bppsa_nb.training.datasets import ArrayDataset

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("few_threads")]
OPTIMIZERS = {
    "adam": lambda: bp.Adam(lr=1e-2, betas=(0.8, 0.99)),
    "momentum": lambda: bp.SGD(lr=0.1, momentum=0.9),
    "sgd": lambda: bp.SGD(lr=0.1),
}
DTYPES = np.float32, np.float64
METHODS = [("linear", None), ("chunked", None), ("blelloch", None), ("truncated", 1)]


def pair(cell, num_layers=1, optimizer="adam", method="linear", levels=None, dtype=np.float32, H=3):
    """Two trainers of one model: NumPy's linear scan, and the device."""
    make = {"rnn": bp.RNN, "gru": bp.GRU}[cell]
    models = [make(2, H, 3, num_layers, rng=0, dtype=dtype) for _ in range(2)]
    return (
        bp.Trainer(models[0], OPTIMIZERS[optimizer](), method="linear", backend="numpy"),
        bp.Trainer(models[1], OPTIMIZERS[optimizer](), method=method, levels=levels, backend="cuda"),
    )


def recorded(trainer):
    """Return what was recorded of a trainer's only shape, in order."""
    ((_, step),) = trainer._strategy._made.values()
    return list(step._recorded.values())


def draw(T, B, rng, dtype=np.float32):
    return rng.standard_normal((T, B, 2)).astype(dtype), rng.integers(3, size=B)


def check_same(host, device, tolerance):
    found = state(device)
    for name, expected in state(host).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(("cell", "num_layers", "optimizer", "method", "levels", "dtype"), [
    ("rnn", 1, "adam", "chunked", None, np.float32), ("rnn", 1, "momentum", "blelloch", None, np.float32),
    ("gru", 1, "sgd", "truncated", 1, np.float32),
    more("gru", 2, "adam", "chunked", None, np.float64),
    ("gru", 1, "adam", "linear", None, np.float32),
    *(
        large(cell, layers, optimizer, *method, dtype)
        for cell, layers, optimizer, method, dtype in product(("rnn", "gru"), (1, 2), OPTIMIZERS, METHODS, DTYPES)
    ),
])  # fmt: skip
def test_steps_are_those_of_the_host(cell, num_layers, optimizer, method, levels, dtype):
    host, device = pair(cell, num_layers, optimizer, method, levels, dtype)
    rng, tolerance = np.random.default_rng(0), 2e-5 if dtype == np.float32 else 1e-12
    with plan.chunks_of(2):
        for T, B in [(5, 2), (5, 2), (1, 1), (5, 2), (0, 2)]:  # compiled, recorded, replayed after another shape
            x, y = draw(T, B, rng, dtype)
            assert abs(device.step(x, y) - host.step(x, y)) < tolerance
            check_same(host, device, tolerance)


def test_what_is_changed_on_the_host_is_sent():
    host, device = pair("rnn", optimizer="momentum")
    x, y = draw(3, 2, np.random.default_rng(0))
    for trainer in (host, device):
        trainer.step(x, y)
        trainer.model.params["weight_hh_l0"][1] *= 2
        trainer.model.params["fc.bias"] = trainer.model.params["fc.bias"] + np.float32(1)
        trainer.optimizer.state["momentum_buffer"]["fc.bias"][:] = 3
        trainer.optimizer.lr = 0.5
        trainer.step(x, y)
    check_same(host, device, 2e-5)


@pytest.mark.parametrize("bias", [12, 17, 25, 1e30, 2e38])
def test_losses_are_worked_out_as_on_the_host(bias):
    """Where a class is all but certain, single precision would lose the gradient, and Adam makes much of little."""
    host, device = pair("rnn")
    x, y = draw(3, 2, np.random.default_rng(0))
    for trainer in (host, device):
        trainer.model.params["fc.weight"][:] = 0
        trainer.model.params["fc.bias"][:] = [bias, -bias, 0]
    for labels in (y * 0, y * 0 + 1):
        np.testing.assert_allclose(device.step(x, labels), host.step(x, labels), rtol=1e-5)
        check_same(host, device, 1e-6)


def test_momentum_changes():
    for start, changes in [(0.9, (0.0, 0.9)), (0.0, (0.9,))]:
        trainers = pair("rnn", optimizer="momentum")
        for trainer in trainers:
            trainer.optimizer = bp.SGD(lr=0.1, momentum=start)
        rng = np.random.default_rng(0)
        for momentum in (start, *changes):
            x, y = draw(2, 1, rng)
            for trainer in trainers:
                trainer.optimizer.momentum = momentum
                trainer.step(x, y)
            check_same(*trainers, 2e-5)


@pytest.mark.parametrize("fetched", [True, False])
def test_ctrl_c_while_the_device_works(fetched, monkeypatch):
    host, trainer = pair("rnn")
    (x, y), real = draw(2, 1, np.random.default_rng(0)), module.Shared.fetch
    for each in (host, host, trainer):
        each.step(x, y)

    def interrupted(shared):
        _ = real(shared) if fetched else None
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Shared, "fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(x, y)
    monkeypatch.setattr(module.Shared, "fetch", real)
    trainer.step(x, y)  # and not a second step from where the first one had come to
    check_same(host, trainer, 2e-5)


def test_a_step_that_overflows_changes_nothing():
    _, device = pair("rnn")
    x, y = draw(3, 2, np.random.default_rng(0))
    device.step(x, y)
    before = {name: param.copy() for name, param in device.model.params.items()}
    zeros, top = dict.fromkeys(("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"), 0), np.array([[1.0], [0], [0]])
    # Where no state is other than zero, the gradients that overflow are the biases', and those are not the first.
    still = zeros | {"weight_hh_l0": np.eye(3), "fc.weight": 3e38 * top, "fc.bias": 0}
    for changed, inputs, said in [
        ({"fc.weight": 3e38}, (x, y), "logits overflow float32"),
        (zeros | {"weight_hh_l0": 2e38, "fc.weight": top}, (x, y), "the gradient of .* overflows float32"),
        (still, (0 * x, 0 * y), "the gradient of bias_ih_l0 overflows float32"),
    ]:
        for name, param in (before | changed).items():
            device.model.params[name][...] = param
        with pytest.raises(FloatingPointError, match=said):
            device.step(*inputs)
        assert device.optimizer.steps == 1
    for name, param in before.items():
        device.model.params[name][...] = param
    assert np.isfinite(device.step(x, y)) and device.optimizer.steps == 2


@pytest.mark.parametrize("optimizer, change, what", beside(__file__)["overflows"])
def test_an_update_that_overflows_changes_nothing(optimizer, change, what):
    trainers = pair("rnn", optimizer=optimizer)
    x, y = draw(3, 2, np.random.default_rng(0))
    for trainer in trainers:
        trainer.step(x, y)
        usual, good = trainer.optimizer.lr, {name: param.copy() for name, param in trainer.model.params.items()}
        exec(change, {"np": np, "t": trainer})
        before = {name: param.copy() for name, param in trainer.model.params.items()}
        unlikely = trainer.model.forward(x, backend="numpy").logits.argmin(axis=1)
        with pytest.raises(FloatingPointError, match=f"^{what}.* leaves the range of float32 in step 2"):
            trainer.step(x, unlikely)
        assert trainer.optimizer.steps == 1
        trainer.optimizer.lr = usual
        for name, param in trainer.model.params.items():
            np.testing.assert_array_equal(param, before[name])
            param[...] = good[name]
        for average in trainer.optimizer.state.values():
            assert optimizer == "momentum" or all(np.isfinite(entry).all() for entry in average.values())
            average["fc.bias"][:] = 0
        trainer.step(x, y)
    check_same(*trainers, 2e-5)


def test_where_products_leave_the_range_the_linear_scan_answers(monkeypatch):
    made = []

    class Recorded(module.Recorded):
        def __init__(self, shared, shape, how, options):
            made.append(how[0])
            super().__init__(shared, shape, how, options)

    monkeypatch.setattr(module, "Recorded", Recorded)
    host, device = pair("gru", method="chunked")
    for trainer in (host, device):
        # The first number of a state is hardly read: entries of a product are too far apart.
        trainer.model.params["weight_hh_l0"][:, 0] *= np.float32(1e-25)
    x, y = draw(7, 2, np.random.default_rng(0))
    with plan.chunks_of(2):
        assert abs(device.step(x, y) - host.step(x, y)) < 2e-5
    assert made == ["chunked", "linear"]
    check_same(host, device, 2e-5)


@pytest.mark.parametrize("cell", [more("rnn"), "gru"])
def test_a_step_in_chunks_is_that_of_the_loop(cell, monkeypatch):
    used, really = [], stack.resolve_method
    chunked = SolverOptions("chunked"), 2
    for where in (stack, stack_cuda):
        monkeypatch.setattr(where, "resolve_method", lambda *args: chunked if used else really(*args))
    expected = plan.explain(6, 2, 3, backend="cuda", weights=1, forward=True)
    costs = dataclasses.replace(expected, seconds={"linear": 4.0, "chunked": 1.0})
    monkeypatch.setattr(module, "explain", lambda *args, **how: costs)
    trainers = [pair(cell, 2)[1] for _ in range(2)]
    rng = np.random.default_rng(0)
    for _ in range(2):  # launched, and replayed
        x, y = draw(6, 2, rng)
        losses = []
        for chunks in (False, True):
            used[:] = [1] * chunks
            losses.append(trainers[chunks].step(x, y))
        assert abs(losses[0] - losses[1]) < 2e-6
    check_same(*trainers, 2e-6)
    assert [made.layers.options.method for made in recorded(trainers[1])] == ["chunked"]
    assert (trainers[1].forward.spent, trainers[0].forward.spent) == (0.25, None)


def test_where_chunks_do_not_meet_the_loop_answers(monkeypatch):
    def resolve(model, options, *args):
        return (stack.LOOP, 12) if options.method == "linear" else (SolverOptions("chunked"), 1)

    for where in (stack, stack_cuda):
        monkeypatch.setattr(where, "resolve_method", resolve)
    loop, device = (pair("rnn")[1] for _ in range(2))
    x, y = draw(12, 2, np.random.default_rng(0))
    for trainer in (loop, device):
        trainer.model.params["weight_hh_l0"] *= 8
    loop.forward.method = "linear"
    expected = loop.step(x, y)
    assert device.step(x, y) == expected
    check_same(loop, device, 0)
    assert [made.layers.options.method for made in recorded(device)] == ["chunked", "linear"]
    assert (device.forward.spent, device.forward.rest) == (None, 50)


class Forward(bp.RNN):
    def forward(self, x, h0=None, backend="auto", comm=None):
        return bp.RNN.forward(self, -x, h0, "numpy", comm)


class Backward(bp.RNN):
    def backward(self, *arguments, **how):
        return {name: 2 * grad for name, grad in super().backward(*arguments, **how).items()}


class Head(bp.RNN):
    def check_input(self, x, h0=None):
        raise ValueError("not today")


class Half(bp.SGD):
    def step(self, params, grads):
        super().step(params, {name: grad / 2 for name, grad in grads.items()})


@pytest.mark.parametrize("own", [Forward, Backward, Head, Scaled, Half, "method", "parameter", "rule"])
def test_what_is_of_its_own_takes_the_general_path(own, monkeypatch):
    def trainer(backend):
        model = (own if own in (Forward, Backward, Head, Scaled) else bp.RNN)(2, 3, 3, rng=0)
        optimizer = (own if own is Half else bp.SGD)(lr=0.1)
        if own == "method":
            model.forward = partial(Forward.forward, model)
        if own == "rule":
            optimizer.step = lambda params, grads: params["fc.bias"].fill(7)
        if own == "parameter":
            model.params["scale"] = np.ones(1, np.float32)
        return bp.Trainer(model, optimizer, "linear", backend)

    monkeypatch.setattr(module, "Shared", None)
    x, y = draw(2, 1, np.random.default_rng(0))
    host = trainer("numpy")
    with pytest.warns(UserWarning, match="whole steps run on the GPU only of a cell's layers and nothing else") as said:
        other = trainer("cuda")
    assert said[0].filename == __file__ and other.steps == "in parts"
    if own in (Head, "parameter"):
        with pytest.raises(ValueError, match="not today" if own is Head else "grads must have the entries .*'scale'"):
            other.step(x, y)
        return
    found = other.step(x, y)
    for _ in range(2):  # it is said no second time
        assert abs(found - host.step(x, y)) < 2e-5
        check_same(host, other, 2e-5)
        found = other.step(x, y)


def test_bad_input_is_refused_as_on_the_host():
    host, device = pair("rnn")
    x, y = draw(3, 2, np.random.default_rng(0))
    hole = x.copy()
    hole[1, 0, 1] = np.nan
    for wrong in [(hole, y), (x[:, :0], y[:0]), (x[..., :1], y), (x, y + 3), (x, y[:1]), (x, y + 0.5), (x * 1.0j, y)]:
        with pytest.raises((TypeError, ValueError)) as expected:
            host.step(*wrong)
        with pytest.raises(expected.type) as found:
            device.step(*wrong)
        assert str(found.value) == str(expected.value)
    assert device.optimizer.steps == 0


def test_fit_save_and_load(tmp_path):
    whole, device = pair("rnn")
    pytest.importorskip("tqdm")  # which a GPU's machine may lack
    dataset = ArrayDataset(*draw(3, 5, np.random.default_rng(0)))
    for trainer in (whole, device):
        trainer.fit(dataset, epochs=1, batch_size=2, progress=False)
    device.save(tmp_path / "run.npz")
    _, resumed = pair("rnn")
    resumed.load(tmp_path / "run.npz")
    for trainer in (whole, resumed):
        trainer.fit(dataset, epochs=2, batch_size=2, progress=False)
    check_same(whole, resumed, 2e-5)


@pytest.mark.parametrize("method", [more("linear"), "blelloch"])
@pytest.mark.parametrize("cell", ["rnn", more("gru")])
def test_weight_gradients_may_run_as_late_as_they_like(cell, method, monkeypatch):
    """What goes to the sub-stream runs when the main stream waits for it, and not before."""
    host, trainer = pair(cell, num_layers=3, method=method)
    x, y = draw(3, 2, np.random.default_rng(0))
    host.step(x, y)
    trainer.step(x, y)  # makes the device's side
    shared, sub, queue, said = trainer._strategy._shared["gpu"], object(), [], []
    launch_gradients, launch_sums = weight_gradients.launch_gradients, cells.launch_preact_gradients

    def later(*arguments):
        if arguments[-1] is not sub:  # the linear layer's
            return launch_gradients(*arguments)
        queue.append(lambda: launch_gradients(*arguments[:-1]))
        said.append("δW")

    def grad_preacts(*arguments):
        said.append("δO")
        launch_sums(*arguments)

    def follow(stream, other):
        said.append("sub waits" if stream is sub else "main waits")
        while stream is not sub and queue:
            queue.pop(0)()

    monkeypatch.setattr(weight_gradients, "launch_gradients", later)
    monkeypatch.setattr(cells, "launch_preact_gradients", grad_preacts)
    for where in (module, stack_cuda):
        monkeypatch.setattr(where, "follow", follow)
    shared.graph, shared.sub_stream = False, sub  # what comes later is in no stream that could be recorded
    host.step(x, y)
    trainer.step(x, y)
    check_same(host, trainer, 2e-5)
    assert said == ["δO", "sub waits", "δW"] * 3 + ["main waits"]


@pytest.mark.full
@pytest.mark.parametrize("method", ["linear", "chunked", "blelloch"])
@pytest.mark.parametrize("cell", ["rnn", "gru"])
def test_graphs_and_streams_compute_what_launches_in_one_stream_compute(cell, method, monkeypatch):
    rng, Shared = np.random.default_rng(0), module.Shared
    batches = [draw(259, 16, rng) for _ in range(5)]
    losses = []
    for graph in (True, False):
        for sub_stream in (True, False):
            _, trainer = pair(cell, num_layers=4, method=method, H=20)
            monkeypatch.setattr(module, "Shared", partial(Shared, graph=graph, sub_stream=sub_stream))
            losses.append([trainer.step(x, y) for x, y in batches])
    assert losses[0] == losses[1] == losses[2] == losses[3]


def test_memory_is_asked_for(monkeypatch):
    def refuse(size, what):
        raise MemoryError(f"{what} takes {size} bytes")

    monkeypatch.setattr(module, "require", refuse)
    _, trainer = pair("gru", method="blelloch")
    with pytest.raises(MemoryError, match="a training step of T = 7, B = 2, H = 3 by method 'blelloch' takes"):
        trainer.step(*draw(7, 2, np.random.default_rng(0)))
