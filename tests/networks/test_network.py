import typing

import numpy as np
import pytest
from comparing import assert_gradients, central_differences
from rings import more
from texts import beside, refuses

import bppsa_nb as bp
from bppsa_nb import Trainer, sparse
from bppsa_nb.networks import network
from bppsa_nb.sparse import VGG11, AvgPool2d, Conv2d, Flatten, LeNet5, Linear, MaxPool2d, Network, ReLU, Sigmoid, Tanh
from bppsa_nb.training.loss import cross_entropy

METHODS = [("linear", None), ("blelloch", None), ("chunked", None), *(("truncated", k) for k in (0, 2, 99))]
each_backend = pytest.mark.parametrize("backend", ["numpy", "cpu"])
LENET_LINKS = ["relu1", "pool1", "conv2", "relu2", "pool2", "fc1", "relu3", "fc2", "relu4", "fc3"]


def small(scan_until=None, dtype=np.float64, rng=0, **settings):
    """One operator of each kind: images of 9 x 8 pixels in two colors, three classes."""
    operators = [
        Conv2d("conv1", 2, 3, 3, padding=1), Tanh("tanh"), AvgPool2d("avg", 2, 1),
        Conv2d("conv2", 3, 4, (3, 2), stride=(2, 1), padding=(0, 1)), ReLU("relu"), MaxPool2d("max", 2),
        Flatten("flatten"), Linear("fc1", 16, 6), Sigmoid("sigmoid"), Linear("fc2", 6, 3),
    ]
    return Network((2, 9, 8), operators, scan_until=scan_until, rng=rng, dtype=dtype, **settings)


def case(model, batch=5, seed=0):
    """Activations, and the loss's gradient at the logits."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *model.shapes[0])).astype(model.dtype)
    activations = model.forward(x)
    return activations, cross_entropy(activations.logits, rng.integers(model.shapes[-1][0], size=batch))[1]


class Reversed(Flatten):
    """Flattening from the last entry to the first."""

    def forward(self, x):
        return super().forward(x)[:, ::-1]

    def backward(self, grad, x, y):
        return super().backward(grad[:, ::-1], x, y)

    def jacobian(self, input_shape, mask=None):
        jacobian, size = super().jacobian(input_shape), int(np.prod(input_shape))
        jacobian.pattern = sparse.CSRPattern(np.arange(size + 1), np.arange(size)[::-1], (size, size))
        return jacobian


@pytest.mark.parametrize(("method", "levels"), METHODS)
def test_what_is_made_of_flattening_is_scanned(method, levels):
    operators = [Conv2d("conv", 1, 2, 3), Reversed("flatten"), Tanh("tanh"), Linear("fc", 24, 3)]
    model = Network((1, 5, 6), operators, dtype=np.float64)
    activations, grad = case(model)
    expected = model.backward(activations, grad, "ordinary")
    assert_gradients(model.backward(activations, grad, method, "numpy", levels), expected, 1e-12)


def test_models_have_pytorchs_names_and_shapes():
    model = LeNet5()
    assert [operator.name for operator in model.linked()] == LENET_LINKS
    assert [operator.name for operator in model.linked(from_input=True)] == ["conv1", *LENET_LINKS]
    shapes = dict(conv1=(6, 3, 5, 5), conv2=(16, 6, 5, 5), fc1=(120, 400), fc2=(84, 120), fc3=(10, 84))
    expected = [pair for name, s in shapes.items() for pair in ((f"{name}.weight", s), (f"{name}.bias", s[:1]))]
    assert [(name, param.shape) for name, param in model.params.items()] == expected
    model = VGG11()
    weighty = [f"features.{i}" for i in (0, 3, 6, 8, 11, 13, 16, 18)] + [f"classifier.{i}" for i in (1, 4, 6)]
    assert list(model.params) == [f"{name}.{part}" for name in weighty for part in ("weight", "bias")]
    assert [model.params[f"{name}.weight"].shape[:2] for name in weighty] == [
        *((64, 3), (128, 64), (256, 128), (256, 256), (512, 256), (512, 512), (512, 512), (512, 512)),
        *((512, 512), (512, 512), (10, 512)),
    ]
    assert sum(param.size for param in model.params.values()) == 9_750_922
    assert [operator.name for operator in model.linked(from_input=True)] == [f"features.{i}" for i in range(21)]
    assert model.shapes[21] == (512, 1, 1) and model.shapes[-1] == (10,)


def test_initial_weights():
    model = LeNet5(rng=3)
    for name, param in model.params.items():
        bound = 1 / np.sqrt(np.prod(model.params[name.replace("bias", "weight")].shape[1:]))
        assert param.dtype == np.float32
        assert 0.75 * bound < np.abs(param).max() <= bound
    for name, param in VGG11().params.items():
        if param.ndim == 1:
            assert not param.any()
        else:
            assert param.std() == pytest.approx(np.sqrt(2 / np.prod(param.shape[1:])), rel=0.03), name
    again, other = LeNet5(rng=np.random.default_rng(3), dtype=np.float64), LeNet5(rng=4)
    np.testing.assert_allclose(again.params["fc1.weight"], model.params["fc1.weight"], rtol=1e-6)
    assert not np.array_equal(other.params["fc1.weight"], model.params["fc1.weight"])


def test_gradients_equal_difference_quotients():
    model = small()
    x, labels = np.random.default_rng(1).standard_normal((4, 2, 9, 8)), [0, 2, 1, 1]

    def loss():
        return cross_entropy(model.forward(x).logits, labels)[0]

    activations = model.forward(x)
    grads = model.backward(activations, cross_entropy(activations.logits, labels)[1])
    for name, expected in central_differences(loss, model.params).items():
        np.testing.assert_allclose(grads[name], expected, rtol=1e-6, atol=1e-8, err_msg=name)


def pytorchs(model):
    from torch import nn

    def twin(operator):
        if isinstance(operator, Conv2d):
            outputs, inputs, *_ = operator.param_shapes["weight"]
            return nn.Conv2d(inputs, outputs, operator.kernel_size, padding=operator.padding)
        if isinstance(operator, Linear):
            return nn.Linear(*operator.param_shapes["weight"][::-1])
        return {ReLU: nn.ReLU(), MaxPool2d: nn.MaxPool2d(2), Flatten: nn.Flatten()}[type(operator)]

    return {operator.name: twin(operator) for operator in model.operators}


@pytest.mark.peers
@pytest.mark.parametrize("kind", [LeNet5, VGG11])
def test_networks_equal_pytorch(kind):
    import torch

    model = kind(dtype=np.float64)
    twins = pytorchs(model)
    for name, twin in twins.items():
        state = {n.removeprefix(f"{name}."): torch.from_numpy(p) for n, p in model.params.items() if n.startswith(name)}
        twin.double().load_state_dict({part: p for part, p in state.items() if part in ("weight", "bias")})
    x, labels = np.random.default_rng(0).standard_normal((3, 3, 32, 32)), [1, 0, 9]
    logits = torch.nn.Sequential(*twins.values())(torch.from_numpy(x))
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
    theirs.backward()
    activations = model.forward(x)
    np.testing.assert_allclose(activations.logits, logits.detach().numpy(), rtol=1e-10, atol=1e-12)
    loss, grad_logits = cross_entropy(activations.logits, labels)
    assert loss == pytest.approx(theirs.item(), rel=1e-12)
    expected = {f"{name}.{part}": p.grad.numpy() for name, twin in twins.items() for part, p in twin.named_parameters()}
    assert_gradients(model.backward(activations, grad_logits), expected, 1e-10)


@each_backend
@pytest.mark.parametrize("method, levels", METHODS)
@pytest.mark.parametrize("scan_until", [None, "max", "conv1", more("LeNet5")])
def test_scans_equal_ordinary_backward(scan_until, method, levels, backend, monkeypatch):
    model = LeNet5(dtype=np.float64) if scan_until == "LeNet5" else small(scan_until)
    activations, grad_logits = case(model)
    expected = model.backward(activations, grad_logits, "ordinary")
    found = model.backward(activations, grad_logits, method, backend, levels)
    assert_gradients(found, expected, 1e-10)
    if scan_until != "LeNet5":  # in pieces, and again with other numbers in the same buffers
        for size in (2, 1, 4):
            monkeypatch.setattr(model, "_pieces", {(method, levels): size})
            activations, grad_logits = case(model, seed=size)
            expected = model.backward(activations, grad_logits)
            assert_gradients(model.backward(activations, grad_logits, method, backend, levels), expected, 1e-10)


@pytest.mark.outer
def test_scans_in_single_precision():
    model = LeNet5()
    activations, grad_logits = case(model)
    expected = model.backward(activations, grad_logits)
    for method in ("linear", "blelloch", "chunked"):
        assert_gradients(model.backward(activations, grad_logits, method, "cpu"), expected, 1e-5)


def test_pieces_keep_within_memory(monkeypatch):
    model, seen = small(), []
    activations, grad_logits = case(model, batch=7)
    right = network.chain.backprop

    def watched(links, grad, **how):
        seen.append(len(grad))
        return right(links, grad, **how)

    monkeypatch.setattr(network.chain, "backprop", watched)
    model.backward(activations, grad_logits, "blelloch", "numpy")
    assert seen == [7]
    stored = sum(link.values.size for link in model.links(activations) if len(link.values) > 1) // 7
    for method, least in (("linear", stored), ("blelloch", 2 * stored)):
        seen.clear()
        model.masks = None  # forget what was planned
        monkeypatch.setattr(network, "_BYTES", 8 * 3 * stored)
        model.backward(activations, grad_logits, method, "numpy")
        assert sum(seen) == 7 and max(seen) * least <= 3 * stored
        assert seen == [3, 3, 1] if method == "linear" else len(seen) == 7
    monkeypatch.setattr(network, "_BYTES", 1)  # one sample there must be
    model.masks = None
    model.backward(activations, grad_logits, "linear", "numpy")
    assert seen[-7:] == [1] * 7


def test_links_are_the_callers_and_reach_the_image():
    model = small("max")
    activations, grad_logits = case(model)
    links = model.links(activations, from_input=True)
    kept = [link.values.copy() for link in links]
    assert [link.pattern for link in links] == model.patterns(from_input=True)
    assert [link.pattern for link in links[1:]] == [link.pattern for link in model.links(activations)]
    assert [len(link.values) for link in links] == [1, 5, 1, 1, 5, 5]
    others = case(model, seed=3)
    model.links(others[0])
    model.backward(*others, "blelloch", "numpy")
    for link, values in zip(links, kept, strict=True):
        np.testing.assert_array_equal(link.values, values)
    grad = np.random.default_rng(0).standard_normal(activations.outputs[5].shape)
    gradients = bp.backprop(links, grad.reshape(5, -1), method="blelloch", backend="numpy")
    for i in reversed(range(6)):
        np.testing.assert_allclose(gradients[i + 1], grad.reshape(5, -1), atol=1e-12)
        x = activations.outputs[i - 1] if i else activations.x
        operator = model.operators[i]
        params = [model.params[f"{operator.name}.{part}"] for part in operator.param_shapes]
        grad = operator.backward(grad, x, activations.outputs[i], *params)
    np.testing.assert_allclose(gradients[0], grad.reshape(5, -1), atol=1e-12)


def test_flattening_has_a_jacobian_but_is_no_link():
    model = small()
    jacobian = model.jacobian("flatten")
    assert (jacobian.input_shape, jacobian.output_shape) == ((4, 1, 4), (16,))
    activations, operator = case(model)[0], model.operators[6]
    values = jacobian.fill(operator.source(*activations.outputs[5:7]))
    assert values.dtype == model.dtype and operator.shared
    np.testing.assert_array_equal(jacobian.pattern.matrix(values).toarray(), np.eye(16))
    assert "flatten" not in [operator.name for operator in model.linked(from_input=True)]
    assert isinstance(jacobian, typing.get_type_hints(Network.jacobian)["return"])


def test_jacobians_are_made_once_until_masks_change():
    model = small()
    activations, grad_logits = case(model)
    before = model.patterns()
    model.backward(activations, grad_logits, "blelloch", "numpy")
    assert model.patterns() == before and model.jacobian("conv1") is model.jacobian("conv1")
    model.masks = sparse.prune(model.params, 0.5)
    after = dict(zip([operator.name for operator in model.linked()], model.patterns(), strict=True))
    kept = model.masks["fc1.weight"]
    assert after["fc1"].nnz == np.count_nonzero(kept) < kept.size
    assert after["conv2"].nnz < before[2].nnz


@pytest.mark.parametrize("method, backend", [("ordinary", "auto"), ("blelloch", "numpy"), ("truncated", "cpu")])
def test_retraining_keeps_pruned_weights_at_zero(method, backend):
    model = small(dtype=np.float32)
    model.masks = sparse.prune(model.params, 0.6)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 2, 9, 8), np.float32), rng.integers(3, size=6)
    levels = 2 if method == "truncated" else None
    trainer = Trainer(model, bp.SGD(lr=0.1, momentum=0.9), method=method, backend=backend, levels=levels)
    before = {name: param.copy() for name, param in model.params.items()}
    losses = [trainer.step(x, y) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]
    for name, mask in model.masks.items():
        assert mask.any() and not mask.all()
        assert not model.params[name][~mask].any()
        assert (model.params[name] != before[name])[mask].mean() > 0.5
    grads = model.backward(*case(model), method, backend, levels)
    for name, mask in model.masks.items():
        assert not grads[name][~mask].any()


def test_an_optimizer_from_before_pruning_is_noticed():
    model = small(dtype=np.float32)
    x, y = np.ones((2, 2, 9, 8), np.float32), [0, 1]
    trainer = Trainer(model, bp.SGD(lr=0.1, momentum=0.9))
    trainer.step(x, y)
    model.masks = sparse.prune(model.params, 0.6)
    trainer.step(x, y)
    with pytest.raises(ValueError, match=r"params\['conv1.weight'\] must be zero where masks prune .* with a new one"):
        trainer.step(x, y)
    model.masks = None
    trainer.step(x, y)


@pytest.mark.parametrize("spoil, message", beside(__file__)["masks"])
def test_masks_are_checked(spoil, message):
    model = small()
    masks = sparse.prune(model.params, 0.5)
    model.masks = masks
    with pytest.raises(ValueError, match=message):
        model.masks = eval(spoil, {"m": masks, "np": np})
    masks["fc1.weight"][:] = True  # the network has its own
    assert not model.masks["fc1.weight"].all()
    with pytest.raises(ValueError, match="read-only"):
        model.masks["fc1.weight"][:] = True


@pytest.mark.parametrize("name, value, message", beside(__file__)["parameters"])
def test_what_parameters_spoil_is_found(name, value, message):
    model = small()
    model.params[name] = np.full_like(model.params[name], value)
    refuses("model.forward(np.full((1, 2, 9, 8), 5.0))", message, globals() | locals())


@pytest.mark.parametrize("method", ["ordinary", "linear", "blelloch"])
def test_what_is_wrong_with_activations_is_named(method):
    model = small()
    activations, grad_logits = case(model)
    activations.outputs[1][0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"activations.outputs\[1\] must be finite|y must be finite"):
        model.backward(activations, grad_logits, method)


@pytest.mark.parametrize("method", ["ordinary", "linear", "blelloch"])
def test_gradients_that_overflow_are_not_hidden(method):
    for scan_until in (None, "max"):
        model = small(scan_until)
        activations, grad_logits = case(model)
        activations.outputs[8][:] = 0.5
        model.params["fc2.weight"][:] = 1e200
        model.params["fc1.weight"][:] = 1e200
        grads = model.backward(activations, grad_logits + 1, method, "numpy")
        assert np.isfinite(grads["fc2.weight"]).all() and np.isfinite(grads["fc1.weight"]).all()
        assert not np.isfinite(grads["conv1.weight"]).all()


@pytest.mark.outer
def test_pruned_vgg11_through_the_scan():
    model = VGG11()
    model.masks = sparse.prune(model.params, 0.97, "class_uniform")
    activations, grad_logits = case(model, batch=1)
    expected = model.backward(activations, grad_logits)
    assert_gradients(model.backward(activations, grad_logits, "linear", "cpu"), expected, 1e-4)
    for name, mask in model.masks.items():
        assert np.count_nonzero(expected[name]) <= np.count_nonzero(mask) == mask.size - round(0.97 * mask.size)
