import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import beside

from bppsa_nb.sparse import masks_of, prune

SCHEMES = ["class_blind", "class_uniform", "class_distribution"]


@st.composite
def cases(draw):
    """Parameters, many of them equal, and a rate."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    shapes = draw(st.lists(st.sampled_from([(1, 1), (2, 3), (5, 1), (2, 3, 2, 1), (7, 6)]), min_size=1, max_size=4))
    params = {}
    for i, shape in enumerate(shapes):
        values = rng.standard_normal(shape) * draw(st.sampled_from([0.1, 1.0, 5.0]))
        params[f"{i}.weight"] = np.round(values, draw(st.sampled_from([0, 1, 8]))).astype(np.float32)
        params[f"{i}.bias"] = rng.standard_normal(shape[0]).astype(np.float32)
    return params, draw(st.floats(0, 1, exclude_max=True))


def expected_masks(params, rate, scheme):
    """Sort all weights by how large they count, in loops."""
    kept = {name: np.ones(p.shape, bool) for name, p in params.items() if p.ndim > 1}
    ranks = []
    for name in kept:
        sizes = [abs(float(w)) for w in params[name].reshape(-1)]
        weights = [float(w) for w in params[name].reshape(-1)]
        if scheme == "class_distribution":
            mean = sum(weights) / len(weights)
            deviation = (sum((w - mean) ** 2 for w in weights) / len(weights)) ** 0.5
            sizes = [s / deviation if deviation else (np.inf if s else 0.0) for s in sizes]
        ranks.append([(s, len(ranks), i, name) for i, s in enumerate(sizes)])
    groups = ranks if scheme == "class_uniform" else [sum(ranks, [])]
    for group in groups:
        for _, _, i, name in sorted(group)[: round(rate * len(group))]:
            kept[name].reshape(-1)[i] = False
    return kept


@given(cases(), st.sampled_from(SCHEMES))
def test_the_smallest_weights_go(case, scheme):
    params, rate = case
    before = {name: param.copy() for name, param in params.items()}
    arrays = dict(params)
    masks = prune(params, rate, scheme)
    weights = [name for name in before if before[name].ndim > 1]
    assert list(masks) == weights
    count = {name: np.count_nonzero(~mask) for name, mask in masks.items()}
    if scheme == "class_uniform":
        assert count == {name: round(rate * before[name].size) for name in weights}
    else:
        assert sum(count.values()) == round(rate * sum(before[name].size for name in weights))
    for name, param in params.items():
        assert param is arrays[name]  # in place
        expected = before[name] if param.ndim == 1 else np.where(masks[name], before[name], 0)
        np.testing.assert_array_equal(param, expected)
    if scheme == "class_distribution":  # rounding may rank what deviations hold equal
        deviations = {name: before[name].astype(float).std() for name in weights}
        reach = {name: np.abs(before[name].astype(float)) / (deviations[name] or 1) for name in weights}
        firm = [name for name in weights if deviations[name]]
        largest = max((reach[n][~masks[n]].max(initial=0) for n in firm), default=0)
        smallest = min((reach[n][masks[n]].min(initial=np.inf) for n in firm), default=np.inf)
        assert largest <= smallest * (1 + 1e-12)
    else:
        for name, mask in expected_masks(before, rate, scheme).items():
            np.testing.assert_array_equal(masks[name], mask)
    again = {name: param.copy() for name, param in params.items()}
    prune(again, rate, scheme)  # what is zero already goes first
    for name in weights:
        if scheme != "class_distribution":
            np.testing.assert_array_equal(again[name], params[name])


def test_layers_without_spread():
    params = {"same": np.full((2, 2), 3.0), "zero": np.zeros((1, 2)), "other": np.array([[0.1, -5.0]])}
    masks = prune(params, 0.5, "class_distribution")
    assert masks["same"].all() and not masks["zero"].any()
    assert masks["other"].tolist() == [[False, False]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_deviations_at_the_ends_of_the_range(dtype):
    small = {"a": np.array([[3, 1], [-2, 4]], dtype), "b": np.array([[30, 10, -25, 35.5]], dtype)}
    expected = prune({name: weight.copy() for name, weight in small.items()}, 0.5, "class_distribution")
    assert expected["a"].tolist() == [[True, False], [False, True]] and expected["b"].sum() == 2
    info = np.finfo(dtype)
    for power in (info.maxexp - 6, info.minexp, info.minexp - info.nmant):
        for names in (["a"], ["b"], ["a", "b"]):
            params = {n: np.ldexp(w, power if n in names else 0) for n, w in small.items()}
            masks = prune(params, 0.5, "class_distribution")
            for name, mask in expected.items():
                np.testing.assert_array_equal(masks[name], mask)


def test_arrays_without_weights():
    params = {"empty": np.ones((0, 3)), "full": np.array([[1.0, 3.0]])}
    for scheme in SCHEMES:
        masks = prune({name: weight.copy() for name, weight in params.items()}, 0.5, scheme)
        assert masks["empty"].shape == (0, 3) and masks["full"].tolist() == [[False, True]]


def test_masks_of_pruned_weights():
    params = {"w": np.random.default_rng(0).standard_normal((9, 7)), "b": np.zeros(9)}
    masks = prune(params, 0.6)
    found = masks_of(params)
    assert found.keys() == {"w"}
    np.testing.assert_array_equal(found["w"], masks["w"])


@pytest.mark.parametrize("last, how, message", beside(__file__)["refused"])
def test_refused_pruning_changes_nothing(last, how, message):
    params = {"a": np.array([[0.5, 1.0]]), "b": np.ones(2), "z": eval(last)}
    before = {name: np.array(param) for name, param in params.items()}
    with pytest.raises(ValueError, match=message):
        prune(params, **{"rate": 0.5} | how)
    for name, param in params.items():
        np.testing.assert_array_equal(param, before[name])
