"""⋄ of runs as MPI calls it, and as messages: without MPI."""

import pickle
import queue
import threading
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import bppsa_nb as bp
from bppsa_nb import distributed
from bppsa_nb.distributed import maps, messages, predict
from bppsa_nb.distributed.maps import CONSTANT, IDENTITY, LINEAR, LOST
from bppsa_nb.operands import rows as scaled_rows
from bppsa_nb.operands.batched import Planned
from bppsa_nb.operands.dense import CSR, Affine, Dense
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.operands.scaled import Scaled
from bppsa_nb.scan import operator
from bppsa_nb.scan.operator import diamond

EPS = {np.float32: 1e-5, np.float64: 1e-13}
dtypes = st.sampled_from(sorted(EPS, key=str))


@given(st.integers(0, 500), st.integers(1, 40))
def test_parts_are_consecutive_and_even(steps, ranks):
    parts = distributed.partition(steps, ranks)
    assert [t for part in parts for t in range(part.start, part.stop)] == list(range(steps))
    lengths = [part.stop - part.start for part in parts]
    assert len(parts) == ranks and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("steps", "ranks", "message"),
    [
        (-1, 2, "steps must be at least 0, got -1"),
        (3, 0, "ranks must be at least 1, got 0"),
        (3.0, 1, "steps must be an integer, got 3.0"),
        (3, None, "ranks must be an integer, got None"),
    ],
)
def test_parts_of_nothing(steps, ranks, message):
    with pytest.raises((TypeError, ValueError), match=message):
        distributed.partition(steps, ranks)


# Maps, and exact arithmetic for an oracle: the powers of two may be beyond those of any float.


def make(kind, sizes, dtype, rng, power=0):
    """Make a random map; some rows are zero, and the powers of two of the others differ by up to 2 * `power`."""
    matrices, batch, size = sizes
    found = np.zeros(2, maps.layout(matrices, batch, size, dtype))[0]
    found["kind"] = kind
    if kind == LINEAR:
        rows = rng.standard_normal((matrices, size, size)) * (rng.random((matrices, size, 1)) < 0.8)
        powers = rng.integers(-power, power + 1, (matrices, size))
        found["rows"], found["exponents"] = scaled_rows.normalize(rows.astype(dtype), powers)
    if kind in (LINEAR, CONSTANT):
        found["offset"] = rng.standard_normal((batch, size)) * (rng.random() < 0.7)
    return found


def exact(each):
    """Return the matrices [B][H][H] and offsets [B][H] of a map as fractions, gradients being to the left."""
    batch, size = each["offset"].shape
    matrices = []
    for b in range(batch):
        rows, powers = (each[name][b % len(each["rows"])] for name in ("rows", "exponents"))
        unit = [[Fraction(int(i == j)) for j in range(size)] for i in range(size)]
        scaled = [
            [Fraction(float(x)) * Fraction(2) ** int(power) for x in row]
            for row, power in zip(rows, powers, strict=True)
        ]
        matrices.append(unit if each["kind"] == IDENTITY else scaled)
    return matrices, [[Fraction(float(x)) for x in row] for row in each["offset"]]


def times(vector, matrix):
    return [
        sum((x * row[j] for x, row in zip(vector, matrix, strict=True)), Fraction(0)) for j in range(len(matrix[0]))
    ]


def then(a, b):
    """First `a`, then `b`, in fractions."""
    matrices = [[times(row, N) for row in M] for M, N in zip(a[0], b[0], strict=True)]
    return matrices, [
        [x + y for x, y in zip(times(c, N), d, strict=True)] for c, N, d in zip(a[1], b[0], b[1], strict=True)
    ]


def sizes_of(a):
    """Return in fractions how large the terms are that add up in `then`."""
    return [[[abs(x) for x in row] for row in M] for M in a[0]], [[abs(x) for x in row] for row in a[1]]


def near(found, expected, scale, eps):
    """Tell whether numbers differ by no more than rounding: relative to the sum of their terms' sizes."""
    pairs = zip(np.ravel(found), np.ravel(expected), np.ravel(scale), strict=True)
    return all(abs(a - b) <= Fraction(eps) * size for a, b, size in pairs)


def combined(a, b):
    b = b.copy()
    before = a.copy()
    maps.combine(a, b)
    assert a.tobytes() == before.tobytes()  # which MPI goes on to use
    return b


shapes = st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 4)).map(lambda s: (1 if s[0] else s[1], *s[1:]))


@given(shapes, dtypes, st.sampled_from([LINEAR, CONSTANT]), st.sampled_from([0, 40, 5000]), st.integers(0, 10**6))
def test_a_map_after_another(sizes, dtype, kind, power, seed):
    rng = np.random.default_rng(seed)
    a, b = make(kind, sizes, dtype, rng, power), make(LINEAR, sizes, dtype, rng, power)
    with np.errstate(all="ignore"):
        found = combined(a, b)
    if found["kind"] == LOST:  # rows so far apart that one of them leaves nothing of the other
        assert power == 5000
        return
    assert found["kind"] == kind
    exactly, scale = then(exact(a), exact(b)), then(sizes_of(exact(a)), sizes_of(exact(b)))
    (matrices, offsets), finite = exact_or_none(found), np.isfinite(found["offset"]).all()
    if kind == LINEAR:
        assert near(matrices, exactly[0], scale[0], EPS[dtype])
        peak = np.abs(found["rows"]).max(-1)
        assert np.all((peak >= 0.5) & (peak < 1) | (peak == 0))
    if finite and power < 5000:  # offsets are gradients, which carry no powers of two
        assert near(offsets, exactly[1], scale[1], EPS[dtype])


def exact_or_none(found):
    found = found.copy()
    found["offset"] = np.where(np.isfinite(found["offset"]), found["offset"], 0)
    return exact(found)


@given(shapes, dtypes, st.sampled_from([LINEAR, CONSTANT, IDENTITY]), st.integers(0, 10**6))
def test_maps_are_associative_and_do_not_commute(sizes, dtype, first, seed):
    rng = np.random.default_rng(seed)
    a = make(first, sizes, dtype, rng, 40)
    b, c = (make(LINEAR if rng.random() < 0.7 else IDENTITY, sizes, dtype, rng, 40) for _ in range(2))
    left, right = combined(combined(a, b), c), combined(a, combined(b, c))
    assert left["kind"] == right["kind"]
    scale = reduce(then, map(sizes_of, map(exact, (a, b, c))))
    for x, y, size in zip(exact(left), exact(right), scale, strict=True):
        assert left["kind"] == CONSTANT and x is not exact(left)[1] or near(x, y, size, 4 * EPS[dtype])


def test_the_order_matters():
    rng = np.random.default_rng(0)
    a, b = (make(LINEAR, (1, 2, 3), np.float64, rng) for _ in range(2))
    assert not np.allclose(combined(a, b)["rows"], combined(b, a)["rows"])


@pytest.mark.parametrize("kind", range(4))
def test_what_changes_nothing_and_what_is_lost(kind):
    rng, sizes = np.random.default_rng(kind), (2, 2, 3)
    each = make(kind, sizes, np.float32, rng)
    nothing, lost, linear = (make(other, sizes, np.float32, rng) for other in (IDENTITY, LOST, LINEAR))
    assert combined(nothing, each).tobytes() == each.tobytes() == combined(each, nothing).tobytes()
    assert combined(lost, each)["kind"] == combined(each, lost)["kind"] == LOST
    assert combined(linear, lost)["kind"] == LOST


@pytest.mark.parametrize("dtype", EPS)
def test_rows_too_far_apart_are_not_cut_off(dtype):
    half = np.finfo(dtype).minexp // 2
    with pytest.raises(DynamicRangeError):
        scaled_rows.normalize(np.array([[[1, np.ldexp(1.0, half - 1)]] * 2], dtype), np.zeros((1, 2), int))
    for bad in np.nan, np.inf:
        with pytest.raises(DynamicRangeError):
            scaled_rows.normalize(np.array([[[1, bad]] * 2], dtype), np.zeros((1, 2), int))
    found = [np.zeros(1, maps.layout(1, 1, 2, dtype))[0] for _ in range(2)]
    far = np.ldexp(1.0, half + 9)
    for each, rows in zip(found, ([[1, far], [0, 1]], [[1, 0], [0, far]]), strict=True):
        each["kind"] = LINEAR
        each["rows"], each["exponents"] = [np.array(rows, dtype)], 0
        if rows[1][1] == far:
            each["rows"], each["exponents"] = scaled_rows.normalize(np.array([rows], dtype), np.zeros((1, 2), int))
    maps.combine(*found)
    assert found[1]["kind"] == LOST


def test_the_plan_chooses_between_one_after_the_other_and_all_at_once():
    class Side:
        def __init__(self, sweep, multiply):
            self.sweep, self.multiply = sweep, multiply

    def faster(every):  # in seconds, beside which messages and ⋄ of maps are little
        costs = ((side.sweep, side.multiply, 5e-5, 1e-4, 80, 300) for side in every)
        return predict.choose(tuple(costs))

    assert faster([Side(5, 9)]) == "linear"
    assert faster([Side(5, 999), Side(5, 999)]) == "linear"  # all at once, nothing is multiplied, nothing is won
    assert faster([Side(5, 999), Side(5, 7), Side(5, 999)]) == "chunked"  # those at the ends are not multiplied
    assert faster([Side(5, 0), Side(5, 10), Side(5, 0)]) == "linear"
    assert faster([Side(1, 0), Side(5, 2), Side(1, 0)]) == "linear"  # one rank has it all
    assert faster([Side(5, 0), Side(5, 2), Side(6, 0)]) == "chunked"
    assert faster([Side(0, 0), Side(0, 0)]) == "linear"


# Messages.


def operands(dtype, rng):
    """Make every kind of thing that ranks exchange, of random sizes."""
    m, n, batch = (int(size) for size in rng.integers(1, 5, 3))
    matrix = (rng.standard_normal((m, n)) * (rng.random((m, n)) < 0.6)).astype(dtype)
    rows = sparse.csr_array(np.arange(1, 1 + m * n).reshape(m, n) * (matrix != 0))
    made = [Dense(matrix), CSR(sparse.csr_array(matrix))]
    for samples in {1, batch}:
        link = bp.BatchedCSR(rng.standard_normal((samples, rows.nnz)).astype(dtype), rows.indices, rows.indptr, (m, n))
        made.append(Planned(link.pattern, link.values, "numpy"))
    for each in made:
        scaled = Scaled(each, int(rng.integers(-5000, 5000)))
        yield scaled
        yield Affine(scaled, rng.standard_normal((batch, m) if isinstance(each, Planned) else m).astype(dtype))
    yield rng.standard_normal(m).astype(dtype)
    yield rng.standard_normal((batch, m)).astype(dtype)
    yield np.empty(0, dtype)
    yield np.empty((batch, 0), dtype)
    yield Affine(Scaled(Dense(np.ones((0, n), dtype))), np.empty(0, dtype))
    yield operator.IDENTITY
    yield messages.LOST


def contents(operand):
    """Return everything that an operand consists of, in a form that can be compared."""
    if isinstance(operand, np.ndarray):
        return operand.dtype, operand.shape, operand.tobytes()
    if isinstance(operand, Affine):
        return contents(operand.linear), contents(operand.offset)
    if isinstance(operand, Scaled):
        return contents(operand.operand), np.asarray(operand.exponent).tolist()
    if isinstance(operand, Planned):
        pattern = operand.pattern
        return (
            operand.backend,
            pattern.shape,
            pattern.indptr.tolist(),
            pattern.indices.tolist(),
            contents(operand.values),
        )
    if isinstance(operand, CSR):
        matrix = operand.matrix
        return matrix.shape, matrix.indptr.tolist(), matrix.indices.tolist(), contents(matrix.data)
    return contents(operand.matrix) if isinstance(operand, Dense) else operand


@given(dtypes, st.integers(0, 10**6))
def test_a_message_holds_everything(dtype, seed):
    for operand in operands(dtype, np.random.default_rng(seed)):
        found = messages.placed(pickle.loads(pickle.dumps(operand)), "numpy")
        assert contents(found) == contents(operand) and (found is operator.IDENTITY) == (operand is operator.IDENTITY)


class Wires:
    """A communicator of ranks that are threads."""

    def __init__(self, rank, size, wires):
        self.rank, self.size, self._wires, self.sent = rank, size, wires, []

    def Sendrecv(self, message, partner, recvbuf, source):
        assert partner == source
        self.sent.append((partner, memoryview(message).nbytes))
        self._wires[self.rank, partner].put(bytes(message))
        memoryview(recvbuf).cast("B")[:] = self._wires[source, self.rank].get(timeout=20)

    def timed(self, communicate, *arguments, **named):
        return communicate(*arguments, **named)


def exscan(owns):
    """Run `messages.exscan` on as many threads; return what each found, and whom it talked to."""
    size = len(owns)
    wires = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    comms, found = [Wires(rank, size, wires) for rank in range(size)], [None] * size

    def work(comm):
        found[comm.rank] = messages.exscan(comm, comm, owns[comm.rank], "numpy")

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, [comm.sent for comm in comms]


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("size", range(1, 14))
def test_runs_of_any_size_are_scanned_in_rounds(size, affine):
    rng = np.random.default_rng(size)
    dims = rng.integers(1, 5, size + 1)
    owns = [rng.standard_normal(dims[0])]
    for rank in range(1, size):
        kind = (Dense, lambda matrix: CSR(sparse.csr_array(matrix)))[rank % 2]
        own = Scaled(kind(rng.standard_normal((dims[rank], dims[rank - 1]))), rank)
        owns.append(Affine(own, rng.standard_normal(dims[rank])) if affine else own)
    found, sent = exscan(owns)
    rounds = (size - 1).bit_length()
    for rank, (before, combinations, error) in enumerate(found):
        assert error is None
        assert combinations <= max(2 * rounds - 1, 0)
        assert len(sent[rank]) <= 3 * rounds
        assert {partner.bit_count() for partner in (other ^ rank for other, _ in sent[rank])} <= {1}
        if rank == 0:
            assert before is operator.IDENTITY
        else:
            expected = reduce(diamond, owns[:rank])
            assert np.allclose(before, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("at", range(5))
def test_one_that_is_lost_is_lost_for_all_after_it(at):
    owns = [np.ones(2), *(Scaled(Dense(np.eye(2))) for _ in range(4))]
    owns[at] = messages.LOST
    for rank, (before, _, error) in enumerate(exscan(owns)[0]):
        assert error is None and (before is messages.LOST) == (rank > at)


def test_an_error_in_a_combination_does_not_stop_the_others():
    owns = [np.ones(2), Scaled(Dense(np.eye(3))), Scaled(Dense(np.eye(2))), Scaled(Dense(np.eye(2)))]
    found = exscan(owns)[0]
    assert any(isinstance(error, ValueError) for _, _, error in found)
    assert found[2][0] is messages.LOST and found[3][0] is messages.LOST
