"""How a trainer goes forward in time."""

import numpy as np
import pytest
from trainers import stopping

import bppsa_nb as bp
from bppsa_nb.cells import stack
from bppsa_nb.cells import unroll as forward
from bppsa_nb.chains import plan

T = 600


@pytest.fixture(autouse=True)
def uncalibrated(cache):
    """Predict by the package's own prices, by which NumPy takes chunks of a sequence of T steps."""
    assert plan.explain(T, 1, 20, backend="numpy", weights=1, forward=True).method == "chunked"


def trainer(chaos, **how):
    """Make a trainer of a network that forgets, or of one that does not; it hardly changes."""
    model = bp.RNN(1, 20, 10, rng=0)
    if chaos:
        model.params["weight_hh_l0"] *= 3
    return bp.Trainer(model, bp.SGD(lr=1e-30), backend="numpy", method="linear", **how)


@pytest.fixture
def methods(monkeypatch):
    """Give a list of how the states of every pass are found."""
    seen, really = [], stack.forward

    def spy(layers, *args):
        really(layers, *args)
        seen.append(layers.solved[0].finished if any(layers.solved) else "linear")

    monkeypatch.setattr(stack, "forward", spy)
    return seen


def test_a_network_that_forgets_goes_in_chunks(methods):
    chosen = trainer(False)
    chosen.fit(bp.Bitstream(T, 4), 1, 1, progress=False)
    assert methods == ["converged"] * 4
    assert chosen.forward.rest == 0 and 0 < chosen.forward.spent < 1


def test_a_network_in_chaos_goes_back_to_the_loop_and_tries_again(methods):
    chosen, data = trainer(True), bp.Bitstream(T, forward.AGAIN + 2)
    chosen.fit(data, 1, 1, progress=False)
    assert methods == ["serially"] + ["linear"] * forward.AGAIN + ["serially"]
    assert chosen.forward.rest == forward.AGAIN
    loop = trainer(True, forward="linear")
    loop.fit(data, 1, 1, progress=False)
    assert methods[-len(data) :] == ["linear"] * len(data)
    np.testing.assert_array_equal(chosen.history.loss[1:-1], loop.history.loss[1:-1])


def test_some_bad_iterations_among_good_ones_do_not_count():
    """What counts is the average, the last iteration by a quarter."""
    chosen = forward.Forward("auto")
    for share, spent in ((0.5, 0.5), (2, 0.875), (0.5, 0.78125), (1.5, 0.9609375), (1.5, None)):
        chosen.remember(share)
        assert (chosen.spent, chosen.rest) == (spent, 0 if spent else forward.AGAIN)
    assert chosen.how() == {"method": "linear"}
    chosen.remember()
    assert chosen.rest == forward.AGAIN - 1


def test_the_share_of_the_loop_is_predicted_from_what_chunks_took():
    model, x = bp.RNN(1, 20, 10, num_layers=2), np.ones((T, 1, 1), np.float32)
    short, long = (
        forward.share_of(model, x.shape, model.forward(x, None, "numpy", method="chunked", length=n).solved, "numpy")
        for n in (40, T - 10)
    )
    assert 0 < short < 1 < long
    one = model.forward(x, None, "numpy", method="chunked", length=40).solved[:1]
    assert forward.share_of(model, x.shape, one, "numpy") == forward.share_of(model, x.shape, 2 * one, "numpy")
    assert forward.share_of(model, x.shape, model.forward(x, method="linear").solved, "numpy") is None


def test_what_it_remembers_is_saved(methods, tmp_path):
    data, path = bp.Bitstream(T, 6), tmp_path / "state.npz"
    for chaos in (False, True):
        whole, half, rest = (trainer(chaos) for _ in range(3))
        whole.fit(data, 1, 1, progress=False)
        with pytest.raises(KeyboardInterrupt):
            half.fit(stopping(3, data), 1, 1, progress=False)
        half.save(path)
        rest.load(path)
        assert rest.forward == half.forward and (rest.forward.spent is None) == chaos
        rest.fit(data, 1, 1, progress=False)
        np.testing.assert_array_equal(rest.history.loss, whole.history.loss)
        assert rest.forward == whole.forward


def test_evaluating_takes_no_notes(methods):
    chosen = trainer(True)
    chosen.evaluate(bp.Bitstream(T, 3), 1)
    assert methods == ["serially"] * 3 and chosen.forward == forward.Forward("auto")


@pytest.mark.parametrize("method", ["linear", "chunked", "newton"])
def test_another_method_is_always_taken(method, methods):
    chosen = trainer(True, forward=method)
    chosen.fit(bp.Bitstream(T, 3), 1, 1, progress=False)
    assert methods == [{"linear": "linear", "chunked": "serially", "newton": "repaired"}[method]] * 3
    assert chosen.forward == forward.Forward(method)
