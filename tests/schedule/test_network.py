import numpy as np

from bppsa_nb import schedule
from bppsa_nb.sparse import Flatten, LeNet5, Linear, Network, ReLU, Tanh


def test_a_network_keeps_what_it_is_given():
    memory = schedule.Memory([1, 2, 3], 4, np.float32(0.5))
    net = schedule.Network([1, 2, 3], (4.0, 5.0, 6.0), np.array([7, 8, 9], np.float32), [0, 0, 1], memory)
    assert net.layers == 3 and repr(net) == "Network of 3 layers"
    for name, values in dict(forward=[1, 2, 3], output_grad=[4, 5, 6], weight_grad=[7, 8, 9], sync=[0, 0, 1]).items():
        array = getattr(net, name)
        assert array.tolist() == values and array.dtype == np.float64 and not array.flags.writeable
    for name, values in dict(activation=[1, 2, 3], output_grad=[4] * 3, weight_grad=[0.5] * 3).items():
        assert getattr(net.memory, name).tolist() == values


def test_a_network_is_no_view_of_what_it_is_given():
    costs = np.ones(2)
    net = schedule.Network(costs, costs, costs)
    costs[:] = 5
    assert net.forward.tolist() == [1, 1]


def test_uniform_costs_one_unit_each():
    net = schedule.Network.uniform(4, sync=2.5)
    assert net.forward.tolist() == net.output_grad.tolist() == net.weight_grad.tolist() == [1, 1, 1, 1]
    assert net.sync.tolist() == [2.5] * 4 and schedule.Network.uniform(4).sync is None
    for name, each in dict(activation=1, output_grad=1, weight_grad=0).items():
        assert getattr(net.memory, name).tolist() == [each] * 4


def test_assumptions_may_be_numpys():
    assert schedule.Assumptions(first_output_grad=np.True_).first_output_grad


def test_transfer_time_is_latency_and_size_over_bandwidth():
    assert schedule.transfer_time(100, 50) == 2
    assert schedule.transfer_time(100, 50, latency=0.5) == 2.5
    np.testing.assert_array_equal(schedule.transfer_time([0, 10, 20], 10, 1), [1, 2, 3])
    assert schedule.transfer_time(1e9, np.float32(3e9)) == 1e9 / float(np.float32(3e9))
    assert type(schedule.transfer_time(1, 2)) is float


def test_every_layer_ends_with_parameters():
    layers = schedule.split(LeNet5())
    assert [[operator.name for operator in layer] for layer in layers] == [
        ["conv1"], ["relu1", "pool1", "conv2"], ["relu2", "pool2", "flatten", "fc1"], ["relu3", "fc2"],
        ["relu4", "fc3"],
    ]  # fmt: skip
    trailing = Network((1, 2, 2), [Flatten("flatten"), Linear("fc", 4, 3), ReLU("relu"), Tanh("tanh")])
    assert schedule.split(trailing) == [trailing.operators[:2], trailing.operators[2:]]
