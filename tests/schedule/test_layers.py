import numpy as np
import pytest
from random_networks import random_batch, random_network

from bppsa_nb import schedule
from bppsa_nb.schedule.layers import profile, split
from bppsa_nb.sparse import Conv2d, Flatten, LeNet5, Linear, MaxPool2d, Network, ReLU, Tanh, prune
from bppsa_nb.training.loss import cross_entropy


def gradients(network, x, labels):
    """Gradients by the layers' δO and δW, in the conventional order."""
    kept = []
    for layer in split(network):
        kept.append((layer, layer.forward(kept[-1][1][-1] if kept else x, params(network, layer))))
    grad, grads = cross_entropy(kept[-1][1][-1], labels)[1], {}
    for layer, arrays in reversed(kept):
        grads |= dict(zip(layer.params, layer.weight_grad(arrays, grad), strict=True))
        grad = layer.output_grad(arrays, grad, params(network, layer))
    return grads, grad


def params(network, layer):
    return [network.params[name] for name in layer.params]


@pytest.mark.parametrize("seed", range(20))
def test_layers_give_the_networks_gradients_to_the_last_bit(seed):
    network = random_network(seed, dtype=np.float32 if seed % 4 == 0 else np.float64)
    network.masks = prune(network.params, 0.5) if seed % 3 == 0 else None
    x, labels = random_batch(network, 3, seed)
    activations = network.forward(x)
    expected = network.backward(activations, cross_entropy(activations.logits, labels)[1], "ordinary")
    found, grad_x = gradients(network, x, labels)
    assert sorted(found) == sorted(expected)
    for name, grad in expected.items():
        np.testing.assert_array_equal(found[name], grad)
        assert seed % 3 or name not in network.masks or not found[name][~network.masks[name]].any()
    assert grad_x.shape == x.shape


def test_the_gradient_at_the_input_is_a_derivative():
    network = random_network(3, linears=1, convolutions=1, free_start=True)
    x, labels = random_batch(network, 2, 0)
    grad = gradients(network, x, labels)[1]
    direction = np.random.default_rng(1).standard_normal(x.shape)
    step = 1e-6
    ends = [cross_entropy(network.forward(x + side * step * direction).logits, labels)[0] for side in (1, -1)]
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx((grad * direction).sum(), rel=1e-6)


def test_every_layer_ends_with_parameters():
    layers = split(LeNet5())
    assert [repr(layer) for layer in layers] == [
        "Layer(conv1)", "Layer(relu1, pool1, conv2)", "Layer(relu2, pool2, flatten, fc1)", "Layer(relu3, fc2)",
        "Layer(relu4, fc3)",
    ]
    assert layers[1].params == {"conv2.weight": (16, 6, 5, 5), "conv2.bias": (16,)}
    assert [layer.input_shape for layer in layers] == [(3, 32, 32), (6, 28, 28), (16, 10, 10), (120,), (84,)]
    assert layers[-1].output_shape == (10,)
    trailing = Network((1, 2, 2), [Flatten("flatten"), Linear("fc", 4, 3), ReLU("relu"), Tanh("tanh")])
    assert [repr(layer) for layer in split(trailing)] == ["Layer(flatten, fc)", "Layer(relu, tanh)"]
    assert not split(trailing)[1].params


def test_an_overflow_is_found_where_it_arises():
    network = Network((1, 1, 2), [Flatten("flatten"), Linear("fc", 2, 2), ReLU("relu")], dtype=np.float32)
    network.params["fc.weight"][:] = -3e38
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match="the output of 'fc' overflows float32"):
        split(network)[0].forward(np.full((1, 1, 1, 2), 2, np.float32), params(network, split(network)[0]))


def test_a_profile_is_a_network_of_the_scheduler():
    network = random_network(5, free_end=True)
    x, labels = random_batch(network, 4, 0)
    costs = profile(network, x, labels, rounds=2)
    assert costs.layers == len(split(network))
    assert (costs.forward > 0).all() and (costs.output_grad > 0).all()
    assert (costs.weight_grad[:-1] > 0).all() and costs.weight_grad[-1] == 0
    schedule.pipeline(costs, 2, 2, "fast_forward").check()


def test_memory_is_that_of_the_arrays():
    operators = [Conv2d("conv", 1, 2, 3, padding=1), ReLU("relu"), MaxPool2d("pool", 2), Flatten("flatten")]
    operators += [Linear("fc", 8, 3), Tanh("tanh")]
    network = Network((1, 4, 4), operators, dtype=np.float64)
    memory = profile(network, *random_batch(network, 5, 0), rounds=1).memory
    # Per sample: the image; conv's and relu's 32, pool's 8, which flattened are the same 8; fc's and tanh's 3.
    np.testing.assert_array_equal(memory.activation, 8 * 5 * np.array([16, 32 + 32 + 8, 3 + 3]))
    np.testing.assert_array_equal(memory.output_grad, 8 * 5 * np.array([32, 3, 3]))
    np.testing.assert_array_equal(memory.weight_grad, 8 * np.array([18 + 2, 24 + 3, 0]))
