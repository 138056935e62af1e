import naive_sparse as naive
import numpy as np
import pytest
from draws import filters, poolings, spread
from hypothesis import given
from hypothesis import strategies as st

from bppsa_nb.sparse import AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sigmoid, Tanh

EACH = [
    (Conv2d("op", 2, 3, (2, 3), stride=(2, 1), padding=(0, 2), dilation=(1, 2)), (2, 5, 4)),
    (Conv2d("op", 3, 2, 3, padding=1), (3, 4, 4)), (Linear("op", 6, 4), (6,)), (ReLU("op"), (2, 3, 4)),
    (Tanh("op"), (5,)), (Sigmoid("op"), (2, 3, 1)), (MaxPool2d("op", 2), (2, 5, 4)),
    (MaxPool2d("op", (3, 2), (2, 1)), (2, 6, 4)), (MaxPool2d("op", (1, 3), 1), (1, 4, 7)),
    (MaxPool2d("op", 1), (2, 2, 3)), (AvgPool2d("op", (2, 3)), (2, 4, 6)), (AvgPool2d("op", 3, 1), (1, 5, 4)),
]
each_operator = pytest.mark.parametrize("operator, shape", EACH, ids=lambda value: repr(value))


@st.composite
def convolutions(draw):
    inputs, outputs, size, kernel, options = draw(filters())
    return Conv2d("op", inputs, outputs, kernel, **options), (inputs, *size), draw(st.integers(0, 99))


def check(operator, shape, oracle, seed, step, batch=3, tolerance=1e-12):
    """Compare forward, backward and parameter gradients with a function of one sample and its difference quotients."""
    rng = np.random.default_rng(seed)
    x, params = spread(rng, (batch, *shape)), [spread(rng, s) for s in operator.param_shapes.values()]
    y = operator.forward(x, *params)
    expected = np.stack([oracle(sample, *params) for sample in x])
    assert y.shape == (batch, *operator.output_shape(shape))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)
    grad = rng.standard_normal(y.shape)
    found = operator.backward(grad, x, y, *params)
    assert found.shape == x.shape
    flat = grad.reshape(batch, -1)
    jacobians_T = [naive.jacobian_T(lambda x: oracle(x, *params), sample, step) for sample in x]
    for b in range(batch):
        np.testing.assert_allclose(found[b].reshape(-1), jacobians_T[b] @ flat[b], rtol=0, atol=tolerance)
    found = operator.parameter_gradients(grad, x)
    assert len(found) == len(params)
    for k, param in enumerate(params):
        expected = 0
        for sample, g in zip(x, flat, strict=True):
            moved = lambda value, k=k, s=sample: oracle(s, *params[:k], value, *params[k + 1 :])  # noqa: E731
            expected = expected + naive.jacobian_T(moved, param, step) @ g
        np.testing.assert_allclose(found[k].reshape(-1), expected, rtol=0, atol=tolerance)


@given(convolutions())
def test_convolution_equals_the_oracle(case):
    operator, shape, seed = case
    options = operator.stride, operator.padding, operator.dilation
    oracle = lambda x, weight, bias: naive.conv2d(x, weight, *options) + bias[:, None, None]  # noqa: E731
    check(operator, shape, oracle, seed, step=1.0)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_linear_equals_the_oracle(inputs, outputs, seed):
    oracle = lambda x, weight, bias: naive.linear(x, weight) + bias  # noqa: E731
    check(Linear("op", inputs, outputs), (inputs,), oracle, seed, step=1.0)


@given(poolings())
def test_max_pooling_equals_the_oracle(case):
    shape, kernel, stride, seed = case
    operator = MaxPool2d("op", kernel, stride)
    oracle = lambda x: naive.max_pool2d(x, operator.kernel_size, operator.stride)  # noqa: E731
    check(operator, shape, oracle, seed, step=1e-6, tolerance=1e-8)


@given(poolings())
def test_average_pooling_equals_the_oracle(case):
    shape, kernel, stride, seed = case
    operator = AvgPool2d("op", kernel, stride)
    check(operator, shape, lambda x: naive.avg_pool2d(x, operator.kernel_size, operator.stride), seed, step=1.0)


@pytest.mark.parametrize("kind", [ReLU, Tanh, Sigmoid])
@pytest.mark.parametrize("shape", [(4,), (2, 3, 2)])
def test_elementwise_functions_equal_the_oracle(kind, shape):
    oracle = lambda x: naive.elementwise(x, kind.__name__.lower())  # noqa: E731
    check(kind("op"), shape, oracle, 0, step=1e-6, tolerance=1e-8)


def test_flatten_keeps_the_order():
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 5))
    operator = Flatten("op")
    y = operator.forward(x)
    np.testing.assert_array_equal(y, x.reshape(3, -1))
    np.testing.assert_array_equal(operator.backward(y, x, y), x)
    assert operator.output_shape((2, 4, 5)) == (40,)


@pytest.mark.parametrize("kernel, stride", [(2, 2), (3, 1), (2, 3)])
def test_of_equal_entries_the_first_has_the_gradient(kernel, stride):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (4, 2, 7, 6)).astype(float)
    operator = MaxPool2d("op", kernel, stride)
    y = operator.forward(x)
    grad = rng.standard_normal(y.shape)
    expected = np.zeros_like(x)
    for b in range(len(x)):
        for (c, i, j), values in naive.windows(x[b], (kernel, kernel), (stride, stride)).items():
            first = values.index(max(values))
            expected[b, c, i * stride + first // kernel, j * stride + first % kernel] += grad[b, c, i, j]
    np.testing.assert_allclose(operator.backward(grad, x, y), expected, atol=1e-14)


def layouts(x):
    """The same array as it lies in memory in different ways."""
    first = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0)
    gaps = np.repeat(x, 2, axis=-1)[..., ::2]
    return [x, first, gaps, x[::-1].copy()[::-1]]


@each_operator
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_layouts_and_dtypes_make_no_difference(operator, shape, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, *shape)).astype(dtype)
    params = [rng.standard_normal(s).astype(dtype) for s in operator.param_shapes.values()]
    y = operator.forward(x, *params)
    grad = rng.standard_normal(y.shape).astype(dtype)
    before = [array.copy() for array in (x, y, grad, *params)]
    expected = [y, operator.backward(grad, x, y, *params), *operator.parameter_gradients(grad, x)]
    for a, b, c in zip(layouts(x), layouts(y), layouts(grad), strict=True):
        found = [operator.forward(a, *params), operator.backward(c, a, b, *params)]
        for one, other in zip([*found, *operator.parameter_gradients(c, a)], expected, strict=True):
            assert one.dtype == dtype
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    for array, copy in zip((x, y, grad, *params), before, strict=True):
        np.testing.assert_array_equal(array, copy)


@each_operator
def test_jacobians_are_those_of_backward(operator, shape):
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 2, (4, *shape)).astype(float)  # as after ReLU, nearly every window has a tie
    params = [rng.standard_normal(s) for s in operator.param_shapes.values()]
    y = operator.forward(x, *params)
    grad = rng.standard_normal(y.shape)
    jacobian = operator.jacobian(shape)
    assert jacobian.output_shape == operator.output_shape(shape)
    values = np.atleast_2d(jacobian.fill(operator.source(x, y, *params)))
    assert len(values) == (1 if operator.shared else 4)
    expected = operator.backward(grad, x, y, *params)
    for b in range(4):
        found = jacobian.pattern.matrix(values[b % len(values)]) @ grad[b].reshape(-1)
        np.testing.assert_allclose(found, expected[b].reshape(-1), atol=1e-12)
