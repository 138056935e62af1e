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
    found = sparse.conv2d_jacobian_T(weight, input_shape, **options)
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
    found = sparse.linear_jacobian_T(weight)
    expected = naive.jacobian_T(lambda x: naive.linear(x, weight), np.zeros(shape[1]), 1.0)
    np.testing.assert_array_equal(found.toarray(), expected)
    assert found.nnz == np.count_nonzero(weight)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid"])
def test_elementwise_functions_equal_difference_quotients(name, shape):
    x = 3 * spread(np.random.default_rng(0), shape)
    given = x if name == "relu" else naive.elementwise(x, name)
    found = getattr(sparse, f"{name}_jacobian_T")(given)
    expected = naive.jacobian_T(lambda x: naive.elementwise(x, name), x, 1e-6)
    np.testing.assert_allclose(found.toarray(), expected, atol=1e-9)
    assert found.nnz == x.size


def test_saturated_units_have_no_slope():
    assert not sparse.tanh_jacobian_T(np.array([-1.0, 1.0])).toarray().any()
    assert not sparse.sigmoid_jacobian_T(np.array([0.0, 1.0])).toarray().any()


@given(poolings())
def test_max_pooling_equals_difference_quotients(case):
    shape, kernel, stride, seed = case
    x = spread(np.random.default_rng(seed), shape)
    found = sparse.max_pool2d_jacobian_T(x, kernel, stride=stride)
    expected = naive.jacobian_T(lambda x: naive.max_pool2d(x, kernel, stride or kernel), x, 1e-6)
    np.testing.assert_allclose(found.toarray(), expected, atol=1e-9)
    # Where it may be non-zero: wherever an average is.
    window = naive.jacobian_T(lambda x: naive.avg_pool2d(x, kernel, stride or kernel), x, 1.0) != 0
    np.testing.assert_array_equal(sparse.kinds_of_zeros(found) > 0, window)
    assert found.nnz == np.count_nonzero(window) and found.has_sorted_indices


@given(poolings())
def test_average_pooling_equals_difference_quotients(case):
    shape, kernel, stride, _ = case
    found = sparse.avg_pool2d_jacobian_T(shape, kernel, stride=stride)
    expected = naive.jacobian_T(lambda x: naive.avg_pool2d(x, kernel, stride or kernel), np.zeros(shape), 1.0)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
    assert found.nnz == np.count_nonzero(expected) and found.has_sorted_indices


def test_flattening_is_the_identity():
    np.testing.assert_array_equal(sparse.flatten_jacobian_T((2, 3, 2)).toarray(), np.eye(12))
    assert jacobians.Flatten((2, 3, 2)).output_shape == (12,)


def test_relu_is_flat_at_zero():
    found = sparse.relu_jacobian_T(np.array([-1.0, -0.0, 0.0, 1e-300, 2.0]))
    np.testing.assert_array_equal(found.data, [0, 0, 0, 1, 1])


@pytest.mark.peers
def test_equal_to_torch():
    import torch

    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (3, 7, 9)).astype(float)  # with ties and zeros
    weight, options = rng.standard_normal((4, 3, 3, 2)), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
    tensor, F = torch.from_numpy, torch.nn.functional
    for found, function in (
        (sparse.conv2d_jacobian_T(weight, x.shape, **options), lambda x: F.conv2d(x, tensor(weight), **options)),
        (sparse.max_pool2d_jacobian_T(x, (2, 3), stride=1), lambda x: F.max_pool2d(x, (2, 3), stride=1)),
        (sparse.avg_pool2d_jacobian_T(x.shape, (3, 2), dtype=float), lambda x: F.avg_pool2d(x, (3, 2))),
        (sparse.relu_jacobian_T(x), torch.relu),
    ):
        expected = torch.autograd.functional.jacobian(function, tensor(x)).numpy().reshape(found.shape[::-1]).T
        np.testing.assert_allclose(found.toarray(), expected, atol=1e-6)


# -- The paper's numbers -----------------------------------------------------------------------------------------------


def test_sparsity_and_sizes_of_the_first_operators_of_vgg_11():
    operators = {
        0.99157: jacobians.Convolution(np.ones((64, 3, 3, 3), bool), (3, 32, 32), padding=1),
        0.99998: jacobians.ReLU((64, 32, 32)),
        0.99994: jacobians.MaxPool2d((64, 32, 32), 2),
    }
    for sparsity, operator in operators.items():
        assert round(operator.pattern.sparsity, 5) == sparsity
    convolution = operators[0.99157]
    assert np.prod(convolution.pattern.shape) * 4 == 768 * 2**20
    values = convolution.fill(np.random.default_rng(0).standard_normal((64, 3, 3, 3)).astype(np.float32))
    assert round(values.nbytes / 2**20, 1) == 6.5
    # The paper's own arrays have 3 w (3 h - 2) entries per pair of channels; ours leave out those beyond the borders.
    assert convolution.pattern.nnz == 94 * 94 * 3 * 64 < 3 * 32 * (3 * 32 - 2) * 3 * 64


# -- Objects that keep the pattern -------------------------------------------------------------------------------------


def operators():
    rng = np.random.default_rng(0)
    return {
        "convolution": (jacobians.Convolution(np.ones((3, 2, 3, 3), bool), (2, 6, 5), padding=1), (3, 2, 3, 3)),
        "linear": (jacobians.Linear(rng.random((4, 5)) < 2), (4, 5)),
        "relu": (jacobians.ReLU((2, 6, 5)), (2, 6, 5)),
        "tanh": (jacobians.Tanh((2, 6, 5)), (2, 6, 5)),
        "sigmoid": (jacobians.Sigmoid((2, 6, 5)), (2, 6, 5)),
        "max": (jacobians.MaxPool2d((2, 6, 5), 2), (2, 6, 5)),
        "overlapping max": (jacobians.MaxPool2d((2, 6, 5), 3, stride=2), (2, 6, 5)),
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
        convolution = jacobians.Convolution(weight > -1, (3, 9, 9), padding=1)
        dense = jacobians.Linear(weight.reshape(12, 9) > -1)
        pools = [jacobians.MaxPool2d((4, 9, 9), size, stride=2) for size in (2, 3)]
        return [
            convolution.pattern.indices,
            convolution.fill(np.where(weight > -1, weight, 0)),
            dense.fill(np.where(weight > -1, weight, 0).reshape(12, 9)),
            jacobians.ReLU((4, 9, 9)).fill(x),
            *(pool.fill(x) for pool in pools),
        ]

    alone = everything()
    monkeypatch.setattr(jacobians, "_THRESHOLD", 0)
    for found, expected in zip(everything(), alone, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_mask_keeps_weights_that_happen_to_be_zero():
    rng = np.random.default_rng(0)
    mask = rng.random((3, 2, 3, 3)) < 0.5
    convolution = jacobians.Convolution(mask, (2, 4, 5), padding=1)
    weight = np.where(mask, rng.standard_normal(mask.shape), 0)
    full = convolution.pattern.matrix(convolution.fill(weight)).toarray()
    np.testing.assert_array_equal(full, sparse.conv2d_jacobian_T(weight, (2, 4, 5), padding=1).toarray())
    assert convolution.pattern.nnz == np.count_nonzero(full)
    weight[np.nonzero(mask)[0][0]] = 0  # trained to zero, but not pruned
    kinds = sparse.kinds_of_zeros(convolution.pattern.matrix(convolution.fill(weight)))
    np.testing.assert_array_equal(kinds > 0, full != 0)
    assert np.count_nonzero(kinds == 1) > 0


def test_constant_values():
    pool = jacobians.AvgPool2d((2, 4, 6), (2, 3))
    for dtype in DTYPES:
        out = np.empty(48, dtype)
        assert pool.fill(dtype, out) is out and set(out) == {dtype(1 / 6)}
        assert set(jacobians.Flatten((2, 3)).fill(dtype)) == {dtype(1)}
        average = sparse.avg_pool2d_jacobian_T((2, 4, 6), (2, 3), dtype=dtype)
        assert average.dtype == dtype and set(average.data) == {dtype(1 / 6)}
        identity = sparse.flatten_jacobian_T((2, 3), dtype=dtype)
        assert identity.dtype == dtype and set(identity.data) == {dtype(1)}
    assert sparse.avg_pool2d_jacobian_T((2, 4, 6), 2).dtype == sparse.flatten_jacobian_T((2, 3)).dtype == np.float32
    assert (pool.output_shape, pool.pattern.shape) == ((2, 2, 2), (48, 8))


def test_kinds_of_zeros_are_told_apart():
    found = sparse.kinds_of_zeros(sparse.relu_jacobian_T(np.array([1.0, -1.0, 2.0])))
    np.testing.assert_array_equal(found, [[2, 0, 0], [0, 1, 0], [0, 0, 2]])
    assert found.dtype == np.int8


# -- Errors ------------------------------------------------------------------------------------------------------------

WEIGHT = np.ones((2, 3, 3, 3))


def test_what_cannot_be_filled_is_named():
    convolution, relu = jacobians.Convolution(np.arange(54).reshape(2, 3, 3, 3) != 4, (3, 4, 4)), jacobians.ReLU((2, 3))
    spoiled = np.where(convolution.mask, WEIGHT, 0)
    spoiled[1, 2, 2, 0] = np.nan
    good, wide = np.ones((2, 3)), np.empty(12)[::2]
    for text, message in beside(__file__)["filled"]:
        refuses(text, message, globals() | locals())


def test_too_little_memory_is_an_error_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**20)
    mask, relu = np.ones((64, 3, 3, 3), bool), jacobians.ReLU((10,))
    for text, message in beside(__file__)["memory"]:
        refuses(text, message, globals() | locals())


def test_indices_that_need_more_than_32_bits_are_an_error():
    with pytest.raises(ValueError, match=r"less than 2\*\*31 entries, got \(1, 65536, 32768\)"):
        jacobians.Convolution(np.ones((1, 1, 1, 1), bool), (1, 2**16, 2**15))
