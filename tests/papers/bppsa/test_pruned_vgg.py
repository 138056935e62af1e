"""Figures 3 and 10, on networks small enough to count by hand."""

import numpy as np
import pytest
from measuring import measure
from scipy import sparse as scipy_sparse

from bppsa_nb.papers.bppsa import figure_10
from bppsa_nb.papers.experiment import MISSED, judge
from bppsa_nb.sparse import Conv2d, CSRPattern, Flatten, Linear, MaxPool2d, Network, ReLU, prune


def random_chain(rng, sizes):
    return [
        CSRPattern.of(scipy_sparse.csr_array(rng.random((rows, columns)) < 0.4))
        for rows, columns in zip(sizes, sizes[1:], strict=False)
    ]


def test_costs_are_those_of_the_products_that_run():
    rng = np.random.default_rng(1)
    patterns = random_chain(rng, [7, 5, 6, 4, 8, 3, 5])
    rows = figure_10.scan_costs(patterns, 2)
    dense = {(t + 1, t + 1): each.matrix(np.ones(each.nnz)).toarray() for t, each in enumerate(reversed(patterns))}
    dense[0, 0] = np.ones((5, 1))

    def product_of(first, last):  # positions of Equation 5's array
        result = dense[first, first]
        for position in range(first + 1, last + 1):
            result = dense[position, position] @ result
        return result > 0 if first else np.ones_like(result, bool)

    for row in rows:
        left, right = ([int(p) for p in row[side].split(":")] for side in ("left", "right"))
        a, b = product_of(left[0], left[-1]), product_of(right[0], right[-1])
        counted = int((b.sum(axis=0) * a.sum(axis=1)).sum())  # all pairs that meet
        assert row["multiply_adds"] == counted, row
        assert row["dense"] == b.shape[0] * b.shape[1] * a.shape[1]
        assert row["kind"] == ("mv" if left[0] == 0 else "mm")
    assert [row["phase"] for row in rows if row["kind"] == "mm"] == ["up"] * sum(row["kind"] == "mm" for row in rows)
    assert rows[-1]["level"] == len({row["level"] for row in rows})


def test_the_critical_path_is_the_costliest_chain():
    # Two blocks of two: with levels=1, [g J1] [J2 J3] [J4]; the product of J3 and J2 is dear, J1's is cheap.
    full = CSRPattern.of(scipy_sparse.csr_array(np.ones((4, 4))))
    thin = CSRPattern.of(scipy_sparse.csr_array(np.eye(4)))
    rows = figure_10.scan_costs([thin, full, full, thin], 1)
    critical = {(row["left"], row["right"]) for row in rows if row["critical"]}
    assert ("2", "3") in critical and ("0", "1") not in critical


def test_maxima_leave_out_the_zeros_of_a_sample_and_the_pattern_alone():
    jacobian = MaxPool2d("pool", 2).jacobian((1, 4, 4))
    from bppsa_nb.operands.pattern import BatchedCSR

    link = BatchedCSR.of(jacobian.pattern, jacobian.fill(np.arange(16.0).reshape(1, 1, 4, 4)))
    assert figure_10.maxima(link).nnz == 4 and figure_10.maxima(link).shape == (16, 4)
    assert link.pattern.nnz == 16 and figure_10.maxima(link).nnz == 4


@pytest.fixture
def tiny(monkeypatch):
    """Measure a network of three convolutions in the place of VGG-11."""

    def build(rng):
        channels, operators = 3, []
        for number, wanted in enumerate((4, 6, 8), 1):
            operators.append(Conv2d(f"conv{number}", channels, wanted, 3, padding=1))
            operators += [ReLU(f"relu{number}"), MaxPool2d(f"pool{number}", 2)]
            channels = wanted
        operators += [Flatten("flatten"), Linear("fc", 128, 10)]
        network = Network((3, 32, 32), operators, scan_until="pool3", init="he", rng=rng)
        network.masks = prune(network.params, 0.5, "class_uniform")
        return network

    names = [f"{word}{number}" for number in (1, 2, 3) for word in ("conv", "relu", "pool")]
    monkeypatch.setattr(figure_10, "pruned", build)
    monkeypatch.setattr(figure_10, "operators", lambda: names)
    return measure(figure_10, ROUNDS={"quick": (1, 1)})


def test_steps_are_counted_for_each_way_to_store(tiny):
    assert tiny.attrs["data"] == "stand-in"
    parts = {storage: rows for storage, rows in tiny.groupby("storage")}
    assert len(parts["BP"]) == 9
    stored, planned = parts["maxima"], parts["planned"]
    assert list(stored["left"]) == list(planned["left"])
    assert np.all(stored["multiply_adds"].to_numpy() <= planned["multiply_adds"].to_numpy())
    assert stored["multiply_adds"].sum() < planned["multiply_adds"].sum()
    # conv2 of 4 to 6 channels on 16x16, three by three; ReLU and pooling once per input.
    baseline = parts["BP"].set_index("left")["multiply_adds"]
    assert baseline["conv2"] == 4 * 6 * 9 * 256 and baseline["relu1"] == baseline["pool1"] == 4 * 32 * 32


def test_planned_products_of_two_matrices_and_backward_passes_are_timed(tiny):
    products = (tiny["storage"] == "planned") & (tiny["kind"] == "mm")
    for column in figure_10.WAYS:
        assert (tiny[column] > 0).equals(products)
    assert list(tiny["method"].dropna()) == list(figure_10.METHODS)
    assert (tiny.dropna(subset="method")[["seconds", "bytes"]] > 0).all(axis=None)
    assert tiny.dropna(subset="method")["kept"].tolist()[0] == 0 < tiny["kept"].iloc[-1]


def test_claims_are_about_the_costliest_steps_and_the_slowest_level(tiny):
    def missed(**columns):
        found = figure_10.facts(tiny.assign(**known | columns))
        return [i for i, claim in enumerate(figure_10.FIGURE.claims) if judge(claim, figure_10, found)[2] == MISSED]

    costs = tiny["storage"].map({"BP": 5, "maxima": 10, "planned": 20})
    known = {"scipy": tiny["level"] + 0.5, "scipy_nonzero": 1, "planned": 1, "multiply_adds": costs, "dense": 20_001}
    assert missed() == [] and missed(planned=tiny["level"] ** 2) == [0] and missed(dense=20_000) == [2]
    assert missed(multiply_adds=costs.where(tiny["level"] != 2, 11)) == [1]
