import itertools
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import naive
import numpy as np
import pytest
import trainers
from texts import beside
from trainers import DATA, Pictures, assert_same, fit, new_trainer, picture_trainer, pruned_trainer, state

from bppsa_nb import RNN, SGD, Adam, Bitstream, Trainer
from bppsa_nb.machine.parameters import Parameters
from bppsa_nb.sparse import Conv2d, Flatten, Linear, Network
from bppsa_nb.training import optimizers, optimizers_cpu
from bppsa_nb.training.datasets import ArrayDataset
from bppsa_nb.training.loss import cross_entropy

OPTIMIZERS = [
    lambda: SGD(lr=0.1), lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.01),
    lambda: Adam(lr=0.01, betas=(0.8, 0.95), eps=1e-3), lambda: Adam(lr=0.01, betas=(0.2, 0.9)),
]


def test_cross_entropy_equals_the_oracle():
    rng = np.random.default_rng(0)
    model = RNN(1, 3, 5, dtype=np.float64)
    h0, labels = rng.standard_normal((4, 3)), [0, 4, 2, 2]
    expected = naive.loss("rnn", np.zeros((0, 4, 1)), h0[None], model.params, labels)
    logits = h0 @ model.params["fc.weight"].T + model.params["fc.bias"]
    loss, grad_logits = cross_entropy(logits, labels)
    assert isinstance(loss, float)
    assert loss == pytest.approx(expected[0], rel=1e-14)
    np.testing.assert_allclose(grad_logits, expected[1], rtol=1e-13)
    loss, grad_logits = cross_entropy(logits.astype(np.float32), labels)
    assert loss == pytest.approx(expected[0], rel=1e-6)
    assert grad_logits.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_cross_entropy_is_stable(scale, dtype):
    logits = np.array([[scale, -scale, 0], [scale, -scale, 0]], dtype)
    loss, grad_logits = cross_entropy(logits, [0, 1])
    assert loss == pytest.approx(scale, rel=1e-6)
    np.testing.assert_allclose(grad_logits, [[0, 0, 0], [0.5, -0.5, 0]])


@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_classes_end_where_they_end(classes, dtype):
    logits = np.random.default_rng(0).standard_normal((4, classes)).astype(np.float32)
    for place, wrong in itertools.product(range(4), [classes, classes + 1, 200, *([-1] if dtype == np.int64 else [])]):
        labels = np.full(4, classes - 1, dtype)
        labels[place] = wrong
        with pytest.raises(ValueError, match=f"^labels must be from 0 to {classes - 1}, got {wrong}$"):
            cross_entropy(logits, labels)


def test_what_vanishes_is_no_error_whatever_the_caller_wants_to_hear_of():
    trainer = new_trainer()
    trainer.model.params["fc.bias"][0] = 200
    with np.errstate(all="raise"):
        assert trainer.step(np.ones((3, 2, 1), np.float32), [0, 0]) == 0
        loss, grad = cross_entropy(np.array([[1000.0, 0.0]]), [0])
    assert loss == 0 and not grad.any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_follow_their_rules(optimizer):
    rng, optimizer = np.random.default_rng(0), optimizer()
    start, grads = rng.standard_normal((2, 3)), rng.standard_normal((6, 2, 3))
    grads[3] *= 1e-6
    flat = [list(map(float, grad.ravel())) for grad in grads]
    if isinstance(optimizer, SGD):
        expected = naive.sgd(start.ravel(), flat, optimizer.lr, optimizer.momentum)
    else:
        expected = naive.adam(start.ravel(), flat, optimizer.lr, optimizer.betas, optimizer.eps)
    params = {"a": start.copy(), "b": start.astype(np.float32)}
    for grad in grads:
        optimizer.step(params, {"a": grad, "b": grad.astype(np.float32)})
    np.testing.assert_allclose(params["a"].ravel(), expected, rtol=1e-13)
    np.testing.assert_allclose(params["b"].ravel(), expected, rtol=1e-5)
    assert params["b"].dtype == np.float32


@pytest.mark.parametrize("beta1", [0, 1e-3])
def test_an_average_that_keeps_little_keeps_no_rounding_of_what_it_forgets(beta1):
    optimizer, grads, params = Adam(lr=0.01, betas=(beta1, 0)), [[100.0], [1e-6]], {"a": np.zeros(1, np.float32)}
    for grad in grads:
        optimizer.step(params, {"a": np.float32(grad)})
    np.testing.assert_allclose(params["a"], naive.adam([0.0], grads, 0.01, (beta1, 0), 1e-8), rtol=1e-6)


@pytest.mark.peers
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_equal_pytorch(optimizer):
    import torch

    rng, optimizer = np.random.default_rng(0), optimizer()
    start = rng.standard_normal((2, 3)).astype(np.float32)
    params, param = {"a": start.copy()}, torch.nn.Parameter(torch.from_numpy(start.copy()))
    settings = optimizer.settings()
    theirs = getattr(torch.optim, settings.pop("kind"))([param], **settings)
    for _ in range(20):
        grad = rng.standard_normal((2, 3)).astype(np.float32)
        param.grad = torch.from_numpy(grad)
        theirs.step()
        optimizer.step(params, {"a": grad})
    np.testing.assert_allclose(params["a"], param.detach().numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("optimizer, grad, what", beside(__file__)["overflows"])
def test_an_update_that_overflows_changes_nothing(optimizer, grad, what):
    optimizer, params = eval(optimizer), Parameters({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)}, "f4")
    rate, optimizer.lr, first = optimizer.lr, 1e-30, np.float32([2e38, 1])
    optimizer.step(params, {"a": np.ones(3, np.float32), "b": first if "momentum" in what else first / first})
    optimizer.lr, grads = rate, {"a": np.ones(3, np.float32), "b": np.float32(grad)}
    before = [array.copy() for array in (params.flat, *optimizer.flats(params))]
    with pytest.raises(FloatingPointError, match=f"^{what}.* nothing was updated"):
        optimizer.step(params, grads)
    for form in optimizers, optimizers_cpu:
        assert not form.step(optimizer, params, np.concatenate([*grads.values()]))
    np.testing.assert_array_equal([params.flat, *optimizer.flats(params)], before)
    optimizer.lr = 1e-3
    optimizer.step(params, {name: np.ones_like(param) for name, param in params.items()})
    assert optimizer.steps == 2 and params["a"][0] != before[0][0]


def test_large_numbers_in_range_are_updated():
    params, optimizer = {"a": np.float32([1, 3e38])}, Adam(lr=1)
    optimizer.step(params, {"a": np.float32([1, 1e18])})  # its square times 3e38 is too much
    assert params["a"][0] == pytest.approx(0, abs=1e-6)
    assert optimizer.state["exp_avg_sq"]["a"][1] == pytest.approx(1e33, rel=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_step_is_one_update(backend):
    trainer = new_trainer(SGD(lr=0.5), method="blelloch", backend=backend)
    before = {name: param.astype(np.float64) for name, param in trainer.model.params.items()}
    x, y = DATA.batch(np.arange(5))
    loss, grad_logits = naive.loss("rnn", x, np.zeros((1, 5, 4)), before, y)
    grads = naive.gradients("rnn", x, np.zeros((1, 5, 4)), before, grad_logits)
    assert trainer.step(x, y) == pytest.approx(loss, rel=1e-6)
    for name, param in trainer.model.params.items():
        np.testing.assert_allclose(param, before[name] - 0.5 * grads[name], rtol=1e-5, atol=1e-7)


def test_methods_draw_the_same_curve():
    linear = fit(new_trainer(method="linear"), epochs=5).loss
    assert linear.shape == (30,)
    for settings in ({"method": "blelloch"}, {"method": "truncated", "levels": 1}, {"method": "auto"}):
        np.testing.assert_allclose(fit(new_trainer(**settings), epochs=5).loss, linear, rtol=1e-5)
    np.testing.assert_allclose(fit(new_trainer(method="blelloch", backend="cpu"), epochs=5).loss, linear, rtol=1e-5)


def test_training_learns():
    data = Bitstream(length=40, num_samples=300, num_classes=3, rng=0)
    trainer = Trainer(RNN(1, 8, 3), Adam(lr=0.003), backend="numpy")
    loss_before, accuracy_before = trainer.evaluate(data, batch_size=128)
    history = trainer.fit(data, epochs=6, batch_size=20, progress=False)
    loss, share = trainer.evaluate(data, batch_size=128)
    assert loss < 0.95 * loss_before
    assert share > accuracy_before
    assert history.loss.dtype == history.seconds.dtype == np.float64
    assert history.seconds.shape == history.loss.shape == (90,)
    assert (history.seconds > 0).all()
    x, y = data.batch(np.arange(300))
    predicted = trainer.predict(x)
    assert (predicted == y).mean() == pytest.approx(share)
    everything = cross_entropy(trainer.model.forward(x, backend="numpy").logits, y)[0]
    assert loss == pytest.approx(everything, rel=1e-5)


def test_an_epoch_visits_every_sample_once_in_a_new_order():
    seen = []
    fit(new_trainer(), dataset=trainers.Watched(lambda indices: seen.append(list(indices))))
    assert [len(batch) for batch in seen] == 2 * [4, 4, 4, 4, 4, 2]
    first, second = sum(seen[:6], []), sum(seen[6:], [])
    assert sorted(first) == sorted(second) == list(range(22))
    assert first != second
    assert first != sorted(first)


def test_arrays_train_like_the_data_they_hold():
    arrays = ArrayDataset(*DATA.batch(np.arange(22)))
    np.testing.assert_array_equal(fit(new_trainer(), dataset=arrays).loss, fit(new_trainer()).loss)


def test_fit_counts_epochs_in_all():
    trainer, straight = new_trainer(), new_trainer()
    fit(straight, epochs=3)
    fit(trainer, epochs=1)
    assert len(fit(trainer, epochs=1).loss) == 6
    fit(trainer, epochs=3, rng=1234)
    assert_same(state(trainer), state(straight))
    assert len(fit(new_trainer(), epochs=0).loss) == 0


def scaled_trainer():
    """A trainer of a model with a parameter of its own."""
    return Trainer(trainers.Scaled(1, 4, 3, rng=5), Adam(lr=0.01), "linear", "numpy")


@pytest.mark.parametrize("new", [*(lambda new=new: new_trainer(new()) for new in OPTIMIZERS), scaled_trainer])
@pytest.mark.parametrize("iteration", [0, 3, 6, 8])
def test_a_stopped_fit_resumes_to_the_same_curve(iteration, new, tmp_path):
    straight, stopped, resumed, path = new(), new(), new(), tmp_path / "folder" / "stopped"
    fit(straight)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, dataset=trainers.stopping(iteration))
    assert len(stopped.history.loss) == iteration
    assert (stopped.epoch, stopped.position) == divmod(iteration, 6)[:1] + (iteration % 6 * 4,)
    stopped.save(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["stopped"]
    for param in resumed.model.params.values():
        param += 1
    resumed.load(path)
    for trainer in (stopped, resumed):
        fit(trainer)
        assert_same(state(trainer), state(straight))
    np.testing.assert_array_equal(resumed.history.seconds[:iteration], stopped.history.seconds[:iteration])
    assert all((param != new().model.params[name]).any() for name, param in straight.model.params.items())


def test_an_interrupt_during_an_update_waits_for_its_end(foreground):
    straight = new_trainer()
    fit(straight, epochs=1)

    class Interrupted(Adam):
        def numbers(self):
            if self.steps == 2:  # in the third
                signal.raise_signal(signal.SIGINT)
            return super().numbers()

    trainer = new_trainer(Interrupted(lr=0.01))
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, epochs=1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (len(trainer.history.loss), trainer.position) == (3, 12)
    fit(trainer, epochs=1)
    assert_same(state(trainer), state(straight))


def test_fit_works_beside_the_main_thread():
    trainer, straight = new_trainer(), new_trainer()
    thread = threading.Thread(target=fit, args=(trainer,))
    thread.start()
    thread.join()
    fit(straight)
    assert_same(state(trainer), state(straight))


def test_an_epoch_ends_as_it_began():
    trainer = new_trainer()
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, dataset=trainers.stopping(2))
    for change in ({"batch_size": 2}, {"dataset": Bitstream(6, num_samples=30, num_classes=3)}):
        with pytest.raises(ValueError, match="an epoch was begun with {'num_samples': 22, 'batch_size': 4}"):
            fit(trainer, **change)


def test_where_steps_do_not_run_is_not_loaded():
    script = "import sys; from bppsa_nb import *; Trainer(RNN(1, 2, 2), Adam(), backend='numpy'); print(*sys.modules)"
    repo = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=repo, stdout=subprocess.PIPE, text=True)
    loaded = set(done.stdout.split())
    assert "bppsa_nb.training.step" in loaded
    assert not {"bppsa_nb.training.step_cuda", "bppsa_nb.distributed.training", "numba.cuda"} & loaded


def test_progress_is_shown_on_request(capsys):
    trainer = new_trainer()
    fit(trainer, epochs=1)
    assert not capsys.readouterr().err
    fit(trainer, epochs=2, progress=True)
    assert "12/12" in capsys.readouterr().err


def test_failed_steps_change_nothing():
    trainer, more, exploding = new_trainer(), RNN(1, 4, 3), Trainer(RNN(1, 3, 3), SGD(lr=1), backend="numpy")
    fit(trainer, epochs=1)
    more.params["scale"] = np.ones(1, np.float32)
    more = Trainer(more, SGD(lr=1), backend="numpy")
    for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
        exploding.model.params[name][:] = 0
    exploding.model.params["weight_hh_l0"][:] = 100 * np.eye(3)
    pictures = Network((1, 4, 4), [Conv2d("conv", 1, 1, 1), Flatten("flatten"), Linear("fc", 16, 2)])
    pictures.params["conv.weight"][:] = 0
    pictures.params["fc.weight"][:] = [[1], [-1]]
    (x, y), zeros, large = DATA.batch(np.arange(4)), np.zeros((50, 1, 1)), np.full((1, 1, 4, 4), 3e38)
    after, at_once = "weight_ih_l0 overflows float32 after 50 time steps", "conv.weight overflows float32; the param"
    for who, inputs, labels, said in [
        (trainer, x, [0, 1, 2, 7], "ValueError: labels must be from 0 to 2, got 7"),
        (trainer, x * np.nan, y, "ValueError: x must be finite"),
        (more, x, y, "ValueError: grads must have the entries .*'scale'.*, got"),
        (exploding, zeros, [0], f"FloatingPointError: the gradient of {after}"),
        (Trainer(pictures, SGD(lr=0.1)), large, [0], f"FloatingPointError: the gradient of {at_once}"),
    ]:
        before = state(who)
        with pytest.raises((ValueError, FloatingPointError)) as caught:
            who.step(inputs.astype(np.float32), labels)
        assert re.match(said, f"{caught.type.__name__}: {caught.value}")
        assert_same(state(who), before)
    with pytest.raises(TypeError, match="x must have dtype float32, as the RNN has, got float64"):
        trainer.step(x.astype(np.float64), y)


def test_networks_train_on_pictures():
    trainer, data = picture_trainer(), Pictures()
    loss_before, _ = trainer.evaluate(data, batch_size=8)
    ordinary = fit(trainer, epochs=12, dataset=data).loss
    loss, share = trainer.evaluate(data, batch_size=8)
    assert loss < 0.7 * loss_before and share > 0.8
    assert (trainer.predict(data.batch(range(22))[0]) == np.arange(22) % 2).mean() == pytest.approx(share)
    for settings in ({"method": "linear"}, {"method": "blelloch"}, {"method": "truncated", "levels": 1}):
        np.testing.assert_allclose(fit(picture_trainer(**settings), 12, data).loss, ordinary, rtol=1e-4)


@pytest.mark.parametrize("rates", [(0.6, None), (0.6, 0.3), (None, 0.6), (None, None)])
def test_retraining_resumes_to_the_same_curve_with_the_masks_of_the_file(rates, tmp_path):
    path = tmp_path / "stopped.npz"
    trainer, resumed = (pruned_trainer(rate) if rate else picture_trainer() for rate in rates)
    fit(trainer, epochs=1, dataset=Pictures())
    trainer.save(path)
    resumed.load(path)
    masks = trainer.model.masks or {}
    assert_same(resumed.model.masks or {}, masks)
    for each in (trainer, resumed):
        fit(each, epochs=3, dataset=Pictures())
    assert_same(state(resumed), state(trainer))
    assert all(not resumed.model.params[name][~mask].any() for name, mask in masks.items())


@pytest.mark.parametrize("name, value, said", beside(__file__)["kept"])
def test_what_an_optimizer_keeps_is_looked_at_before_anything_changes(name, value, said):
    optimizer, params = SGD(lr=0.1, momentum=0.9), {"w": np.ones(1)}
    with pytest.raises((TypeError, ValueError)) as caught:
        setattr(optimizer, name, eval(value))
        optimizer.step(params, {"w": np.ones(1)})
    assert re.search(said, f"{caught.type.__name__}: {caught.value}") and params["w"] == 1


def test_a_process_killed_while_it_saves_leaves_what_it_saved_before(tmp_path):
    path = tmp_path / "kept.npz"
    command = [sys.executable, "-c", beside(__file__)["KILLED"], path]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    resumed, straight = new_trainer(), new_trainer()
    resumed.load(path)
    assert len(resumed.history.loss) == 6
    for trainer in (resumed, straight):
        fit(trainer)
    assert_same(state(resumed), state(straight))
