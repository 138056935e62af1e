"""Arrays of other libraries: what is taken, and given back in kind."""

import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.machine import memory

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
    assert memory.as_numpy("array", array) is array is memory.converter_to("array", np.ones(2))(array)
    assert memory.as_numpy("array", None) is None


def test_memory_is_shared():
    array = np.arange(3.0)
    found = memory.as_numpy("array", Lent(array))
    assert type(found) is np.ndarray and np.shares_memory(found, array)


def test_a_library_without_a_way_back_is_named_before_anything_is_computed(monkeypatch):
    jacobians_T, grad_output, _ = problem()
    monkeypatch.setattr("bppsa_nb.chains.backprop._backprop", None)
    message = "grad_output must be of a library that takes results back, got tests's: no from_dlpack"
    with pytest.raises(TypeError, match=message):
        bp.backprop(jacobians_T, Lent(grad_output))


def test_tuples_are_taken_as_lists_are():
    jacobians_T, grad_output, local_grads = (array[:, 0] if array.ndim > 2 else array[0] for array in problem())
    expected = bp.backprop(list(jacobians_T), grad_output, local_grads=list(local_grads))
    found = bp.backprop(tuple(map(Lent, jacobians_T)), grad_output, local_grads=tuple(map(Lent, local_grads)))
    np.testing.assert_array_equal(found, expected)


def test_tensors_on_a_gpu_are_looked_at_as_those_on_the_host():
    from bppsa_nb.machine import arrays_cuda

    class Nowhere:
        __cuda_array_interface__ = {"shape": (2,), "typestr": "<f4"}
        numel, data_ptr, resolve_neg = lambda self: 2, lambda self: 0, None

    with pytest.raises(TypeError, match="x must be an array that Numba can read: a Nowhere has no memory of its own"):
        arrays_cuda.as_device_array("x", Nowhere())


def test_what_numpy_cannot_read_is_named():
    with pytest.raises(TypeError, match=r"jacobians_T\[1\] must be an array that NumPy can read"):
        memory.as_numpy("jacobians_T", [np.ones((2, 2)), Lent(np.ones(2, object))])


def test_memory_of_another_device_is_left_alone():
    array = Lent(np.ones(3), device=2)
    assert memory.as_numpy("array", array) is array
    with pytest.raises(TypeError, match="got .*Lent"):
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
def test_tensors_that_cannot_be_read_are_named():
    import torch

    tensor, read = torch.ones(B, H), "an array that NumPy can read, got torch's: "
    for wrong, said in (
        (tensor.clone().requires_grad_(), ".* use tensor.detach()"),
        (torch._efficientzerotensor((B, H)), "a Tensor has no memory of its own"), (tensor.to("meta"), ""),
        (tensor.to_sparse_coo(), ""), (tensor.bfloat16(), ""),
    ):
        with pytest.raises(TypeError, match=f"grad_output must be {read}{said}"):
            bp.backprop(problem()[0], wrong)


@pytest.mark.peers
def test_an_array_of_jax_that_was_deleted_is_said_to_be():
    import jax

    (jacobians_T, grad_output, _), gone = problem(), jax.numpy.ones((B, H))
    gone.delete()
    for name, call in {
        "grad_output": lambda: bp.backprop(jacobians_T, gone), "dtype": lambda: bp.RNN(2, 3, 4, dtype=gone),
        r"local_grads\[1\]": lambda: bp.backprop(jacobians_T, grad_output, local_grads=[grad_output, gone]),
        "h0": lambda: bp.unroll(lambda h, x: h, gone, np.ones((2, B, 1))),
        "rng": lambda: bp.RNN(2, 3, 4, rng=gone),
    }.items():
        with pytest.raises(TypeError, match=f"{name} must be ((?!deleted).)*(was|has been) deleted((?!deleted).)*$"):
            call()


@pytest.mark.peers
@pytest.mark.parametrize("method", ["linear", "blelloch"])
def test_signs_that_pytorch_has_put_off_are_heard(method):
    import torch

    lazy = torch.tensor([[1 + 2j, 3 + 4j]], dtype=torch.complex64).conj().imag
    ours = {"jacobians_T": torch.eye(2)[None], "grad_output": lazy.resolve_neg(), "local_grads": torch.ones(2, 1, 2)}
    assert lazy.is_neg() and bp.backprop(ours["jacobians_T"], lazy, method=method).tolist() == [[[-2, -4]]] * 2
    for name, array in ours.items():
        late = ours | {name: torch.complex(array, -array).conj().imag}
        assert late[name].is_neg()
        assert torch.equal(bp.backprop(**late, method=method), bp.backprop(**ours, method=method))


@pytest.mark.peers
def test_results_for_a_subclass_of_tensor_are_tensors():
    import torch

    jacobians_T, grad_output, _ = problem()
    own = type("Own", (torch.Tensor,), {"__module__": "elsewhere"})
    found = bp.backprop(jacobians_T, torch.from_numpy(grad_output).as_subclass(own))
    assert type(found) is torch.Tensor and np.array_equal(found, bp.backprop(jacobians_T, grad_output))
