"""Whole steps of an RNN and a GRU: the same bits, errors and promises as steps in parts, in a few calls."""

import copy
import pickle
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rings import more
from texts import beside
from trainers import DATA, Scaled, assert_same, fit, new_trainer, state

import bppsa_nb as bp

OPTIMIZERS = [lambda: bp.Adam(0.1), lambda: bp.Adam(1e-2, (0.3, 0.4), eps=0.0)]
OPTIMIZERS += [lambda: bp.SGD(0.5), lambda: bp.SGD(0.5, 0.5)]


def go_in_parts(trainer):
    """Have a trainer's steps call forward, backward and the optimizer's step."""
    trainer._strategy._prepared = lambda *batch: None


def drawn(rng, whole):
    """Make a trainer of any kind that has whole steps, and have it take them, or take them in parts."""
    kind, dtype = (bp.RNN, bp.GRU)[rng.integers(2)], (np.float32, np.float64)[rng.integers(2)]
    sizes, layers = [int(size) for size in rng.integers(1, 6, 3)], int(rng.integers(1, 3))
    optimizer = OPTIMIZERS[rng.integers(len(OPTIMIZERS))]()
    how = {"method": ("auto", "linear")[rng.integers(2)], "backend": "cpu"}
    trainer = bp.Trainer(kind(*sizes, num_layers=layers, rng=1, dtype=dtype), optimizer, **how)
    assert trainer.steps == "whole"
    if not whole:
        go_in_parts(trainer)
    return trainer


def batch(trainer, rng):
    steps, samples = int(rng.integers(0, 12)), int(rng.integers(1, 10))
    x = rng.standard_normal((steps, samples, trainer.model.input_size)).astype(trainer.model.dtype)
    return x, rng.integers(trainer.model.num_classes, size=samples)


def put(array, value, rng):
    array = array.copy()
    if array.size:
        array.flat[rng.integers(array.size)] = value
    return array


def averages(trainer, rng):
    groups = list(trainer.optimizer.state.values())
    return groups[rng.integers(len(groups))] if groups else {}


BATCHES, CHANGES = (beside(__file__)[name] for name in ("batches", "changes"))  # texts


def told(trainer):
    """Say what a trainer holds, which may be anything."""
    groups = [trainer.model.params, *trainer.optimizer.state.values()]
    arrays = [(name, repr(array), np.array(array).tobytes()) for group in groups for name, array in group.items()]
    return arrays, trainer.optimizer.steps


def story(seed, whole, spoiled):
    """Take steps, some of them spoiled: losses, errors, and what the trainer holds after each."""
    rng = np.random.default_rng(seed)
    trainer, heard = drawn(rng, whole), []
    for k in range(6):
        if spoiled and k > 1 and rng.random() < 0.4:
            names = list(trainer.model.params)
            name = names[rng.integers(len(names))]
            array = trainer.model.params[name]
            try:
                exec(CHANGES[rng.integers(len(CHANGES))], globals() | locals())
            except (TypeError, ValueError) as error:  # what cannot be changed so
                heard.append(repr(error))
        x, y = batch(trainer, rng)
        if spoiled and rng.random() < 0.3:
            x, y = eval(BATCHES[rng.integers(len(BATCHES))], globals() | locals())
        try:
            heard.append(trainer.step(x, y))
        except Exception as error:
            heard.append(repr(error))
        heard.append(told(trainer))
    return heard


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # where the test itself puts what is too large
@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("first", [0, *map(more, range(20, 160, 20))])
def test_whatever_comes_whole_steps_do_and_say_what_steps_in_parts_do(first, spoiled):
    for seed in range(first, first + 20):
        for ours, theirs in zip(story(seed, True, spoiled), story(seed, False, spoiled), strict=True):
            assert repr(ours) == repr(theirs), seed


@pytest.mark.parametrize("kind", [bp.RNN, bp.GRU])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(100, 16, 20, 1), (12, 70, 33, 17), (6, 24, 260, 3)])
def test_the_same_bits_after_many_steps(kind, dtype, sizes):
    T, B, H, inputs = sizes
    ends = []
    for whole in (True, False):
        trainer = bp.Trainer(kind(inputs, H, 10, rng=2, dtype=dtype), bp.Adam(1e-3), backend="cpu")
        if not whole:
            go_in_parts(trainer)
        rng = np.random.default_rng(3)
        batches = [(rng.standard_normal((T, B, inputs)).astype(dtype), rng.integers(10, size=B)) for _ in range(20)]
        losses = [trainer.step(*each) for each in batches[:17]]
        trainer.optimizer.lr = np.float64(0.00123)  # which NumPy multiplies by in float64
        losses += [trainer.step(*each) for each in batches[17:]]
        ends.append((losses, state(trainer)))
    assert ends[0][0] == ends[1][0]
    assert_same(ends[0][1], ends[1][1])


def test_who_takes_whole_steps():
    def steps(model=bp.RNN, optimizer=bp.SGD, **how):
        return bp.Trainer(model(1, 2, 3), optimizer(0.1), **{"backend": "cpu"} | how).steps

    assert steps() == steps(bp.GRU) == steps(optimizer=bp.Adam) == "whole"
    assert steps(method="blelloch") == steps(forward="chunked") == steps(backend="numpy") == "whole"
    own = type("Own", (bp.SGD,), {})
    assert steps(Scaled) == steps(optimizer=own) == steps(checkpoint_every=2) == "in parts"


def test_a_forward_pass_that_a_model_is_given_between_two_steps_is_called():
    trainer, batch = bp.Trainer(bp.RNN(1, 2, 3), bp.SGD(1), backend="cpu"), (np.ones((5, 4, 1), "f"), np.zeros(4, int))
    trainer.step(*batch)
    trainer.model.forward = lambda *how, **more: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.step(*batch)


def test_a_model_of_ones_own_need_keep_nothing_but_logits():
    own = SimpleNamespace(params={"bias": np.zeros(3)}, check_method=lambda *how: None)
    own.forward = lambda x, backend: SimpleNamespace(logits=np.tile(own.params["bias"], (len(x), 1)))
    own.backward = lambda activations, grad_logits, *how: {"bias": grad_logits.sum(axis=0)}
    trainer = bp.Trainer(own, bp.SGD(0.1))
    losses = [trainer.step(np.ones((2, 4)), [0, 1]) for _ in range(3)]
    assert trainer.steps == "in parts" and losses[0] > losses[1] > losses[2]


def test_arrays_stay_the_users():
    """Views see what changes; what was copied into a parameter, and gradients, stay as they were."""
    trainer = new_trainer(backend="cpu")
    x, y = DATA.batch(np.arange(8))
    mine = trainer.model.params["fc.bias"] = np.zeros(3, np.float32)
    held = dict(trainer.model.params)
    grads = trainer.model.backward(trainer.model.forward(x), np.ones((8, 3), np.float32))
    kept = {name: grad.copy() for name, grad in grads.items()}
    for _ in range(3):
        before = held["fc.bias"].copy()
        trainer.step(x, y)
        assert (held["fc.bias"] != before).all() and not mine.any()
    assert_same(held, dict(trainer.model.params))
    assert_same(grads, kept)
    average = trainer.optimizer.state["exp_avg"]["fc.bias"]
    before = average.copy()
    trainer.step(x, y)
    assert (average != before).all() and (trainer.optimizer.state["exp_avg"]["fc.bias"] == average).all()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda trainer: pickle.loads(pickle.dumps(trainer))])
def test_copies_go_on_by_themselves(again):
    x, y = DATA.batch(np.arange(8))
    trainer = new_trainer(backend="cpu")
    for _ in range(3):
        trainer.step(x, y)
    other, before = again(trainer), state(trainer)
    losses = [other.step(x, y) for _ in range(3)]
    assert_same(state(trainer), before)
    assert [trainer.step(x, y) for _ in range(3)] == losses
    assert_same(state(trainer), state(other))


@pytest.fixture
def alarms():
    """Have Ctrl-C come some seconds after it was asked for."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_ctrl_c_at_any_moment_loses_nothing(foreground, alarms):
    """Neither in `fit`, which goes on to the same end, nor in `step`, which is taken or not."""
    expected, rng = new_trainer(backend="cpu"), np.random.default_rng(0)
    fit(expected, 12)
    trainer, stopped = new_trainer(backend="cpu"), 0
    while trainer.epoch < 12:
        try:
            alarms(rng.uniform(1e-5, 1e-3))
            fit(trainer, 12)
        except KeyboardInterrupt:
            stopped += 1
        alarms(0)
    assert stopped > 10
    assert_same(state(trainer), state(expected))
    x, y = DATA.batch(np.arange(8))
    trainer, other = new_trainer(backend="cpu"), new_trainer(backend="cpu")
    states = [state(other)] + [(other.step(x, y), state(other))[1] for _ in range(40)]
    while trainer.optimizer.steps < 40:
        try:
            alarms(rng.uniform(1e-5, 2e-3))
            while trainer.optimizer.steps < 40:
                trainer.step(x, y)
        except KeyboardInterrupt:
            pass
        alarms(0)
        if trainer.optimizer.state:
            assert_same(state(trainer), states[trainer.optimizer.steps])


def walked(call):
    """Return how many Python functions a call runs, warm, and in how many files."""
    calls, _ = [], [call() for _ in range(3)]
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(calls), len(set(calls))


@pytest.mark.parametrize("kind", [bp.RNN, bp.GRU])
@pytest.mark.parametrize("method", ["auto", "linear"])
def test_a_step_is_a_short_way(kind, method):
    trainer = bp.Trainer(kind(1, 20, 10), bp.Adam(), method=method, backend="cpu")
    x, y = bp.Bitstream(length=100, num_samples=16).batch(np.arange(16))
    frames, files = walked(lambda: trainer.step(x, y))
    assert frames <= 42 and files <= 14


@pytest.mark.parametrize(("backend", "most"), [("cpu", (30, 13)), ("numpy", (126, 11))])
def test_so_is_going_back(backend, most):
    jacobians_T, grad_output = np.full((100, 16, 20, 20), 0.05), np.ones((16, 20))
    frames, files = walked(lambda: bp.backprop(jacobians_T, grad_output, method="linear", backend=backend))
    assert frames <= most[0] and files <= most[1]
