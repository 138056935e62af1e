import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa_nb.graphs import library, saving, variants
from bppsa_nb.papers.gru.save_or_recompute import backpropagate

SIZES = {"B": 3, "H": 4}
BH, BHH = 3 * 4, 3 * 4 * 4


def test_variant_3_recomputes_a_product_and_variant_4_three_elementwise_operations():
    graph = library.gru_moved_reset()
    third = saving.choose(graph, ["r", "z", "c"], SIZES)
    assert third.recomputed == ("Uh", "keep") and third.inputs_read == ()
    assert (third.kept, third.kept_inputs) == (3 * BH, 0)
    assert (third.products, third.multiply_adds, third.launches, third.elementwise) == (1, BHH, 1, BH)
    fourth = saving.choose(graph, ["r", "z", "Uh"], SIZES)
    assert fourth.recomputed == ("rUh", "a_c", "c", "keep")  # the multiply, the sum, the nonlinearity; 1 - z in both
    assert (fourth.kept, fourth.products, fourth.launches, fourth.elementwise) == (3 * BH, 0, 4, 4 * BH)
    assert fourth.inputs_read == ("x_c",) and fourth.kept_inputs == BH
    assert (third.work, fourth.work) == (BHH + BH, 4 * BH)


def test_the_original_gru_needs_one_activation_more():
    graph = library.gru()
    assert saving.choose(graph, ["r", "z", "c"], SIZES).recomputed == ("rh", "keep")
    assert saving.choose(graph, [], SIZES).multiply_adds == 3 * BHH


def test_the_vanilla_rnn_has_nothing_to_choose():
    (only,) = saving.choices(library.vanilla_rnn(), SIZES)
    assert only.saved == only.recomputed == () and only.kept == only.work == 0


def test_products_count_what_they_sum_over():
    choice = saving.choose(library.fully_connected(), [], {"B": 2, "I": 5, "H": 7})
    assert choice.recomputed == ("matmul_1", "repeat_1", "a", "y")
    assert choice.multiply_adds == 2 * 5 * 7 and choice.inputs_read == ("x",) and choice.kept_inputs == 10


def test_choices_go_from_nothing_to_everything():
    found = saving.choices(library.gru_moved_reset(), SIZES)
    assert len(found) == 2**5 == len({choice.saved for choice in found})
    assert found[0].saved == () and found[0].products == 3 and found[0].inputs_read == ("x_r", "x_z", "x_c")
    assert set(found[-1].saved) == {"r", "z", "c", "Uh", "keep"} and found[-1].recomputed == ()
    for less, more in itertools.product(found, repeat=2):
        if set(less.saved) < set(more.saved):
            assert set(less.recomputed) >= set(more.recomputed) and less.kept < more.kept


def best(choices, inputs):
    points = [(each.kept + inputs * each.kept_inputs, each.work) for each in choices]
    good = saving.front(points)
    return {point for point, is_good in zip(points, good, strict=True) if is_good}


@pytest.mark.parametrize("inputs", [0, 1])
def test_no_other_activations_of_the_step_are_better_to_keep(inputs):
    graph, sizes = library.gru_moved_reset(), {"B": 1, "H": 64}
    chosen = best(saving.choices(graph, sizes), inputs)
    inner = [node.name for node in graph.nodes if node.inputs and node.name != "h_next"]
    for count in range(5):  # five are all that the backward pass reads
        others = [saving.choose(graph, subset, sizes) for subset in itertools.combinations(inner, count)]
        for kept, work in best(others, inputs):
            assert any(kept >= k and work >= w for k, w in chosen)


def test_variant_4_is_a_best_trade_off_only_while_its_input_product_is_free():
    graph, sizes = library.gru_moved_reset(), {"B": 1, "H": 64}
    choices = saving.choices(graph, sizes)
    third, fourth = (saving.choose(graph, saved, sizes) for saved in (("r", "z", "c"), ("r", "z", "Uh")))
    assert (fourth.kept, fourth.work) in best(choices, inputs=0) and (third.kept, third.work) not in best(choices, 0)
    assert (fourth.kept + fourth.kept_inputs, fourth.work) not in best(choices, inputs=1)
    assert (third.kept, third.work) in best(choices, inputs=1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_front_is_what_nothing_beats(points):
    found = saving.front(points)
    assert len(found) == len(points) and (any(found) or not points)
    for (a, b), good in zip(points, found, strict=True):
        beaten = False
        for x, y in points:
            if (x < a and y <= b) or (x <= a and y < b):
                beaten = True
        assert good is not beaten


def chain(steps):
    """A chain through the hand-written GRU, with its gradients, and what the graph needs for the same."""
    rng = np.random.default_rng(0)
    params = variants.parameters(5, 4, rng, np.float64)
    x, h0, grad = rng.normal(size=(steps, 3, 5)), rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    errors = np.zeros((steps, 3, 4))
    errors[steps - 1 :] = grad
    expected = variants.backward(params, x, variants.forward("moved", params, x, h0), errors)
    bias = params["bias_ih"] + params["bias_hh"] * (np.arange(12) < 8)
    inputs = [
        dict(zip(["x_r", "x_z", "x_c"], np.split(each, 3, axis=1), strict=True))
        for each in x @ params["weight_ih"].T + bias
    ]
    weights = dict(zip(["U_r", "U_z", "U"], np.split(params["weight_hh"], 3), strict=True))
    return inputs, weights | {"b_u": params["bias_hh"][8:]}, h0, grad, expected


@pytest.mark.parametrize("every", [0, 1, 2, 3, 7, 20, None])
def test_whatever_is_kept_the_chain_s_gradients_are_the_hand_written_ones(every):
    inputs, parameters, h0, grad, expected = chain(7)
    run = backpropagate(library.gru_moved_reset(bias=True), inputs, parameters, h0, grad, every)
    np.testing.assert_allclose(run.grads["h"], expected["h0"], rtol=1e-10, atol=1e-14)
    found = np.concatenate([run.grads["U_r"], run.grads["U_z"], run.grads["U"]])
    np.testing.assert_allclose(found, expected["weight_hh"], rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(run.grads["b_u"], expected["bias_hh"][8:], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 2, 4, 7, 9])
def test_steps_and_arrays_of_a_chain(steps):
    inputs, parameters, h0, grad, _ = chain(steps)
    step, read = library.gru_moved_reset(bias=True), 6  # h, r, z, c, U h, 1 - z

    def run(every):
        found = backpropagate(step, inputs, parameters, h0, grad, every)
        return found.steps, found.held

    assert run(0) == (steps, read * steps)
    assert run(None) == (steps + steps * (steps + 1) // 2, read + (steps > 1))  # h0 and a step; one step holds h0
    for every in (1, 2, 3):
        segments = -(-steps // every)
        last = steps - (segments - 1) * every
        held = segments - 1 + read * last
        if segments > 1:  # the last segment may be short: the one before it is whole, and one state less is held
            held = max(held, segments - 2 + read * every)
        assert run(every) == (2 * steps, held)


def test_an_empty_chain_returns_what_came():
    _, parameters, h0, grad, _ = chain(1)
    for every in (0, 2, None):
        run = backpropagate(library.gru_moved_reset(bias=True), [], parameters, h0, grad, every)
        assert run.steps == 0 and not any(run.grads[name].any() for name in parameters)
        np.testing.assert_array_equal(run.grads["h"], grad)
