"""⋄ of what segments are reduced to, and its scan over ranks: without MPI."""

import pickle
import queue
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import bppsa_nb as bp
from bppsa_nb.distributed import solver as module
from bppsa_nb.distributed.segments import ScaledRows
from bppsa_nb.operands import rows as scaled_rows
from bppsa_nb.operands.kinds import CSR, Affine, Dense, Scaled
from bppsa_nb.operands.pattern import Planned
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.papers.ranks import model
from bppsa_nb.scan import operator
from bppsa_nb.scan.operator import diamond

EPS = {np.float32: 1e-5, np.float64: 1e-13}
dtypes = st.sampled_from(sorted(EPS, key=str))


# Affine maps of dense segments, and exact arithmetic for an oracle: the powers of two may be beyond those of any float.


def make(sizes, dtype, rng, power=0):
    """Make a random map; some rows are zero, and the powers of two of the others differ by up to 2 * `power`."""
    matrices, batch, size = sizes
    rows = rng.standard_normal((matrices, size, size)) * (rng.random((matrices, size, 1)) < 0.8)
    powers = rng.integers(-power, power + 1, (matrices, size))
    product = ScaledRows(*scaled_rows.normalize(rows.astype(dtype), powers))
    return Affine(product, vectors(sizes, dtype, rng))


def vectors(sizes, dtype, rng):
    return (rng.standard_normal(sizes[1:]) * (rng.random() < 0.7)).astype(dtype)


def exact(each):
    """Return the matrices [B][H][H] and vectors [B][H] of a map, or of a gradient, in fractions."""
    if isinstance(each, np.ndarray):
        return None, [[Fraction(float(x)) for x in row] for row in each]
    offset = each.offset if np.isfinite(each.offset).all() else np.zeros_like(each.offset)
    matrices = []
    for b in range(len(offset)):
        rows, powers = (array[b % len(array)] for array in (each.linear.matrices, each.linear.exponents))
        pairs = zip(rows, powers, strict=True)
        matrices.append([[Fraction(float(x)) * Fraction(2) ** int(power) for x in row] for row, power in pairs])
    return matrices, exact(offset)[1]


def times(vector, matrix):
    columns = zip(*matrix, strict=True)
    return [sum((x * y for x, y in zip(vector, column, strict=True)), Fraction(0)) for column in columns]


def then(a, b):
    """First `a`, then `b`, in fractions."""
    matrices = a[0] and [[times(row, N) for row in M] for M, N in zip(a[0], b[0], strict=True)]
    offsets = zip(a[1], *b, strict=True)
    return matrices, [[x + y for x, y in zip(times(c, N), d, strict=True)] for c, N, d in offsets]


def sizes_of(a):
    """Return in fractions how large the terms are that add up in `then`."""
    return a[0] and [[[abs(x) for x in row] for row in M] for M in a[0]], [[abs(x) for x in row] for row in a[1]]


def near(found, expected, scale, eps):
    """Tell whether numbers differ by no more than rounding: relative to the sum of their terms' sizes."""
    pairs = zip(np.ravel(found), np.ravel(expected), np.ravel(scale), strict=True)
    return all(abs(a - b) <= Fraction(eps) * size for a, b, size in pairs)


def combined(a, b):
    before = pickle.dumps((a, b))
    with np.errstate(all="ignore"):
        found = diamond(a, b)
    assert pickle.dumps((a, b)) == before  # which others may need
    return found


shapes = st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 4)).map(lambda s: (1 if s[0] else s[1], *s[1:]))


@given(shapes, dtypes, st.booleans(), st.sampled_from([0, 40, 5000]), st.integers(0, 10**6))
def test_a_map_after_another_or_after_a_gradient(sizes, dtype, known, power, seed):
    rng = np.random.default_rng(seed)
    a = vectors(sizes, dtype, rng) if known else make(sizes, dtype, rng, power)
    b = make(sizes, dtype, rng, power)
    try:
        found = combined(a, b)
    except DynamicRangeError:  # rows so far apart that one of them leaves nothing of the other
        assert power == 5000
        return
    exactly, scale = then(exact(a), exact(b)), then(sizes_of(exact(a)), sizes_of(exact(b)))
    offset = found if known else found.offset
    if not known:
        assert near(exact(found)[0], exactly[0], scale[0], EPS[dtype])
        peak = np.abs(found.linear.matrices).max(-1)
        assert np.all((peak >= 0.5) & (peak < 1) | (peak == 0))
    if np.isfinite(offset).all() and power < 5000:  # offsets are gradients, which carry no powers of two
        assert near(exact(offset)[1], exactly[1], scale[1], EPS[dtype])


@pytest.mark.parametrize("dtype", EPS)
def test_rows_too_far_apart_are_not_cut_off(dtype):
    half = np.finfo(dtype).minexp // 2
    for bad in np.ldexp(1.0, half - 1), np.nan, np.inf:
        with pytest.raises(DynamicRangeError):
            scaled_rows.normalize(np.array([[[1, bad]] * 2], dtype), np.zeros((1, 2), int))
    far = np.ldexp(1.0, half + 9)
    a, b = (np.array([rows], dtype) for rows in ([[1, far], [0, 1]], [[1, 0], [0, far]]))
    exponents = np.zeros((1, 2), int)
    with pytest.raises(DynamicRangeError):
        combined(ScaledRows(a, exponents), ScaledRows(*scaled_rows.normalize(b, exponents)))


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
    yield make((1, batch, m), dtype, rng)
    yield operator.IDENTITY
    yield module.LOST


def contents_of_rows(pattern):
    return pattern.shape, pattern.indptr.tolist(), pattern.indices.tolist()


def contents(operand):
    """Return everything that an operand consists of, in a form that can be compared."""
    if isinstance(operand, np.ndarray):
        return operand.dtype, operand.shape, operand.tobytes()
    if isinstance(operand, Affine):
        return contents(operand.linear), contents(operand.offset)
    if isinstance(operand, ScaledRows):
        return contents(operand.matrices), operand.exponents.tolist()
    if isinstance(operand, Scaled):
        return contents(operand.operand), np.asarray(operand.exponent).tolist()
    if isinstance(operand, Planned):
        return operand.backend, *contents_of_rows(operand.pattern), contents(operand.values)
    if isinstance(operand, CSR):
        return *contents_of_rows(operand.matrix), contents(operand.matrix.data)
    return contents(operand.matrix) if isinstance(operand, Dense) else operand


@given(dtypes, st.integers(0, 10**6))
def test_a_message_holds_everything(dtype, seed):
    for operand in operands(dtype, np.random.default_rng(seed)):
        found = module.placed(pickle.loads(pickle.dumps(operand)), "numpy")
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
    """Run `exscan` on as many threads; return what each found, and whom it talked to."""
    size = len(owns)
    wires = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    comms = [Wires(rank, size, wires) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(lambda comm, own: module.exscan(comm, comm, own, "numpy"), comms, owns))
    return found, [comm.sent for comm in comms]


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("size", range(1, 14))
def test_operands_of_any_size_are_scanned_in_rounds(size, affine):
    rng = np.random.default_rng(size)
    dims = rng.integers(1, 5, size + 1)
    owns = [rng.standard_normal(dims[0])]
    for rank in range(1, size):
        kind = (Dense, lambda matrix: CSR(sparse.csr_array(matrix)))[rank % 2]
        own = Scaled(kind(rng.standard_normal((dims[rank], dims[rank - 1]))), rank)
        owns.append(Affine(own, rng.standard_normal(dims[rank])) if affine else own)
    if size > 1:
        owns[-1] = operator.IDENTITY  # nobody needs the product of the last
    found, sent = exscan(owns)
    rounds = (size - 1).bit_length()
    counts = model.exscan(np.zeros(size), model.Interconnect(0, 1), model.OperatorCosts(0, 0, 0, 0))[1]
    for rank, (before, combinations, error) in enumerate(found):
        assert error is None
        assert combinations == counts[rank] <= max(2 * rounds - 2, 0)
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
    owns[at] = module.LOST
    for rank, (before, _, error) in enumerate(exscan(owns)[0]):
        assert error is None and (before is module.LOST) == (rank > at)


def test_an_error_in_a_combination_does_not_stop_the_others():
    owns = [np.ones(2), Scaled(Dense(np.eye(3))), Scaled(Dense(np.eye(2))), Scaled(Dense(np.eye(2)))]
    found = exscan(owns)[0]
    assert any(isinstance(error, ValueError) for _, _, error in found)
    assert found[2][0] is module.LOST and found[3][0] is module.LOST
