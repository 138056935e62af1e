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

BACKENDS = ("numpy", "cpu", "cuda")
SIZES = list(itertools.product((0, 1, 7, 64, 1000, 30000), (1, 16, 256), (1, 20, 128), (0, 1, 3)))


@pytest.fixture(autouse=True)
def uncalibrated(cache, monkeypatch):
    """Predict by the package's own prices, whatever this machine's user has measured, and take any backend for here."""
    monkeypatch.setattr(backends, "cuda_available", lambda: True)


@pytest.fixture
def prices(monkeypatch):
    """Give prices to set: by method and count, of every backend and kind."""
    chosen = {method: {} for method in counting.COUNTS}
    kept = {"prices": dict.fromkeys(counting.KINDS, chosen), "date": "1"}
    monkeypatch.setattr(prices_kept, "load", lambda backend: kept)
    plan.refresh()
    return chosen


# What is counted.


@pytest.mark.parametrize("T", [0, 1, 2, 3, 10, 33, 64])
@pytest.mark.parametrize(("method", "length"), [("linear", None), ("blelloch", None), ("chunked", 1), ("chunked", 3)])
def test_counts_of_dense_chains_are_those_of_the_scan(T, method, length, monkeypatch):
    done = {"merges": 0, "steps": 0}

    class Counted(Dense):
        def __matmul__(self, other):
            done["merges" if isinstance(other, Counted) else "steps"] += 1
            product = super().__matmul__(other)
            return Counted(product.matrix) if isinstance(product, Dense) else product

    operands = [np.ones((2, 3)), *(Counted(np.ones((2, 3, 3))) for _ in range(T))]
    for _ in steps(operands, method, length=length):
        pass
    counts = counting.COUNTS[method](T, 2, 3, 0, "numpy", *([length] if length else []))
    matmuls, matvecs = done["merges"], done["steps"]
    if method != "chunked":
        assert (counts.get("merges", 0), counts["steps"]) == (matmuls, matvecs)
        assert (counts.get("matmul", 0), counts["matvec"]) == (matmuls * 2 * 27, matvecs * 2 * 9)
        assert counts["entries"] == (T * 2 * 3 if method == "linear" else (matmuls + T) * 2 * 9)
    else:  # a chunk's first product needs no multiplication, which is not counted apart
        inner = counts["crossings"]
        assert counts["merges"] == matmuls + inner
        assert counts["steps"] == matvecs == T
        assert (counts["matmul"], counts["matvec"]) == ((matmuls + inner) * 2 * 27, matvecs * 2 * 9)
        assert counts["rows"] == counts["merges"] * 2 * 3


def test_structured_chains_count_their_terms_and_what_is_assembled():
    for K in (1, 3):
        swept = counting.linear(100, 4, 5, K, "numpy")
        assert swept["terms"] == 100 * K and swept["matvec"] == K * 100 * 4 * 25
        made, stored = (counting.blelloch(100, 4, 5, weights, "numpy")["entries"] for weights in (K, 0))
        extra = made - stored
        assert extra == K * 100 * 4 * 25


def test_numpy_takes_the_chunks_of_a_structured_chain_side_by_side():
    counts = counting.chunked(1000, 4, 5, 1, "numpy", 10)
    assert (counts["steps"], counts["merges"], counts["crossings"]) == (10 + 10, 10, 98)
    assert counts["matmul"] == 98 * 10 * 4 * 125
    counts = counting.chunked(1000, 4, 5, 0, "numpy", 10)
    assert (counts["steps"], counts["merges"]) == (1000, 980)


def test_workers_share_out_what_is_independent(monkeypatch):
    monkeypatch.setattr(counting, "workers", {"numpy": 1, "cpu": 2, "cuda": 4}.get)
    assert counting.linear(10, 7, 1, 0, "cpu")["matvec"] == 10 * 4
    assert counting.linear(10, 7, 1, 0, "cuda")["matvec"] == 10 * 2
    assert counting.linear(10, 7, 1, 1, "cpu")["matvec"] == 10 * 7  # one group
    assert counting.linear(10, 32, 1, 1, "cpu")["matvec"] == 10 * 16
    assert counting.chunked(100, 1, 1, 1, "cpu", 10)["matmul"] == 8 // 2 * 10
    assert counting.chunked(100, 3, 1, 1, "cuda", 10)["matmul"] == 3 * 8 / 4 * 10
    assert counting.chunked(100, 1, 1, 0, "cuda", 10)["matmul"] == 8 // 4 * 10
    assert counting.chunked(100, 1, 1, 1, "cpu", 10)["merges"] == 8 // 2 * 10
    assert counting.chunked(100, 3, 1, 0, "cuda", 10)["merges"] == 3 * 8 // 4 * 10
    assert counting.chunked(100, 3, 1, 1, "cuda", 10)["merges"] == 10  # all at once
    assert counting.blelloch(3, 1, 1, 0, "cuda")["matmul"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weights", [0, 1, 3])
def test_one_chunk_is_the_linear_scan(backend, weights):
    whole = counting.chunked(50, 3, 4, weights, backend, 50)
    swept = counting.linear(50, 3, 4, weights, backend)
    same = ("steps", "terms") + (("matvec", "entries", "products") if not (weights and backend == "cpu") else ())
    assert all(whole[name] == swept[name] for name in same)
    assert whole["merges"] == whole["matmul"] == whole["crossings"] == 0


def test_one_product_of_all_is_what_a_chunk_adds(monkeypatch):
    monkeypatch.setattr(counting, "workers", {"numpy": 1, "cpu": 2, "cuda": 4}.get)
    for weights, backend in itertools.product((0, 1, 3), BACKENDS):
        product, terms = counting.product(40, 3, 5, weights, backend), max(weights, 1)
        # Of three chunks, the middle one is multiplied; of two, none is.
        three, two = (counting.chunked(n, 3, 5, weights, backend, 40) for n in (120, 80))
        for name in ("merges", "rows", "matmul"):
            assert product[name] == three[name] - two.get(name, 0), (name, weights, backend)
        shared = 3 / 4 if weights and backend == "cuda" else -(-3 // counting.workers(backend))
        assert product["matmul"] == shared * 40 * 125 * terms
        assert product["terms"] == 40 * weights and product["launches"] == 1


def test_a_run_of_a_chain_over_ranks_is_predicted_by_its_sweep_and_its_product(prices):
    prices["linear"] |= {"matvec": 1.0}
    prices["chunked"] |= {"matmul": 1.0}
    plan.refresh()
    sizes = 10, 2, 3
    assert plan.run_seconds(*sizes, np.float32, "numpy", 0) == (10 * 2 * 9, 10 * 2 * 27)
    assert plan.run_seconds(*sizes, np.float64, "numpy", 3) == (2 * 3 * 10 * 2 * 9, 2 * 3 * 10 * 2 * 27)
    assert plan.run_seconds(0, 2, 3, np.float64, "numpy", 1) == (0, 0)


# What is made of the counts.


def test_float64_costs_more_to_multiply_but_not_to_start(prices):
    prices["linear"] |= {"steps": 1.0}
    single, double = (plan.explain(10, 2, 3, dtype, "numpy").seconds["linear"] for dtype in (np.float32, np.float64))
    assert single == double == 10
    prices["linear"] |= {"matvec": 1.0}
    plan.refresh()
    single, double = (plan.explain(10, 2, 3, dtype, "numpy").seconds["linear"] for dtype in (np.float32, np.float64))
    assert (single, double) == (10 + 180, 10 + 360)


def test_auto_takes_the_method_with_the_least_predicted_time(prices):
    for cheap in counting.COUNTS:
        for method in counting.COUNTS:
            prices[method] |= {"launches": 1.0 if method == cheap else 2.0}
        prices["blelloch"]["launches"] /= 100
        plan.refresh()
        explanation = bp.explain(100, 2, 3, backend="numpy")
        least = min(explanation.seconds, key=explanation.seconds.get)
        assert explanation.method == least
        assert explanation.reason in " ".join(str(explanation).split())
        prices["blelloch"]["launches"] = 2.0
    assert {"linear", "chunked", "blelloch"} == set(counting.COUNTS)
    assert "measured on this machine" in explanation.source


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_chunk_length_is_the_best_of_those_tried(backend):
    for (T, B, H, weights), dtype in itertools.product(SIZES, (np.float32, np.float64)):
        chosen = plan.chunk_length(T, B, H, dtype, backend, weights)
        assert type(chosen) is int and 1 <= chosen <= max(T, 1)
        explanation = plan.explain(T, B, H, dtype, backend, weights)
        prices = plan._priced(backend)[0]["structured" if weights else "dense"]["chunked"]
        width = np.dtype(dtype).itemsize // 4
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
    prices["chunked"] |= {"steps": 1.0, "merges": 1.0, "crossings": 1.0}  # NumPy: about 3 L + T / L
    assert plan.chunk_length(3000, 1, 4, backend="numpy", weights=1) == 32
    prices["chunked"] |= {"crossings": 100.0}
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
    prices["linear"] |= {"launches": 0.002}
    prices["chunked"] |= {"launches": 0.001}
    prices["blelloch"] |= {"launches": 0.0001}
    shown = str(bp.explain(100, 2, 3, backend="numpy", weights=1)).splitlines()
    shown = shown[[" ms predicted" in line for line in shown].index(True) - 1 :]
    assert [" ".join(line.split()[:3]) for line in shown[1:4]] == ["blelloch 1.4 ms", "linear 2 ms", "chunked 3 ms"]
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


@pytest.mark.parametrize(
    ("method", "said"),
    [("linear", "20.8 times the work"), ("chunked", "chunks of at most"), ("blelloch", "19 levels instead of 1000")],
)
def test_every_method_has_its_reason(prices, method, said):
    for other in counting.COUNTS:
        prices[other] |= {"launches": 1.0 if other == method else 1e3}
    explanation = bp.explain(1000, 16, 20, backend="numpy")
    assert explanation.method == method and said in explanation.reason


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


@pytest.mark.parametrize(("T", "B", "length"), [(640, 3, 64), (1000, 2, 125), (4096, 1, 512)])
def test_counts_of_chunks_are_those_of_a_cell_that_forgets_at_once(T, B, length):
    model = bp.RNN(1, 20, 3, rng=0)
    for name in ("weight_hh_l0", "bias_hh_l0"):
        model.params[name][...] = 0
    x = np.random.default_rng(0).standard_normal((T, B, 1)).astype(np.float32)
    (solved,) = model.forward(x, backend="numpy", method="chunked", length=length).solved
    ran = counting.solving(solved.passes + 1, solved.steps, round(solved.work * T * B), 20, 1, "numpy")
    expected = counting.repaired(T, B, 20, 1, "numpy", length)
    assert ran["launches"] == expected["launches"] and ran["steps"] == expected["steps"]
    assert expected["matvec"] == pytest.approx(ran["matvec"], rel=0.1)  # the first of all chunks is never repaired


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("B", [1, 16])
@pytest.mark.parametrize("T", [0, 1, 31, 32, 63, 64, 65, 1000, 30001])
def test_forward_chunks_are_a_power_of_two_in_number_and_no_shorter_than_a_repair(T, B, backend):
    length = plan.chunk_length(T, B, 20, backend=backend, weights=1, forward=True)
    halved = [-(-T // 2**i) for i in range(1, T.bit_length())]
    assert length in halved and length >= counting.CHECK_EVERY if T >= 63 else length == max(T, 1)


def test_what_a_forward_pass_in_chunks_took_has_its_price(prices):
    solved = Solved("chunked", 100, passes=3, steps=300, work=1.5)
    for counted, times in (("launches", 3 + 1), ("steps", 300), ("matvec", 1.5 * 1000 * 2 * 20 * 20)):  # with the guess
        prices["chunked"].clear()
        prices["chunked"][counted] = 1.0
        plan.refresh()
        for dtype, width in ((np.float32, 1), (np.float64, 2 if counted == "matvec" else 1)):
            assert plan.solve_seconds(solved, 1000, 2, 20, dtype, "numpy", 1) == pytest.approx(times * width)


def test_forward_chunks_must_be_expected_to_gain_a_tenth(prices):
    prices["linear"] |= {"steps": 1.0}
    prices["chunked"] |= {"launches": 200.0}
    explanation = plan.explain(1000, 1, 20, backend="numpy", weights=1, forward=True)
    chunks = explanation.seconds["chunked"]
    assert explanation.method == "chunked" and explanation.seconds["linear"] == 1000 and chunks == 600
    assert explanation.reason.startswith("32 chunks of at most 32 steps go side by side, as samples do")
    prices["chunked"] |= {"launches": 310.0}
    plan.refresh()
    explanation = plan.explain(1000, 1, 20, backend="numpy", weights=1, forward=True)
    assert explanation.method == "linear" and explanation.seconds["chunked"] == 930
    assert explanation.reason.startswith("a loop of 1000 steps is over before chunks of it have been started")
