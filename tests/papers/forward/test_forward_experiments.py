"""The experiments on going forward in parallel: what they count, at small sizes."""

import numpy as np
import pytest
from measuring import measure

from bppsa_nb.papers.forward import (
    along_training,
    corrections_over_length,
    forward_speed,
    lyapunov_turn,
    networks,
    newton_and_chunks,
    slider,
)


def weighted(weight):
    """Make a network with the weights between its hidden units given, and no others."""
    model = networks.fresh(0)
    for param in model.params.values():
        param[...] = 0
    model.params["weight_hh_l0"][...] = weight
    return model


def test_the_exponent_is_the_logarithm_of_the_largest_factor():
    weight, x = np.diag(np.linspace(0.1, 0.7, networks.H)), np.zeros((2000, 1, 1))
    assert networks.exponent(weighted(weight), x, np.random.default_rng(0)) == pytest.approx(np.log(0.7), abs=2e-3)


def test_newton_gains_a_step_and_repairs_gain_a_chunk_even_in_chaos():
    rng = np.random.default_rng(0)
    model, x = networks.scaled(networks.fresh(rng), 4), networks.inputs(40, 2, rng)
    exact = networks.states_of(model, x)
    for k, states in enumerate(networks.newton(model, x, 6)):
        np.testing.assert_allclose(states[: k + 1], exact[: k + 1], rtol=0, atol=1e-9)
        assert abs(states - exact).max() > 0.1
    for k, states in enumerate(networks.chunks(model, x, 5, 7)):
        np.testing.assert_array_equal(states[: 5 * (k + 1)], exact[: 5 * (k + 1)])
    assert k == 7 and (states == exact).all()


def test_newton_solves_what_is_linear_at_once_and_its_diagonal_does_not():
    weight = 1e-6 * np.random.default_rng(0).standard_normal((networks.H, networks.H))
    weight[np.diag_indices(networks.H)] = 0.9
    model, x = weighted(weight), np.ones((50, 1, 1))
    model.params["weight_ih_l0"][...] = 1e-6  # where tanh is the identity
    exact = networks.states_of(model, x)
    off = {}
    for diagonal in (False, True):
        *_, found = networks.newton(model, x, 1, diagonal)
        off[diagonal] = abs(found - exact).max()
    assert off[False] < 1e-14 < 1e-12 < off[True]


def test_states_of_each_network_are_found_as_their_kind_allows():
    table = measure(newton_and_chunks, SIZES={"quick": {"iterations": 2}})
    found = {
        (kind, method): newton_and_chunks.iterations(table, kind, method)
        for kind in newton_and_chunks.KINDS
        for method in newton_and_chunks.METHODS
    }
    assert found["fresh", "newton"] <= 4 and found["fresh", "chunks"] <= 3
    assert found["latch", "newton"] is None and found["chaos", "newton"] is None
    count = newton_and_chunks.T // newton_and_chunks.LENGTH  # of which two begin right: the guess is where one ends
    assert 1 < found["latch", "chunks"] < found["chaos", "chunks"] == count - 2
    exponents = table.groupby("network")["exponent"].first()
    assert exponents["latch"] < exponents["fresh"] < 0 < exponents["chaos"]


def test_newton_turns_with_the_exponent():
    table = measure(lyapunov_turn, SIZES={"quick": {"radii": (0.5, 5), "seeds": 2}})
    calm, wild = (table[table["radius"] == radius] for radius in (0.5, 5))
    assert (calm["exponent"] < -0.4).all() and (wild["exponent"] > 0.1).all()
    assert calm["newton"].max() <= 4 and wild["newton"].min() > lyapunov_turn.T / 2
    assert calm["repairs"].max() <= 2 and (wild["repairs"] == lyapunov_turn.CHUNKS - 2).all()
    basins = table[table["network"] == lyapunov_turn.BASINS]
    assert (basins["exponent"] < -0.5).all() and basins["newton"].min() > 20


def test_training_is_observed_and_left_alone():
    table = measure(along_training, SIZES={"quick": {"T": 64, "iterations": 4, "every": 2}})
    assert table["iteration"].tolist() == [0, 2, 4] * 3 and table["met"].all()
    assert table["corrections"].between(1, 4).all() and table["steps"].between(4 / 64, 2).all()
    assert table["error"].max() < 2e-5 and table["rounding"].max() < 1e-5


def test_every_network_is_tried_at_every_length():
    table = measure(corrections_over_length, SIZES={"quick": (30, 90)}, DRAWS={"quick": 1})
    assert set(table["T"]) == {30, 90} and set(table["network"]) == set(corrections_over_length.KINDS)
    full = table[table["network"] != "quasi"]
    assert full["corrections"].between(1, 5).all()
    assert table[table["network"] == "quasi"]["corrections"].min() > full["corrections"].max()


def test_methods_take_turns_on_every_network():
    table = measure(forward_speed, SIZES={"quick": (200,)}, ITERATIONS={"quick": 1}, SECONDS={"quick": 0.01})
    assert len(table) == 3 * 2 * 4 and (table["seconds"] > 0).all() and table["error"].max() < 2e-5
    assert (table[table["method"] == "linear"]["ratio"] == 1).all()
    assert (table["ratio_low"] <= table["ratio_high"]).all()


def test_a_radius_is_dragged_and_drawn():
    box = slider.slider(0.5)
    control, image = box.children
    before = bytes(image.value)
    assert before.startswith(b"\x89PNG")
    control.value = 3.0
    assert bytes(image.value) != before
    for radius in (0.1, 5, True, None, "2"):
        with pytest.raises(ValueError, match=r"^radius must be from 0.2 to 4.0, got "):
            slider.slider(radius)
