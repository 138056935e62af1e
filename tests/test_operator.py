import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from bppsa_nb.operator import (
    CSR,
    IDENTITY,
    Affine,
    BatchedCSR,
    Dense,
    Pattern,
    RangeLost,
    Scaled,
    Traced,
    diamond,
)

# Small integers, so that every order of multiplication gives the very same floats.
INTEGERS = st.integers(-3, 3)


def matrices(rng, sizes, batch=()):
    return [rng.integers(-3, 4, (*batch, m, n)).astype(float) for m, n in zip(sizes[1:], sizes, strict=False)]


def dense(operands, rng):
    return [Dense(m) for m in operands]


def csr(operands, rng):
    return [CSR(sparse.csr_array(m * (m > 0))) for m in operands]


def scaled(operands, rng):
    return [Scaled(Dense(m), rng.integers(-300, 300)) for m in operands]


def scaled_csr(operands, rng):
    return [Scaled(each, rng.integers(-300, 300)) for each in csr(operands, rng)]


def affine(operands, rng):
    return [Affine(Dense(m), rng.integers(-3, 4, m.shape[:-1]).astype(float)) for m in operands]


def affine_scaled(operands, rng):
    return [Affine(Scaled(Dense(m)), rng.integers(-3, 4, m.shape[:-1]).astype(float)) for m in operands]


def pattern(operands, rng):
    return [Pattern(each.matrix, []) for each in csr(operands, rng)]


def value(operand):
    """What an operand stands for, as something that can be compared."""
    if isinstance(operand, np.ndarray):
        return operand.tolist()
    if isinstance(operand, Affine):
        return [value(operand.linear), operand.offset.tolist()]
    if isinstance(operand, Scaled):
        # As exact integers: the mantissa's 53 bits, and the exponent on its own.
        plain = operand.operand.matrix
        mantissa = np.ldexp(plain.toarray() if sparse.issparse(plain) else plain, 60)
        exponent = np.broadcast_to(np.asarray(operand.exponent)[..., None, None], mantissa.shape)
        return [(int(m), int(e)) if m else 0 for m, e in zip(mantissa.ravel(), exponent.ravel(), strict=True)]
    if isinstance(operand, Pattern):
        return None if operand.structure is None else operand.structure.toarray().astype(bool).tolist()
    if isinstance(operand, Traced):
        return operand.kind, operand.span
    matrix = operand.matrix
    return (matrix.toarray() if sparse.issparse(matrix) else matrix).tolist()


MAKERS = [dense, csr, scaled, scaled_csr, affine, affine_scaled, pattern]


@pytest.mark.parametrize("make", MAKERS)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_associative(make, seed, sizes):
    rng = np.random.default_rng(seed)
    a, b, c = make(matrices(rng, sizes), rng)
    assert value(diamond(diamond(a, b), c)) == value(diamond(a, diamond(b, c)))


@pytest.mark.parametrize("make", [dense, scaled, affine, affine_scaled])
@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 3))
def test_associative_for_every_sample(make, seed, batch):
    rng = np.random.default_rng(seed)
    a, b, c = make(matrices(rng, [2, 3, 2, 1], (batch,)), rng)
    assert value(diamond(diamond(a, b), c)) == value(diamond(a, diamond(b, c)))


@pytest.mark.parametrize("make", MAKERS)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_associative_where_a_gradient_comes_first(make, seed, sizes):
    rng = np.random.default_rng(seed)
    b, c = make(matrices(rng, sizes), rng)
    a = Pattern(None, []) if make is pattern else rng.integers(-3, 4, sizes[0]).astype(float)
    left, right = diamond(diamond(a, b), c), diamond(a, diamond(b, c))
    assert value(left) == value(right)


@given(split=st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)))
def test_associative_for_traced(split):
    start, *lengths = split
    ends = np.cumsum([start, *lengths]).tolist()
    a, b, c = (Traced("matrix", (first, last - 1), []) for first, last in zip(ends, ends[1:], strict=False))
    assert value(diamond(diamond(a, b), c)) == value(diamond(a, diamond(b, c))) == ("matrix", (start, ends[-1] - 1))


@pytest.mark.parametrize("make", MAKERS)
def test_identity_is_a_symbol_on_either_side(make):
    rng = np.random.default_rng(0)
    (a,) = make(matrices(rng, [2, 3]), rng)
    assert diamond(IDENTITY, a) is a
    assert diamond(a, IDENTITY) is a
    assert diamond(IDENTITY, IDENTITY) is IDENTITY
    assert repr(IDENTITY) == "IDENTITY"


@pytest.mark.parametrize("make", [dense, csr, scaled, affine])
def test_not_commutative(make):
    rng = np.random.default_rng(1)
    a, b = make([np.array([[0.0, 1], [0, 0]]), np.array([[1.0, 2], [3, 4]])], rng)
    assert value(diamond(a, b)) != value(diamond(b, a))


def test_diamond_is_multiplication_in_reverse():
    a, b = matrices(np.random.default_rng(0), [2, 3, 4])
    assert value(diamond(Dense(a), Dense(b))) == naive.matmul(b.tolist(), a.tolist())


@pytest.mark.parametrize("left_kind", [Dense, CSR])
@pytest.mark.parametrize("right_kind", [Dense, CSR])
def test_sparse_and_dense_mix(left_kind, right_kind):
    a, b = matrices(np.random.default_rng(1), [3, 4, 2])
    x = np.array([1.0, -2, 3])
    right, left = (
        kind(sparse.csr_array(m)) if kind is CSR else kind(m) for kind, m in ((right_kind, a), (left_kind, b))
    )
    product = left @ right
    assert isinstance(product, CSR) == (left_kind is right_kind is CSR)
    assert value(product) == naive.matmul(b.tolist(), a.tolist())
    assert np.array_equal(product @ x, b @ a @ x)


def test_csr_keeps_the_pattern_it_is_given():
    a = CSR(sparse.csr_array(np.array([[1.0, 0], [2, 3]])))
    b = a.with_values(np.array([5.0, 0, 7]))
    assert b.matrix.nnz == 3
    assert value(b) == [[5, 0], [0, 7]]
    assert a.values.tolist() == [1, 2, 3]


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 6), dtype=st.sampled_from(["float32", "float64"]))
def test_scaling_by_powers_of_two_rounds_nothing(seed, count, dtype):
    rng = np.random.default_rng(seed)
    links = [rng.standard_normal((2, 3, 3)).astype(dtype) for _ in range(count)]
    shifts = rng.integers(-20, 20, count)
    plain, kept = Dense(links[0]), Scaled(Dense(np.ldexp(links[0], shifts[0])))
    for link, shift in zip(links[1:], shifts[1:], strict=True):
        plain, kept = diamond(plain, Dense(link)), diamond(kept, Scaled(Dense(np.ldexp(link, shift))))
    assert kept.operand.matrix.dtype == dtype
    back = np.ldexp(kept.operand.matrix, (kept.exponent - shifts.sum())[..., None, None])
    assert np.array_equal(back, plain.matrix)
    assert np.all((np.abs(kept.operand.values).max(axis=-1) >= 0.5) & (np.abs(kept.operand.values).max(axis=-1) < 1))


def test_scaled_products_leave_the_range_and_come_back():
    up, down = Scaled(Dense(np.full((1, 1), 2.0**900))), Scaled(Dense(np.full((1, 1), 2.0**-900)))
    big = diamond(diamond(up, up), up)  # 2**2700
    assert diamond(diamond(diamond(big, down), down), down) @ np.array([3.0]) == 3
    with np.errstate(over="ignore"):
        assert big @ np.array([2.0**-1000]) == np.inf
    assert diamond(down, down) @ np.array([2.0**1000]) == 2.0**-800


def test_scaled_zero_is_zero():
    zero, one = Scaled(Dense(np.zeros((2, 2)))), Scaled(Dense(np.ones((2, 2))))
    assert value(diamond(zero, one)) == value(diamond(one, zero)) == [0] * 4
    assert (zero @ np.ones(2)).tolist() == [0, 0]


def test_scaled_refuses_entries_too_far_apart():
    with pytest.raises(RangeLost):
        Scaled(Dense(np.array([[1.0, 1e-200]])))
    Scaled(Dense(np.array([[1e-200, 1e-300], [0, 0]])))
    with pytest.raises(RangeLost):  # the small entry is all that counts here, and would be lost
        Scaled(Dense(np.diag([1e-150, 1.0]))) @ np.array([1e-200, 1.0])


@given(seed=st.integers(0, 2**32 - 1))
def test_affine_maps_compose(seed):
    rng = np.random.default_rng(seed)
    a, b = affine(matrices(rng, [2, 3, 2]), rng)
    x = rng.integers(-3, 4, 2).astype(float)
    by_hand = b.linear.matrix @ (a.linear.matrix @ x + a.offset) + b.offset
    assert np.array_equal(diamond(a, b) @ x, by_hand)
    assert np.array_equal(diamond(diamond(x, a), b), by_hand)


@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 6), min_size=3, max_size=3))
def test_pattern_counts_what_a_loop_counts(seed, sizes):
    rng = np.random.default_rng(seed)
    right, left = (rng.random((m, n)) < 0.5 for m, n in zip(sizes[1:], sizes, strict=False))
    costs = []
    a, b = (Pattern(sparse.csr_array(each), costs) for each in (right, left))
    structure, multiply_adds = naive.pattern_product(left.tolist(), right.tolist())
    assert diamond(a, b).structure.toarray().astype(int).tolist() == structure
    diamond(Pattern(None, costs), a)
    assert costs == [("mm", multiply_adds), ("mv", right.sum())]
    assert all(isinstance(cost, int) for _, cost in costs)


@given(batch=st.integers(1, 4), seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 4), columns=st.integers(1, 4))
def test_batched_csr_is_block_diagonal(batch, seed, rows, columns):
    rng = np.random.default_rng(seed)
    shape = sparse.csr_array((rng.random((rows, columns)) < 0.5).astype(float))
    values = rng.standard_normal((batch, shape.nnz))
    samples = [sparse.csr_array((each, shape.indices, shape.indptr), shape=shape.shape) for each in values]
    together = BatchedCSR(values, shape.indices, shape.indptr, shape.shape).block_diagonal()
    assert np.array_equal(together.matrix.toarray(), sparse.block_diag(samples).toarray())
    x = rng.standard_normal((batch, columns))
    assert np.allclose(
        (together @ x.ravel()).reshape(batch, rows), [m @ each for m, each in zip(samples, x, strict=True)]
    )


def test_traced_remembers_its_parents_in_order():
    log = []
    gradient, first, second = (
        Traced("vector", (0, 0), log),
        Traced("matrix", (1, 1), log),
        Traced("matrix", (2, 2), log),
    )
    pair = diamond(first, second)
    result = diamond(gradient, pair)
    assert log == [pair, result]
    assert [each.product for each in (gradient, first, pair, result)] == ["", "", "mm", "mv"]
    assert (pair.parents, result.parents) == ((first, second), (gradient, pair))
    assert [repr(each) for each in (first, pair, result)] == ["matrix[1]", "matrix[1:2]", "vector[0:2]"]


def test_traced_refuses_what_is_not_in_order():
    log = []
    gradient, first, third = Traced("vector", (0, 0), log), Traced("matrix", (1, 1), log), Traced("matrix", (3, 3), log)
    for wrong in ((first, gradient), (first, third), (third, first), (first, first)):
        with pytest.raises(ValueError, match="not a product of neighbors in order"):
            diamond(*wrong)
    with pytest.raises(ValueError, match=r"vector\[1\]"):
        diamond(Traced("matrix", (0, 0), log), Traced("vector", (1, 1), log))
