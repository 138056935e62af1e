"""Arrays of other libraries: what is taken, and given back in kind."""

import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.machine import foreign

T, B, H = 7, 3, 4


class Lent:
    """An array of a library that NumPy has never heard of, on the host by default."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)


def problem(dtype=np.float32):
    rng = np.random.default_rng(0)
    jacobians_T = rng.uniform(-1, 1, (T, B, H, H)).astype(dtype)
    return jacobians_T, rng.standard_normal((B, H)).astype(dtype), rng.standard_normal((T + 1, B, H)).astype(dtype)


def test_numpy_stays_numpy():
    array = np.ones(3)
    assert foreign.taken("array", array) is array is foreign.returned(array, np.ones(2))
    assert foreign.taken("array", None) is None


def test_memory_is_shared():
    array = np.arange(3.0)
    found = foreign.taken("array", Lent(array))
    assert type(found) is np.ndarray and np.shares_memory(found, array)


def test_a_library_without_a_way_back_is_named():
    _, grad_output, _ = problem()
    with pytest.raises(TypeError, match="results cannot be given to tests: it has no from_dlpack"):
        foreign.returned(grad_output, Lent(grad_output))


def test_what_numpy_cannot_read_is_named():
    with pytest.raises(TypeError, match=r"jacobians_T\[1\] must be an array that NumPy can read"):
        foreign.taken("jacobians_T", [np.ones((2, 2)), Lent(np.ones(2, object))])


def test_memory_of_another_device_is_left_alone():
    array = Lent(np.ones(3), device=2)
    assert foreign.taken("array", array) is array
    with pytest.raises(TypeError, match="got Lent"):
        bp.backprop(array, np.ones((1, 2)))


def lend(library):
    """Return what makes arrays of a library, and what takes them back."""
    if library == "torch":
        import torch

        return torch.from_numpy, torch.Tensor
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax.numpy.asarray, jax.Array


@pytest.mark.peers
@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("method", ["auto", "linear", "blelloch", "chunked"])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_they_come_back_in_kind(dtype, backend, method, library):
    make, kind = lend(library)
    arrays = problem(dtype)
    how = {"method": method, "backend": backend}
    expected = bp.backprop(*arrays[:2], local_grads=arrays[2], **how)
    chain, end, terms = map(make, arrays)
    found = bp.backprop(chain, end, local_grads=terms, **how)
    assert isinstance(found, kind)
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert type(bp.backprop(chain, arrays[1], **how)) is np.ndarray  # in the library of grad_output
    for found in bp.backprop(list(chain), end, local_grads=list(terms), method="linear"):
        assert isinstance(found, kind)


@pytest.mark.peers
def test_tensors_that_require_gradients_say_what_to_do():
    import torch

    with pytest.raises(TypeError, match="grad_output must be .* torch's: .* use tensor.detach()"):
        bp.backprop(problem()[0], torch.ones(B, H, requires_grad=True))


@pytest.mark.peers
@pytest.mark.parametrize("what", ["nowhere", "sparse", "half"])
def test_tensors_that_cannot_be_read_are_named(what):
    import torch

    make = {
        "nowhere": lambda tensor: tensor.to("meta"),
        "sparse": lambda tensor: tensor.to_sparse_coo(),
        "half": lambda tensor: tensor.bfloat16(),
    }[what]
    with pytest.raises(TypeError, match="grad_output must be an array that NumPy can read, got torch's: "):
        bp.backprop(problem()[0], make(torch.ones(B, H)))
