import naive_sparse as naive
import numpy as np
import pytest
from draws import filters, poolings, spread
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse as scipy_sparse
from texts import beside, refuses

from bppsa_nb import sparse
from bppsa_nb.machine import memory
from bppsa_nb.networks import jacobians
from bppsa_nb.sparse import AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sigmoid, Tanh

DTYPES = [np.float32, np.float64]


@st.composite
def convolutions(draw):
    """Weight and input shapes with the options of a convolution that fits, of all kinds, not square."""
    inputs, outputs, size, kernel, options = draw(filters())
    return (outputs, inputs, *kernel), (inputs, *size), options, draw(st.integers(0, 2**16))


# -- Equal to numerical Jacobians --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1.0, 0.4])
@given(case=convolutions())
def test_convolution_equals_pushing_one_input_after_the_other(case, kept):
    shape, input_shape, options, seed = case
    rng = np.random.default_rng(seed)
    weight = spread(rng, shape) * (rng.random(shape) <= kept)
    operator = Conv2d("op", shape[1], shape[0], shape[2:], **options)
    found = operator.jacobian_T(spread(rng, input_shape), weight)
    # Linear: the difference quotient is exact with any step.
    expected = naive.jacobian_T(lambda x: naive.conv2d(x, weight, *options.values()), np.zeros(input_shape), 1.0)
    np.testing.assert_array_equal(found.toarray(), expected)
    assert found.nnz == np.count_nonzero(expected)  # no entry is stored that is always zero or pruned
    assert isinstance(found, scipy_sparse.csr_array) and found.has_sorted_indices
    assert found.indices.dtype == found.indptr.dtype == np.int32


@pytest.mark.parametrize("kept", [1.0, 0.3])
@pytest.mark.parametrize("shape", [(1, 1), (4, 7), (6, 3)])
def test_linear_is_the_transposed_weight(shape, kept):
    rng = np.random.default_rng(0)
    weight = spread(rng, shape) * (rng.random(shape) <= kept)
    found = Linear("op", *shape[::-1]).jacobian_T(spread(rng, shape[1:]), weight)
    expected = naive.jacobian_T(lambda x: naive.linear(x, weight), np.zeros(shape[1]), 1.0)
    np.testing.assert_array_equal(found.toarray(), expected)
    assert found.nnz == np.count_nonzero(weight)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
@pytest.mark.parametrize("kind", [ReLU, Tanh, Sigmoid])
def test_elementwise_functions_equal_difference_quotients(kind, shape):
    x = 3 * spread(np.random.default_rng(0), shape)
    found = kind("op").jacobian_T(x)
    expected = naive.jacobian_T(lambda x: naive.elementwise(x, kind.__name__.lower()), x, 1e-6)
    np.testing.assert_allclose(found.toarray(), expected, atol=1e-9)
    assert found.nnz == x.size


def test_saturated_units_have_no_slope():
    for operator in Tanh("op"), Sigmoid("op"):
        assert not operator.jacobian_T(np.array([-1e3, 1e3])).toarray().any()


@given(poolings())
def test_max_pooling_equals_difference_quotients(case):
    shape, kernel, stride, seed = case
    x = spread(np.random.default_rng(seed), shape)
    found = MaxPool2d("op", kernel, stride).jacobian_T(x)
    expected = naive.jacobian_T(lambda x: naive.max_pool2d(x, kernel, stride or kernel), x, 1e-6)
    np.testing.assert_allclose(found.toarray(), expected, atol=1e-9)
    # Where it may be non-zero: wherever an average is.
    window = naive.jacobian_T(lambda x: naive.avg_pool2d(x, kernel, stride or kernel), x, 1.0) != 0
    np.testing.assert_array_equal(sparse.kinds_of_zeros(found) > 0, window)
    assert found.nnz == np.count_nonzero(window) and found.has_sorted_indices


@given(poolings())
def test_average_pooling_equals_difference_quotients(case):
    shape, kernel, stride, seed = case
    found = AvgPool2d("op", kernel, stride).jacobian_T(spread(np.random.default_rng(seed), shape))
    expected = naive.jacobian_T(lambda x: naive.avg_pool2d(x, kernel, stride or kernel), np.zeros(shape), 1.0)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
    assert found.nnz == np.count_nonzero(expected) and found.has_sorted_indices


def test_flattening_is_the_identity():
    np.testing.assert_array_equal(Flatten("op").jacobian_T(np.zeros((2, 3, 2))).toarray(), np.eye(12))


def test_relu_is_flat_at_zero():
    operator, x = ReLU("op"), np.array([-1.0, -0.0, 0.0, 1e-300, 2.0])
    backward = operator.backward(np.ones((1, 5)), x[None], operator.forward(x[None]))
    np.testing.assert_array_equal([operator.jacobian_T(x).data, *backward], [[0, 0, 0, 1, 1]] * 2)


@pytest.mark.peers
def test_equal_to_torch():
    import torch

    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (3, 7, 9)).astype(float)  # with ties and zeros
    weight, options = rng.standard_normal((4, 3, 3, 2)), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
    tensor, F = torch.from_numpy, torch.nn.functional
    for operator, function in (
        (Conv2d("op", 3, 4, (3, 2), **options), lambda x: F.conv2d(x, tensor(weight), **options)),
        (MaxPool2d("op", (2, 3), stride=1), lambda x: F.max_pool2d(x, (2, 3), stride=1)),
        (AvgPool2d("op", (3, 2)), lambda x: F.avg_pool2d(x, (3, 2))),
        *((ReLU("op"), torch.relu), (Tanh("op"), torch.tanh), (Sigmoid("op"), torch.sigmoid)),
    ):
        found = operator.jacobian_T(x, weight if operator.param_shapes else None)
        expected = torch.autograd.functional.jacobian(function, tensor(x)).numpy().reshape(found.shape[::-1]).T
        np.testing.assert_allclose(found.toarray(), expected, atol=1e-6)


# -- The paper's numbers -----------------------------------------------------------------------------------------------


def test_sparsity_and_sizes_of_the_first_operators_of_vgg_11():
    operators = {
        0.99157: Conv2d("op", 3, 64, 3, padding=1).jacobian((3, 32, 32)),
        0.99998: ReLU("op").jacobian((64, 32, 32)),
        0.99994: MaxPool2d("op", 2).jacobian((64, 32, 32)),
    }
    for sparsity, jacobian in operators.items():
        assert round(jacobian.pattern.sparsity, 5) == sparsity
    convolution = operators[0.99157]
    assert np.prod(convolution.pattern.shape) * 4 == 768 * 2**20
    values = convolution.fill(np.random.default_rng(0).standard_normal((64, 3, 3, 3)).astype(np.float32))
    assert round(values.nbytes / 2**20, 1) == 6.5
    # The paper's own arrays have 3 w (3 h - 2) entries per pair of channels; ours leave out those beyond the borders.
    assert convolution.pattern.nnz == 94 * 94 * 3 * 64 < 3 * 32 * (3 * 32 - 2) * 3 * 64


# -- Objects that keep the pattern -------------------------------------------------------------------------------------


def operators():
    plane = (2, 6, 5)
    return {
        "convolution": (Conv2d("op", 2, 3, 3, padding=1).jacobian(plane), (3, 2, 3, 3)),
        "linear": (Linear("op", 5, 4).jacobian((5,)), (4, 5)),
        **{kind.__name__.lower(): (kind("op").jacobian(plane), plane) for kind in (ReLU, Tanh, Sigmoid)},
        "max": (MaxPool2d("op", 2).jacobian(plane), plane),
        "overlapping max": (MaxPool2d("op", 3, stride=2).jacobian(plane), plane),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", operators())
def test_values_are_written_where_told(name, dtype):
    operator, shape = operators()[name]
    source = np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(dtype)
    fresh = operator.fill(source)
    assert fresh.shape == (operator.pattern.nnz,) and fresh.dtype == dtype
    out = np.full(operator.pattern.nnz, np.nan, dtype)
    assert operator.fill(np.asfortranarray(source), out) is out
    np.testing.assert_array_equal(out, fresh)


@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid", "max", "overlapping max"])
def test_samples_of_a_batch_share_the_pattern(name):
    operator, shape = operators()[name]
    x = np.random.default_rng(0).uniform(0, 1, (3, *shape))
    x[:, :, ::2] *= -1 if name in ("relu", "max") else 1
    out = np.full((3, operator.pattern.nnz), np.nan)
    assert operator.fill(x, out) is out
    np.testing.assert_array_equal(out, [operator.fill(sample) for sample in x])


def test_threads_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, 3, 3, 3))
    x = rng.standard_normal((2, 4, 9, 9))

    def everything():
        convolution = Conv2d("op", 3, 4, 3, padding=1).jacobian((3, 9, 9), weight > -1)
        dense = Linear("op", 9, 12).jacobian((9,), weight.reshape(12, 9) > -1)
        pools = [MaxPool2d("op", size, stride=2).jacobian((4, 9, 9)) for size in (2, 3)]
        kept = np.where(weight > -1, weight, 0)
        filled = convolution.fill(kept), dense.fill(kept.reshape(12, 9)), *(pool.fill(x) for pool in pools)
        return [convolution.pattern.indices, *filled]

    alone = everything()
    monkeypatch.setattr(jacobians, "_THRESHOLD", 0)
    for found, expected in zip(everything(), alone, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_mask_keeps_weights_that_happen_to_be_zero():
    rng = np.random.default_rng(0)
    mask = rng.random((3, 2, 3, 3)) < 0.5
    operator = Conv2d("op", 2, 3, 3, padding=1)
    convolution = operator.jacobian((2, 4, 5), mask)
    weight = np.where(mask, rng.standard_normal(mask.shape), 0)
    full = convolution.pattern.matrix(convolution.fill(weight)).toarray()
    np.testing.assert_array_equal(full, operator.jacobian_T(np.zeros((2, 4, 5)), weight).toarray())
    assert convolution.pattern.nnz == np.count_nonzero(full)
    weight[np.nonzero(mask)[0][0]] = 0  # trained to zero, but not pruned
    kinds = sparse.kinds_of_zeros(convolution.pattern.matrix(convolution.fill(weight)))
    np.testing.assert_array_equal(kinds > 0, full != 0)
    assert np.count_nonzero(kinds == 1) > 0


def test_constant_values():
    average, flatten = AvgPool2d("op", (2, 3)), Flatten("op")
    pool = average.jacobian((2, 4, 6))
    for dtype in DTYPES:
        out = np.empty(48, dtype)
        assert pool.fill(dtype, out) is out and set(out) == {dtype(1 / 6)}
        for operator, value in ((average, 1 / 6), (flatten, 1)):
            found = operator.jacobian_T(np.zeros((2, 4, 6), dtype))
            assert found.dtype == dtype and set(found.data) == {dtype(value)}
    assert (pool.output_shape, pool.pattern.shape) == ((2, 2, 2), (48, 8))


def test_kinds_of_zeros_are_told_apart():
    found = sparse.kinds_of_zeros(ReLU("op").jacobian_T(np.array([1.0, -1.0, 2.0])))
    np.testing.assert_array_equal(found, [[2, 0, 0], [0, 1, 0], [0, 0, 2]])
    assert found.dtype == np.int8


# -- Errors ------------------------------------------------------------------------------------------------------------

WEIGHT = np.ones((2, 3, 3, 3))


def test_what_cannot_be_filled_is_named():
    operator, mask = Conv2d("op", 3, 2, 3), np.arange(54).reshape(2, 3, 3, 3) != 4
    convolution, relu, tanh, sigmoid = operator.jacobian((3, 4, 4), mask), *(
        kind("op").jacobian((2, 3)) for kind in (ReLU, Tanh, Sigmoid)
    )
    spoiled = np.where(convolution.mask, WEIGHT, 0)
    spoiled[1, 2, 2, 0] = np.nan
    good, wide = np.ones((2, 3)), np.empty(12)[::2]
    for text, message in beside(__file__)["filled"]:
        refuses(text, message, globals() | locals())


def test_too_little_memory_is_an_error_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**20)
    relu = ReLU("op").jacobian((10,))
    for text, message in beside(__file__)["memory"]:
        refuses(text, message, globals() | locals())


def test_indices_that_need_more_than_32_bits_are_an_error():
    with pytest.raises(ValueError, match=r"less than 2\*\*31 entries, got \(1, 65536, 32768\)"):
        Conv2d("op", 1, 1, 1).jacobian((1, 2**16, 2**15))
