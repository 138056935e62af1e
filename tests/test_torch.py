"""Layers for PyTorch, beside PyTorch's own: the same parameters, results, gradients and errors."""

import contextlib
import copy
import io
import pickle
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from rings import on_gpu
from texts import beside

import bppsa_nb.torch as ours
from bppsa_nb.chains import plan
from bppsa_nb.machine import backends
from bppsa_nb.torch import solve

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("always_ours")]
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-11}
each_kind = pytest.mark.parametrize("kind", ["RNN", "GRU"])


def pair(kind, *sizes, **how):
    """PyTorch's layers and ours, with the same parameters; `how` goes to both, but for what only ours know."""
    only = {name: how.pop(name) for name in ("method", "levels", "forward", "backend") if name in how}
    theirs, layers = getattr(torch.nn, kind)(*sizes, **how), getattr(ours, kind)(*sizes, **how, **only)
    layers.load_state_dict(theirs.state_dict())
    return theirs, layers


def results(layers, x, hx, read):
    """Output, last states, and gradients of a loss that reads them in one of four ways."""
    output, last = layers(x, hx)
    loss = {
        "every output": lambda: (output.sin() * torch.linspace(0, 1, output.numel()).to(output).view_as(output)).sum(),
        "last output": lambda: output[:, -1].sin().sum() if layers.batch_first else output[-1].sin().sum(),
        "last states": lambda: last.cos().sum(),
        "both": lambda: output.square().sum() + last.sin().sum(),
    }[read]()
    wanted = [each for each in (x, hx, *layers.parameters()) if each is not None]
    return output, last, *torch.autograd.grad(loss, wanted, allow_unused=True)


class First(torch.nn.Module):
    """Take the first of two results."""

    def forward(self, results):
        return results[0]


@each_kind
@pytest.mark.parametrize("where", ["host", on_gpu("gpu")])
def test_gradients_are_those_of_differences(kind, where, request):
    device = request.getfixturevalue("gpu") if where == "gpu" else None
    layers = getattr(ours, kind)(3, 4, 2, dtype=torch.float64, device=device)
    new = {"dtype": torch.float64, "device": device, "requires_grad": True}
    x, hx = torch.randn(5, 2, 3, **new), torch.randn(2, 2, 4, **new)
    assert torch.autograd.gradcheck(lambda x, hx, *params: layers(x, hx), (x, hx, *layers.parameters()))


@each_kind
def test_signs_that_are_put_off_are_heard(kind):
    lazy = lambda *shape: torch.randn(*shape, dtype=torch.complex64).conj().imag  # noqa: E731
    x, hx, grad = lazy(5, 2, 3), lazy(1, 2, 4), lazy(5, 2, 4)
    assert x.is_neg()
    found, expected = [], []
    for layers, results in zip(pair(kind, 3, 4), (expected, found), strict=True):
        output, _ = layers(x, hx)
        results += output, *torch.autograd.grad(output, list(layers.parameters()), grad)
    torch.testing.assert_close(found, expected)


@each_kind
def test_parameters_go_both_ways(kind):
    theirs, layers = pair(kind, 3, 4, 2)
    assert list(theirs.state_dict()) == list(layers.state_dict())
    theirs.load_state_dict(layers.state_dict())
    assert isinstance(layers, getattr(torch.nn, kind))


@each_kind
def test_copies_and_pickles(kind):
    layers, x = getattr(ours, kind)(3, 4, method="blelloch", batch_first=True), torch.randn(2, 6, 3)
    stream, _ = io.BytesIO(), layers(x)
    torch.save(layers, stream)
    stream.seek(0)
    for other in (copy.deepcopy(layers), pickle.loads(pickle.dumps(layers)), torch.load(stream, weights_only=False)):
        assert layers._chosen and not other._chosen
        torch.testing.assert_close(other(x)[0], layers(x)[0], rtol=0, atol=0)
        assert repr(other) == repr(layers) == f"{kind}(3, 4, batch_first=True, method='blelloch')"


def test_no_parameter_is_copied():
    layers = ours.RNN(3, 4)
    names = layers._all_weights[0]
    seen = solve.view_layers(layers.cell, [getattr(layers, name) for name in names])
    assert all(seen.params[name].ctypes.data == getattr(layers, name).data_ptr() for name in names)


ONES = torch.ones(2, 1, 3)
RESETS = torch.zeros(2, 1, dtype=torch.bool)


@pytest.mark.parametrize("call, message", beside(__file__)["wrong"])
def test_what_is_wrong_is_named(call, message):
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
        eval(call)
    assert re.match(message, f"{caught.type.__name__}: {caught.value}", re.DOTALL)


@pytest.mark.parametrize("change", [lambda y: y.data.zero_(), lambda y: y.detach().numpy().fill(7), torch.Tensor.neg_])
@pytest.mark.parametrize("more", [{}, {"num_layers": 2}, {"batch_first": True}])
def test_gradients_are_right_whatever_is_done_to_the_output(change, more):
    both = pair("GRU", 3, 4, **more)
    for layers in both:
        output, last = layers(torch.ones(5, 2, 3))
        change(output)
        (output.sum() + last.sum()).backward()
    for one, other in zip(*(layers.parameters() for layers in both), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_what_was_changed_in_between_is_noticed():
    layers = ours.GRU(3, 4)
    output, _ = layers(torch.ones(2, 1, 3))
    with torch.no_grad():
        layers.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@each_kind
@pytest.mark.parametrize("forward, T", [("linear", 5), ("chunked", 300), ("newton", 300)])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_numbers_that_are_not_finite_pass_through_as_in_pytorch(kind, forward, T, backend):
    theirs, layers = pair(kind, 3, 4, forward=forward, backend=backend)
    x = torch.ones(T, 2, 3)
    x[T // 2, 0, 1], x[3, 1, 0] = float("nan"), float("inf")
    torch.testing.assert_close(layers(x)[0], theirs(x)[0], equal_nan=True)


@each_kind
def test_under_autocast_they_compute_in_their_own_dtype(kind):
    layers, below, above = getattr(ours, kind)(3, 4), torch.nn.Linear(2, 3), torch.nn.Linear(4, 1)
    x, hx = torch.randn(5, 2, 2), torch.randn(1, 2, 4)
    with torch.autocast("cpu"):
        through = below(x)
        output, last = layers(through, hx.bfloat16())
        above(output).sum().backward()
    assert through.dtype is output.dtype is last.dtype is torch.bfloat16
    expected, _ = layers(through.float(), hx.bfloat16().float())
    assert torch.equal(output, expected.bfloat16()) and below.weight.grad.any() and layers.weight_ih_l0.grad.any()


@each_kind
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which PyTorch hides, but not as an error
def test_a_compiler_treats_them_as_pytorchs_own(kind):
    both, x = [torch.nn.Sequential(layers, First()) for layers in pair(kind, 3, 4)], torch.randn(5, 2, 3)
    graphs = []
    for network in both:
        graphs.append([])
        compiled = torch.compile(network, backend=lambda graph, _: graphs[-1].append(graph) or graph)
        assert torch.equal(compiled(x), network(x))
    assert len(graphs[0]) == len(graphs[1])


@pytest.fixture
def gpu(from_ptx, request, monkeypatch):
    """Where tensors on a GPU are; on what stands in for one the host, whose memory PyTorch shares."""
    if not backends.emulated():
        if not torch.cuda.is_available():
            pytest.skip("needs a PyTorch with CUDA")
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which is 1e-3 off
        return torch.device("cuda")
    request.getfixturevalue("few_threads")
    from bppsa_nb.machine.cuda_compiler import cuda
    from warpwatch.host import array_of
    from warpwatch.memory import bytes_at, found_at, register

    def array(tensor):
        assert tensor.is_contiguous()
        own, whole = tensor.detach().numpy(), tensor.untyped_storage()
        if found_at(own.ctypes.data) is None:
            _, end = register(bytes_at(whole.data_ptr(), whole.nbytes(), own))
            request.addfinalizer(end)
        return cuda.from_cuda_array_interface(own.__array_interface__ | {"version": 3}, owner=own)

    monkeypatch.setattr(solve, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(solve, "as_array", array)
    monkeypatch.setattr(solve, "as_tensor", lambda array, like: torch.from_numpy(np.asarray(array_of(array))))
    return torch.device("cpu")


GPU_CASES = {  # T, B, inputs, H, L; what both know; what only ours know; what is read
    "defaults": ((5, 2, 2, 2, 1), {}, {}, "every output"),
    "two layers": ((4, 2, 3, 2, 2), {"batch_first": True}, {"method": "linear"}, "both"),
    "no bias": ((3, 1, 2, 3, 2), {"bias": False, "dtype": torch.float64}, {"method": "blelloch"}, "last states"),
    "chunks": ((6, 2, 1, 2, 1), {"batch_first": True}, {"method": "chunked", "forward": "chunked"}, "last output"),
    "levels": ((5, 1, 2, 2, 1), {}, {"method": "truncated", "levels": 1, "backend": "cuda"}, "last states"),
}
LARGE = 100, 4, 5, 20


def in_short_chunks(layers):
    """Have layers whose forward pass is to be in chunks take such that a few steps are several."""
    if layers.forward_choice.method == "chunked":
        layers.forward_choice.how = lambda: {"method": "chunked", "length": 2}


@pytest.mark.gpu
@each_kind
@pytest.mark.parametrize("name", GPU_CASES)
@pytest.mark.parametrize("given_hx", [False, True])
def test_on_a_gpu_they_compute_what_pytorch_computes(kind, name, given_hx, gpu):
    (T, B, inputs, H, L), how, only, read = GPU_CASES[name]
    if not backends.emulated():
        T, B, inputs, H = LARGE
    torch.manual_seed(0)
    both = pair(kind, inputs, H, L, **how, **only, device=gpu)
    in_short_chunks(both[1])
    new = {"dtype": how.get("dtype"), "device": gpu, "requires_grad": True}
    x = torch.randn((B, T, inputs) if how.get("batch_first") else (T, B, inputs), **new)
    hx = torch.randn(L, B, H, **new) if given_hx else None
    with plan.chunks_of(2) if backends.emulated() else contextlib.nullcontext():
        expected, found = (results(layers, x, hx, read) for layers in both)
    for one, other in zip(found, expected, strict=True):
        assert one.device == x.device
        bound = TOLERANCE[x.dtype] * (1 + float(other.detach().abs().max()))
        torch.testing.assert_close(one, other, rtol=0, atol=bound)


@pytest.mark.gpu
def test_nothing_is_copied_to_or_from_a_gpu(gpu, fetched):
    layers, x = ours.GRU(3, 2, 2, method="linear", forward="linear", device=gpu), torch.randn(3, 2, 3, device=gpu)
    names = layers._names
    seen = solve.view_layers(layers.cell, layers._params())
    assert all(solve.as_tensor(seen.params[name], x).data_ptr() == getattr(layers, name).data_ptr() for name in names)
    x.requires_grad_()
    output, _ = layers(x)
    output.sum().backward()
    assert fetched == [] and x.grad.device == layers.weight_hh_l0.grad.device == x.device


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["linear", "chunked"])
def test_on_a_gpu_what_is_not_finite_passes_through(forward, gpu):
    theirs, layers = pair("GRU", 3, 2, forward=forward, device=gpu)
    in_short_chunks(layers)
    x = torch.ones(5, 2, 3, device=gpu)
    x[2, 0, 1], x[3, 1, 0] = float("nan"), float("inf")
    torch.testing.assert_close(layers(x)[0], theirs(x)[0], equal_nan=True)


@pytest.mark.gpu
def test_what_is_refused_on_a_gpu(gpu):
    x = torch.ones(2, 1, 3, device=gpu)
    with pytest.raises(ValueError, match="backend must be 'cuda' or 'auto' for arrays in a GPU's memory, got 'cpu'"):
        ours.GRU(3, 2, backend="cpu", device=gpu)(x)
    with pytest.raises(ValueError, match="forward must be 'auto', 'linear' or 'chunked' where input is on a GPU"):
        ours.RNN(3, 2, forward="newton", device=gpu)(x)
    with pytest.raises(NotImplementedError, match="resets must be None where input is on a GPU, got a torch.Tensor"):
        ours.RNN(3, 2, device=gpu)(x, resets=RESETS)


@pytest.mark.gpu
@pytest.mark.full
@each_kind
def test_on_another_stream_they_wait_for_what_was_launched_before(kind, gpu):
    T, B, inputs, H = LARGE
    theirs, layers = pair(kind, inputs, H, 2, device=gpu)
    late = torch.randn(T, B, inputs, device=gpu)
    expected = results(theirs, late.requires_grad_(), None, "both")
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros_like(late)
            torch.cuda._sleep(50_000_000)  # tens of milliseconds
            x += late.detach()
            found = [each.clone() for each in results(layers, x.requires_grad_(), None, "both")]
        torch.cuda.synchronize()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=5e-5 * (1 + float(other.detach().abs().max())))


@pytest.mark.gpu
@pytest.mark.full
def test_on_a_gpu_that_is_not_the_first(gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    theirs, layers = pair("GRU", 3, 4, device="cuda:1")
    x = torch.randn(5, 2, 3, device="cuda:1", requires_grad=True)
    for one, other in zip(*(results(each, x, None, "both") for each in (layers, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-5)
    with pytest.raises(RuntimeError, match="not at the same device"):
        layers(x.detach().to("cuda:0"))


def test_the_example_trains_to_the_same_losses(capsys):
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "train_in_pytorch.py"))
    *_, losses, difference = capsys.readouterr().out.splitlines()
    first, last = map(float, losses.removeprefix("loss from ").split(" to "))
    assert last < 0.8 * first
    assert float(difference.rsplit(" ", 1)[1]) < 1e-5
