import itertools

import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.cells import calibrate
from bppsa_nb.cells.chunked import Solved
from bppsa_nb.chains import counts as counting
from bppsa_nb.chains import plan
from bppsa_nb.chains import prices as prices_kept
from bppsa_nb.machine import backends
from bppsa_nb.operands.kinds import Dense
from bppsa_nb.scan import steps
from bppsa_nb.scan.levels import down_levels, up_levels

BACKENDS = ("numpy", "cpu", "cuda")
SIZES = list(itertools.product((0, 1, 7, 64, 1000, 30000), (1, 16, 256), (1, 20, 128), (0, 1, 3)))


@pytest.fixture(autouse=True)
def uncalibrated(cache, monkeypatch):
    """Predict by the package's own prices, whatever this machine's user has measured, and take any backend for here."""
    monkeypatch.setattr(backends, "cuda_available", lambda: True)


@pytest.fixture
def prices(monkeypatch):
    """Give prices to set: a start, a step and a multiply-add, by kind of product, of every backend."""
    chosen = {kind: [0, 0, 0] for kind in counting.KINDS}
    monkeypatch.setattr(prices_kept, "load", lambda backend: {"prices": chosen, "date": "1"})
    plan.refresh()
    return chosen


# What is counted.


@pytest.mark.parametrize("T", [0, 1, 2, 3, 10, 33, 64])
@pytest.mark.parametrize(("method", "length"), [("linear", None), ("blelloch", None), ("chunked", 1), ("chunked", 3)])
def test_counts_of_dense_chains_are_those_of_the_scan(T, method, length):
    done = {"merges": 0, "steps": 0}

    class Counted(Dense):
        def __matmul__(self, other):
            done["merges" if isinstance(other, Counted) else "steps"] += 1
            product = super().__matmul__(other)
            return Counted(product.matrix) if isinstance(product, Dense) else product

    operands = [np.ones((2, 3)), *(Counted(np.ones((2, 3, 3))) for _ in range(T))]
    for _ in steps(operands, method, length=length):
        pass
    counts, (matmuls, matvecs) = counting.count("dense", method, T, 2, 3, 0, "numpy", length), done.values()
    if method == "blelloch":
        assert counts == {"tree": (1 + up_levels(T) + down_levels(T), matmuls + matvecs, *of(matmuls, matvecs))}
    elif method == "linear":
        assert counts == {"stored": (1, matvecs, *of(0, matvecs))}
    else:  # a chunk's first product needs no multiplication, which is not counted apart
        inner = max(max(T - 1, 0) // length - 1, 0)
        assert counts["stored products"] == (1, matmuls + inner, *of(matmuls + inner, 0))
        assert counts["stored"] == (2, matvecs, *of(0, matvecs)) and matvecs == T
        assert counts["tree"][:2] == (0, inner)


def of(matmuls, matvecs):
    """Count numbers written, with what rows of products count for, and multiply-adds of two samples of size 3."""
    return 2 * (3 * matmuls * (3 + counting.ROW) + 3 * matvecs), 2 * (27 * matmuls + 9 * matvecs)


def test_structured_chains_count_their_terms_and_what_is_assembled():
    for K in (1, 3):
        assert counting.linear(100, 4, 5, K, "numpy") == {"weights": (1, 100, K * 100 * 4 * 5, K * 100 * 4 * 25)}
        made, stored = (counting.blelloch(100, 4, 5, weights, "numpy") for weights in (K, 0))
        assert made == stored | {"weights": (0, 0, 100 * 4 * 25, K * 100 * 4 * 25)}


def test_numpy_takes_the_chunks_of_a_structured_chain_side_by_side():
    counts = counting.chunked(1000, 4, 5, 1, "numpy", 10)
    assert [counts[kind].steps for kind in ("weights", "weights products", "tree")] == [10 + 10, 10, 98]
    assert counts["weights products"].multiply_adds == 98 * 10 * 4 * 125
    counts = counting.chunked(1000, 4, 5, 0, "numpy", 10)
    assert [counts[kind].steps for kind in ("stored", "stored products")] == [1000, 980]


def test_workers_share_out_what_is_independent(monkeypatch):
    monkeypatch.setattr(counting, "workers", {"numpy": 1, "cpu": 2, "cuda": 4}.get)

    def found(method, T, B, weights, backend, length=None):
        counts = counting.count("dense", method, T, B, 1, weights, backend, length)
        return {kind: (work.steps, work.multiply_adds) for kind, work in counts.items()}

    assert found("linear", 10, 7, 0, "cpu") == {"stored": (40, 40)}
    assert found("linear", 10, 7, 0, "cuda") == {"stored": (20, 20)}
    assert found("linear", 10, 7, 1, "cpu") == {"weights": (10, 70)}  # one group
    assert found("linear", 10, 32, 1, "cpu") == {"weights": (20, 160)}
    assert found("chunked", 100, 1, 1, "cpu", 10)["weights products"] == (40, 40)
    assert found("chunked", 100, 1, 0, "cuda", 10)["stored products"] == (20, 20)
    assert found("chunked", 100, 3, 1, "cuda", 10)["weights products"] == (10, 60)  # all at once
    assert found("blelloch", 3, 1, 0, "cuda") == {"tree": (4, 4)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weights", [0, 1, 3])
def test_one_chunk_is_the_linear_scan(backend, weights):
    kind = "weights" if weights else "stored"
    whole = counting.chunked(50, 3, 4, weights, backend, 50)
    assert whole[kind][1:] == counting.linear(50, 3, 4, weights, backend)[kind][1:]
    assert whole[f"{kind} products"][1:] == whole["tree"][1:] == (0, 0, 0)


# What is made of the counts.


def test_float64_costs_more_to_multiply_but_not_to_start(prices):
    prices["stored"][:2] = 1.0, 10.0
    single, double = (plan.explain(10, 2, 3, dtype, "numpy").seconds["linear"] for dtype in (np.float32, np.float64))
    assert single == double == 1 + 100
    prices["stored"][2] = 1.0
    plan.refresh()
    single, double = (plan.explain(10, 2, 3, dtype, "numpy").seconds["linear"] for dtype in (np.float32, np.float64))
    work = 10 * 2 * (9 + 3 * counting.WRITTEN)
    assert (single, double) == (101 + work, 101 + 2 * work)


# Seconds of a step of the loop, of products along a chunk, and of the tree.
CHEAPEST = {"linear": (1, 100, 100), "chunked": (1, 0.1, 1), "blelloch": (1, 100, 0.1)}


@pytest.mark.parametrize("method", CHEAPEST)
def test_auto_takes_the_method_with_the_least_predicted_time_and_says_why(prices, method):
    for kind, seconds in zip(("weights", "weights products", "tree"), CHEAPEST[method], strict=True):
        prices[kind][1] = seconds
    explanation = bp.explain(1000, 16, 20, backend="numpy", weights=1)
    assert explanation.method == method == min(explanation.seconds, key=explanation.seconds.get)
    said = {"linear": "times the work", "chunked": "chunks of at most", "blelloch": "19 levels instead of 1000"}
    assert said[method] in explanation.reason in " ".join(str(explanation).split())
    assert "measured on this machine" in explanation.source


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 108), (np.float64, 64)])
def test_levels_of_a_gpu_are_taken_only_for_matrices_that_fit(prices, monkeypatch, dtype, most):
    monkeypatch.setattr(plan.prices, "defaults", lambda backend: {"prices": prices})
    prices["stored"][1] = prices["stored products"][1] = 1.0
    plan.refresh()
    for H, method in ((most, "blelloch"), (most + 1, "chunked")):
        explanation = plan.explain(1000, 1, H, dtype, "cuda")
        assert explanation.method == method and ("blelloch" in explanation.seconds) == (H == most)


def test_the_work_that_is_said_is_of_multiply_adds():
    explanation = bp.explain(1000, 16, 20, backend="cpu")
    assert explanation.method == "linear" and "20.8 times the work" in explanation.reason


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_chunk_length_is_the_best_of_those_tried(backend):
    for (T, B, H, weights), dtype in itertools.product(SIZES, (np.float32, np.float64)):
        chosen = plan.chunk_length(T, B, H, dtype, backend, weights)
        assert type(chosen) is int and 1 <= chosen <= max(T, 1)
        explanation = plan.explain(T, B, H, dtype, backend, weights)
        prices, width = plan._priced(backend)[0], np.dtype(dtype).itemsize // 4
        seconds = {
            length: counting.price(counting.chunked(T, B, H, weights, backend, length), prices, width)
            for length in plan.candidate_lengths(T, counting.workers(backend))
        }
        assert seconds[chosen] == min(seconds.values()) == explanation.seconds["chunked"]
        assert explanation.length == chosen


def test_lengths_tried_are_powers_of_two_and_the_share_of_a_worker():
    assert plan.candidate_lengths(0, 2) == [1] == plan.candidate_lengths(1, 2)
    assert plan.candidate_lengths(100, 3) == [1, 2, 4, 8, 16, 32, 34, 64]
    assert plan.candidate_lengths(64, 1) == [1, 2, 4, 8, 16, 32, 64]


def test_a_chunk_length_follows_what_steps_and_products_cost(prices):
    for kind in ("weights", "weights products", "tree"):
        prices[kind][1] = 1.0  # NumPy: about 3 L + T / L
    assert plan.chunk_length(3000, 1, 4, backend="numpy", weights=1) == 32
    prices["tree"][1] = 100.0
    plan.refresh()
    assert plan.chunk_length(3000, 1, 4, backend="numpy", weights=1) > 128


def test_chunks_of_a_length_that_is_imposed():
    free = plan.chunk_length(100, 1, 4, backend="numpy", weights=1)
    with plan.chunks_of(7):
        assert plan.chunk_length(100, 1, 4, backend="numpy", weights=1) == 7
        assert plan.chunk_length(5, 1, 4, backend="numpy") == 5
        with plan.chunks_of(3):
            assert plan.chunk_length(100, 1, 4, backend="numpy") == 3
        assert plan.chunk_length(100, 1, 4, backend="numpy") == 7
    with pytest.raises(ZeroDivisionError), plan.chunks_of(2):
        raise ZeroDivisionError
    assert plan.chunk_length(100, 1, 4, backend="numpy", weights=1) == free


@pytest.mark.parametrize("length", [1, 3, 50])
def test_an_imposed_length_reaches_the_scan(length, monkeypatch):
    from bppsa_nb.chains import methods

    asked, Chunks = [], methods.Chunks
    monkeypatch.setattr(methods, "Chunks", lambda *args: asked.append(args[2]) or Chunks(*args))
    operand = calibrate.chain(9, 2, 3, 1, np.random.default_rng(0))
    with plan.chunks_of(length):
        bp.backprop(operand, np.ones((2, 3), np.float32), method="chunked", backend="numpy")
    assert asked == [min(length, 9)]


# What is said.


def test_an_explanation_lists_the_candidates_from_the_fastest_on(prices):
    prices["weights"][0], prices["weights products"][0], prices["tree"][0] = 0.002, 0, 0.0001
    shown = str(bp.explain(100, 2, 3, backend="numpy", weights=1)).splitlines()
    shown = shown[[" ms predicted" in line for line in shown].index(True) - 1 :]
    assert [" ".join(line.split()[:3]) for line in shown[1:4]] == ["blelloch 1.4 ms", "linear 2 ms", "chunked 4 ms"]
    assert shown[3].endswith("chunks of 1 steps") and "chunks" not in shown[2]
    assert shown[4] == "Predicted from prices measured on this machine, 1."


@pytest.mark.parametrize("columns", [30, 93, 250])
def test_no_word_is_broken_at_the_end_of_a_line(columns, monkeypatch):
    explanation = bp.explain(100000, 1, 8, backend="cpu", weights=3)
    monkeypatch.setenv("COLUMNS", "100000")
    words = repr(explanation).split()
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = str(explanation)
    assert shown == repr(explanation) and shown.split() == words
    assert {"`bppsa-nb", "calibrate`"} <= set(words) and explanation.reason in " ".join(words)
    assert max(map(len, shown.splitlines())) <= min(columns, 100)


def test_defaults_say_that_they_are():
    for backend in ("numpy", "cpu"):
        source = plan.explain(10, 2, 3, backend=backend).source
        assert "the package's defaults, measured on" in source and "`bppsa-nb calibrate`" in source
    assert "machine code" in plan.explain(10, 2, 3, backend="cuda").source


@pytest.mark.parametrize(("T", "method"), [(30, "linear"), (3000, "chunked"), (30000, "chunked")])
def test_what_a_gpu_is_expected_to_do_from_its_machine_code(T, method):
    explanation = plan.explain(T, 16, 20, backend="cuda", weights=1)
    assert explanation.method == method and 0.5e-7 * T < explanation.seconds["linear"] < 2e-7 * T + 1e-5


def test_nothing_is_predicted_twice(monkeypatch):
    first = plan.explain(123, 2, 3, backend="numpy")
    monkeypatch.setattr(plan, "price", None)
    assert plan.explain(123, 2, 3, backend="numpy") is first
    assert plan.chunk_length(123, 2, 3, backend="numpy") == first.length


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("weights", [0, 1, 3])
def test_what_saves_no_step_is_the_linear_scan(backend, weights):
    for T in (0, 1, 2, 3):
        assert plan.explain(T, 64, 300, backend=backend, weights=weights).method == "linear"


# The forward pass.


def test_two_cores_share_the_time_loop_of_one_group_if_it_has_many_units(monkeypatch):
    monkeypatch.setattr(counting, "workers", {"numpy": 1, "cpu": 2, "cuda": 4}.get)
    for H, B, share in ((256, 1, 2), (255, 1, 1), (256, 9, 1)):
        work = counting.loop(10, B, H, 3, "cpu")["forward"]
        assert work.multiply_adds == 10 * min(B, 8) * H * H * 3 / share
        assert work.written == 10 * min(B, 8) * H * 9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("B", [1, 16])
@pytest.mark.parametrize("T", [0, 1, 31, 32, 63, 64, 65, 1000, 30001])
def test_forward_chunks_are_a_power_of_two_in_number_and_no_shorter_than_a_repair(T, B, backend):
    length = plan.chunk_length(T, B, 20, backend=backend, weights=1, forward=True)
    halved = [-(-T // 2**i) for i in range(1, T.bit_length())]
    assert length in halved and length >= counting.CHECK_EVERY if T >= 63 else length == max(T, 1)


def test_what_a_forward_pass_in_chunks_took_has_its_price(prices):
    solved = Solved("chunked", 100, passes=3, steps=300, work=1.5)
    units = 1.5 * 1000 * 2 * 20
    for place, expected in ((0, 3 + 1), (1, 300), (2, units * (20 + counting.WRITTEN))):  # with the guess
        prices["forward chunks"][:] = [float(place == other) for other in range(3)]
        plan.refresh()
        for dtype, width in ((np.float32, 1), (np.float64, 2 if place == 2 else 1)):
            found = plan.solve_seconds(solved, 1000, 2, 20, dtype, "numpy", 1)
            assert found == pytest.approx(expected * width)


def test_forward_chunks_must_be_expected_to_gain_a_tenth(prices):
    prices["forward"][1], prices["forward chunks"][0] = 1.0, 200.0
    explanation = plan.explain(1000, 1, 20, backend="numpy", weights=1, forward=True)
    chunks = explanation.seconds["chunked"]
    assert explanation.method == "chunked" and explanation.seconds["linear"] == 1000 and chunks == 600
    assert explanation.reason.startswith("32 chunks of at most 32 steps go side by side, as samples do")
    prices["forward chunks"][0] = 310.0
    plan.refresh()
    explanation = plan.explain(1000, 1, 20, backend="numpy", weights=1, forward=True)
    assert explanation.method == "linear" and explanation.seconds["chunked"] == 930
    assert explanation.reason.startswith("a loop of 1000 steps is over before chunks of it have been started")
