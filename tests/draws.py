"""What tests of sparse Jacobians and of operators draw at random."""

import numpy as np
from hypothesis import strategies as st


def spread(rng, shape):
    """Numbers in random order, none of them close to another or to zero."""
    size = int(np.prod(shape))
    return (rng.permutation(size) + 0.5 - size // 2).reshape(shape) / size


def pairs(low, high):
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def poolings(draw):
    """An input shape with a window and a stride that fit, and a seed."""
    kernel, stride = draw(st.one_of(pairs(1, 2), pairs(1, 4))), draw(st.one_of(st.none(), pairs(1, 4)))
    size = [draw(st.integers(k, k + 5)) for k in kernel]
    return (draw(st.integers(1, 3)), *size), kernel, stride, draw(st.integers(0, 2**16))


@st.composite
def filters(draw):
    """Channels in and out, a size, a kernel and options of a convolution that fits, of all kinds, not square."""
    kernel, stride, padding, dilation = draw(pairs(1, 3)), draw(pairs(1, 3)), draw(pairs(0, 2)), draw(pairs(1, 2))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, p, d in zip(kernel, padding, dilation, strict=True)]
    size = [draw(st.integers(n, n + 3)) for n in least]
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    return draw(st.integers(1, 3)), draw(st.integers(1, 3)), size, kernel, options
