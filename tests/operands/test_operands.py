import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from bppsa_nb.operands import products
from bppsa_nb.operands.kinds import CSR, Affine, Dense, Scaled
from bppsa_nb.operands.pattern import CSRPattern, Pattern, Planned
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.scan.operator import IDENTITY, diamond
from bppsa_nb.scan.trace import Traced


def matrices(rng, sizes, batch=()):
    """Small integers, so that every order of multiplication gives the very same floats."""
    return [rng.integers(-3, 4, (*batch, m, n)).astype(float) for m, n in zip(sizes[1:], sizes, strict=False)]


def csr(matrix):
    return CSR(sparse.csr_array(matrix * (matrix > 0)))


def planned_one(matrix):
    return Planned(CSRPattern.of(matrix), matrix.data[None], "cpu")


def offset(matrix, rng):
    return rng.integers(-3, 4, matrix.shape[:-1]).astype(float)


MAKERS = {  # of a matrix
    "dense": lambda m, rng: Dense(m), "csr": lambda m, rng: csr(m),
    "planned": lambda m, rng: planned_one(csr(m).matrix),
    "scaled": lambda m, rng: Scaled(Dense(m), rng.integers(-300, 300)),
    "scaled_csr": lambda m, rng: Scaled(csr(m), rng.integers(-300, 300)),
    "planned_scaled": lambda m, rng: Scaled(planned_one(csr(m).matrix), rng.integers(-300, 300, 1)),
    "affine": lambda m, rng: Affine(Dense(m), offset(m, rng)),
    "affine_scaled": lambda m, rng: Affine(Scaled(Dense(m)), offset(m, rng)),
    "pattern": lambda m, rng: Pattern(CSRPattern.of(csr(m).matrix), []),
}


def dense_pattern(structure):
    return structure.matrix(np.ones(structure.nnz, int)).toarray().tolist()


def value(operand):
    """What an operand stands for, as something that can be compared."""
    if isinstance(operand, np.ndarray):
        return operand.tolist()
    if isinstance(operand, Affine):
        return [value(operand.linear), operand.offset.tolist()]
    if isinstance(operand, Scaled):
        # As exact integers: the mantissa's 53 bits, and the exponent on its own.
        mantissa = np.ldexp(np.array(value(operand.operand)), 60)
        exponent = np.broadcast_to(np.asarray(operand.exponent)[..., None, None], mantissa.shape)
        return [(int(m), int(e)) if m else 0 for m, e in zip(mantissa.ravel(), exponent.ravel(), strict=True)]
    if isinstance(operand, Pattern):
        return None if operand.structure is None else dense_pattern(operand.structure)
    if isinstance(operand, Traced):
        return operand.kind, operand.span
    if isinstance(operand, Planned):
        return [operand.pattern.matrix(each).toarray().tolist() for each in operand.values]
    matrix = operand.matrix
    return (matrix.toarray() if sparse.issparse(matrix) else matrix).tolist()


@pytest.mark.parametrize("kind", MAKERS)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_associative_also_where_a_gradient_comes_first(kind, seed, sizes):
    rng = np.random.default_rng(seed)
    a, b, c = (MAKERS[kind](matrix, rng) for matrix in matrices(rng, sizes))
    gradient = Pattern(None, []) if kind == "pattern" else rng.integers(-3, 4, sizes[1]).astype(float)
    if kind in ("planned", "planned_scaled"):
        gradient = gradient[None]  # one sample
    for first in (a, gradient):
        assert value(diamond(diamond(first, b), c)) == value(diamond(first, diamond(b, c)))
    assert diamond(IDENTITY, a) is a
    assert diamond(a, IDENTITY) is a


def test_the_identity_is_a_symbol():
    assert diamond(IDENTITY, IDENTITY) is IDENTITY
    assert repr(IDENTITY) == "IDENTITY"


@pytest.mark.parametrize("left_kind", [Dense, CSR])
@pytest.mark.parametrize("right_kind", [Dense, CSR])
def test_sparse_and_dense_mix(left_kind, right_kind):
    a, b = matrices(np.random.default_rng(1), [3, 4, 2])
    x = np.array([1.0, -2, 3])
    right, left = (
        kind(sparse.csr_array(m)) if kind is CSR else kind(m) for kind, m in ((right_kind, a), (left_kind, b))
    )
    product = diamond(right, left)  # multiplication in reverse
    assert isinstance(product, CSR) == (left_kind is right_kind is CSR)
    assert value(product) == naive.matmul(b.tolist(), a.tolist())
    assert np.array_equal(product @ x, b @ a @ x)


@pytest.mark.parametrize("fresh", [False, True])
def test_scaling_keeps_the_pattern_and_what_others_need(fresh):
    matrix = sparse.csr_array(np.array([[1.0, 0], [2, 3]]))
    matrix.data[1] = 0  # an explicit zero stays one
    for make in (CSR, lambda m: Dense(m.toarray()), planned_one):
        a = make(matrix.copy())
        b = Scaled(a, 3, fresh)
        assert np.array_equal(np.squeeze(value(b.operand)), [[0.25, 0], [0, 0.75]]) and np.all(b.exponent == 5)
        assert fresh or np.array_equal(np.squeeze(value(a)), [[1, 0], [0, 3]])
    assert Scaled(CSR(matrix)).operand.matrix.nnz == 3


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
    peak, _ = products.magnitude_range(kept.operand.values)
    assert np.all((peak >= 0.5) & (peak < 1))


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
    with pytest.raises(DynamicRangeError):
        Scaled(Dense(np.array([[1.0, 1e-200]])))
    Scaled(Dense(np.array([[1e-200, 1e-300], [0, 0]])))
    with pytest.raises(DynamicRangeError):  # the small entry is all that counts here, and would be lost
        Scaled(Dense(np.diag([1e-150, 1.0]))) @ np.array([1e-200, 1.0])


@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 6), min_size=3, max_size=3))
def test_pattern_counts_what_a_loop_counts(seed, sizes):
    rng = np.random.default_rng(seed)
    right, left = (rng.random((m, n)) < 0.5 for m, n in zip(sizes[1:], sizes, strict=False))
    costs = []
    a, b = (Pattern(CSRPattern.of(sparse.csr_array(each)), costs) for each in (right, left))
    structure, multiply_adds = naive.pattern_product(left.tolist(), right.tolist())
    assert dense_pattern(diamond(a, b).structure) == structure
    diamond(Pattern(None, costs), a)
    assert costs == [("mm", multiply_adds, int(np.sum(structure))), ("mv", right.sum(), len(right))]
    assert all(isinstance(number, int) for cost in costs for number in cost[1:])


def test_traced_refuses_what_is_not_in_order():
    log = []
    gradient, first, third = Traced("vector", (0, 0), log), Traced("matrix", (1, 1), log), Traced("matrix", (3, 3), log)
    for wrong in ((first, gradient), (first, third), (third, first), (first, first)):
        with pytest.raises(ValueError, match="not a product of neighbors in order"):
            diamond(*wrong)
    with pytest.raises(ValueError, match=r"vector\[1\]"):
        diamond(Traced("matrix", (0, 0), log), Traced("vector", (1, 1), log))
