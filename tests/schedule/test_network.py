import numpy as np
import pytest

from bppsa_nb import schedule


def test_a_network_keeps_what_it_is_given():
    memory = schedule.Memory([1, 2, 3], 4, np.float32(0.5))
    net = schedule.Network([1, 2, 3], (4.0, 5.0, 6.0), np.array([7, 8, 9], np.float32), [0, 0, 1], memory)
    assert net.layers == 3 and repr(net) == "Network of 3 layers"
    for name, values in dict(forward=[1, 2, 3], output_grad=[4, 5, 6], weight_grad=[7, 8, 9], sync=[0, 0, 1]).items():
        array = getattr(net, name)
        assert array.tolist() == values and array.dtype == np.float64 and not array.flags.writeable
    assert net.memory.activation.tolist() == [1, 2, 3]
    assert net.memory.output_grad.tolist() == [4, 4, 4]
    assert net.memory.weight_grad.tolist() == [0.5, 0.5, 0.5]


def test_a_network_is_no_view_of_what_it_is_given():
    costs = np.ones(2)
    net = schedule.Network(costs, costs, costs)
    costs[:] = 5
    assert net.forward.tolist() == [1, 1]


def test_uniform_costs_one_unit_each():
    net = schedule.Network.uniform(4, sync=2.5)
    assert net.forward.tolist() == net.output_grad.tolist() == net.weight_grad.tolist() == [1, 1, 1, 1]
    assert net.sync.tolist() == [2.5] * 4 and schedule.Network.uniform(4).sync is None
    assert [getattr(net.memory, name).tolist() for name in ("activation", "output_grad", "weight_grad")] == [
        [1] * 4,
        [1] * 4,
        [0] * 4,
    ]


@pytest.mark.parametrize("name", ["forward", "output_grad", "weight_grad", "sync"])
@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([1, -1], ValueError, "must be finite and not negative, got -1.0 for layer 2"),
        ([np.nan, 1], ValueError, "must be finite and not negative, got nan for layer 1"),
        ([1, np.inf], ValueError, "must be finite and not negative, got inf for layer 2"),
        (["a", "b"], TypeError, r"must hold real numbers, got \['a', 'b'\]"),
        ([True, False], TypeError, r"must hold real numbers, got \[True, False\]"),
        ([None, 1], TypeError, "must hold real numbers"),
        ([1j, 1], TypeError, "must hold real numbers"),
        ({1, 2}, TypeError, "must hold real numbers"),
        ([[1, 2], [3, 4]], ValueError, r"must hold .*, got shape \(2, 2\)"),
        ([1, [2, 3]], ValueError, r"must hold one number per layer, got \[1, \[2, 3\]\]"),
        (1, ValueError, r"must hold .*, got shape \(\)"),
    ],
)
def test_bad_costs_are_named(name, values, error, message):
    costs = dict(forward=[1, 1], output_grad=[1, 1], weight_grad=[1, 1], sync=[1, 1])
    with pytest.raises(error, match=rf"^{name} {message}"):
        schedule.Network(**(costs | {name: values}))


def test_costs_are_one_per_layer():
    with pytest.raises(ValueError, match="forward must have a cost for one layer or more, got none"):
        schedule.Network([], [], [])
    for name in ("output_grad", "weight_grad", "sync"):
        costs = dict(forward=[1, 1], output_grad=[1, 1], weight_grad=[1, 1], sync=[1, 1]) | {name: [1, 1, 1]}
        with pytest.raises(ValueError, match=rf"{name} must hold 2 numbers, one per layer, got shape \(3,\)"):
            schedule.Network(**costs)
    with pytest.raises(ValueError, match=r"memory.activation must hold 2 numbers, one per layer, got shape \(1,\)"):
        schedule.Network([1, 1], [1, 1], [1, 1], memory=schedule.Memory(activation=[1]))


def test_bad_memory_and_counts_are_named():
    for name in ("activation", "output_grad", "weight_grad", "inner"):
        with pytest.raises(ValueError, match=rf"memory\.{name} must be finite and not negative, got -2$"):
            schedule.Network.uniform(2, memory=schedule.Memory(**{name: -2}))
        with pytest.raises(TypeError, match=rf"memory\.{name} must be a number, got 'much'"):
            schedule.Network.uniform(2, memory=schedule.Memory(**{name: "much"}))
    with pytest.raises(TypeError, match="memory must be a schedule.Memory, got 3"):
        schedule.Network.uniform(2, memory=3)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        schedule.Network.uniform(0)
    for wrong in (2.0, True, "2"):
        with pytest.raises(TypeError, match=f"layers must be an integer, got {wrong!r}"):
            schedule.Network.uniform(wrong)
    with pytest.raises(ValueError, match="sync must be finite and not negative, got -1"):
        schedule.Network.uniform(2, sync=-1)


@pytest.mark.parametrize("name", ["first_output_grad", "weight_grad_first", "send_after_weight_grad", "backward_first"])
def test_assumptions_are_true_or_false(name):
    assert getattr(schedule.Assumptions(**{name: np.True_}), name)
    with pytest.raises(TypeError, match=f"{name} must be True or False, got 1"):
        schedule.Assumptions(**{name: 1})


def test_transfer_time_is_latency_and_size_over_bandwidth():
    assert schedule.transfer_time(100, 50) == 2
    assert schedule.transfer_time(100, 50, latency=0.5) == 2.5
    np.testing.assert_array_equal(schedule.transfer_time([0, 10, 20], 10, 1), [1, 2, 3])
    for arguments, name in (((-1, 2), "size"), (([1, -1], 2), "size"), ((1, -2), "bandwidth"), ((1, 2, -3), "latency")):
        with pytest.raises(ValueError, match=f"{name} must be finite and not negative"):
            schedule.transfer_time(*arguments)
    with pytest.raises(ValueError, match="bandwidth must be above 0, got 0"):
        schedule.transfer_time(1, 0)
    with pytest.raises(ValueError, match="bandwidth must be finite and not negative, got inf"):
        schedule.transfer_time(1, np.inf)
    for arguments, name in ((("1", 2), "size"), ((1, "2"), "bandwidth"), ((1, 2, True), "latency")):
        with pytest.raises(TypeError, match=f"{name} must be a number"):
            schedule.transfer_time(*arguments)


def test_sums_are_finite():
    huge = [1e308, 1e308]
    with pytest.raises(ValueError, match="forward, output_grad, weight_grad and sync must have a finite sum, got inf"):
        schedule.Network(huge, [1, 1], [1, 1])
    with pytest.raises(ValueError, match="memory must have a finite sum, got inf"):
        schedule.Network.uniform(2, memory=schedule.Memory(1e308, 1e308))
    nearly = schedule.Network([1e307], [1], [1])
    with pytest.raises(ValueError, match="network must have costs whose sum, over all micro-batches, is finite"):
        schedule.pipeline(nearly, devices=1, micro_batches=20)


def test_transfers_take_a_time_in_double_precision():
    assert schedule.transfer_time(1e9, np.float32(3e9)) == 1e9 / float(np.float32(3e9))
    assert type(schedule.transfer_time(1, 2)) is float
    for size, bandwidth in ((1, 5e-324), ([1e308], 1e-5)):
        with pytest.raises(ValueError, match="bandwidth must be high enough for size to be sent in finite time"):
            schedule.transfer_time(size, bandwidth)


@pytest.mark.parametrize("wrong", [np.complex64(1), np.timedelta64(1, "s"), None, "1"])
def test_amounts_are_real_numbers(wrong):
    with pytest.raises(TypeError, match="latency must be a number"):
        schedule.transfer_time(1, 1, wrong)
    with pytest.raises(ValueError, match="latency must be finite and not negative, got 1000"):
        schedule.transfer_time(1, 1, 10**400)
