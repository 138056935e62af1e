"""All that layers of PyTorch take, taken by ours: every argument with every kind of input, and resets beside."""

import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import bppsa_nb.torch as ours

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("always_ours")]
KINDS = {
    "tanh": (torch.nn.RNN, ours.RNN, {}), "relu": (torch.nn.RNN, ours.RNN, {"nonlinearity": "relu"}),
    "GRU": (torch.nn.GRU, ours.GRU, {}), "LSTM": (torch.nn.LSTM, ours.LSTM, {}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
INPUTS = "batch", "one sample", "packed", "packed, unsorted"
METHODS = [{"method": method} for method in ("auto", "linear", "blelloch", "chunked")]
METHODS += [{"method": "truncated", "levels": 99}, {"forward": "chunked"}, {"forward": "newton", "backend": "numpy"}]


@each_kind
def test_help_says_what_they_take_and_give(kind):
    theirs, own, _ = KINDS[kind]
    taken = re.findall(r"[(,](\w+)", theirs.__doc__.split("\n")[0])  # as it begins: __init__(input_size,hidden_size,...
    told = "batch_first", "method", "backend", "levels", "forward", "resets", "(T, B, D H)", f"torch.nn.{own.__name__}"
    assert [each for each in (*taken, *told) if each not in own.__doc__] == []


def pair(kind, *sizes, only=None, **how):
    """PyTorch's layers and ours, with the same parameters; ours know more."""
    theirs, own, usual = KINDS[kind]
    theirs, own = theirs(*sizes, **usual, **how), own(*sizes, **usual, **how, **(only or {}))
    own.load_state_dict(theirs.state_dict())
    return theirs, own


def draw(kind, layers, what, given_hx, sizes):
    """Draw an input, and initial states; all of them want gradients."""
    (T, B, inputs, H), dtype = sizes, layers.weight_hh_l0.dtype
    new = partial(torch.randn, dtype=dtype, requires_grad=True)
    rows = layers.num_layers * (2 if layers.bidirectional else 1)
    if what == "one sample":
        x, shape = new(T, inputs), (rows, H)
    elif what == "batch":
        x, shape = new(*((B, T) if layers.batch_first else (T, B)), inputs), (rows, B, H)
    else:
        lengths = [T, *np.random.default_rng(T * B).integers(1, T + 1, B - 1).tolist()]
        lengths = sorted(lengths, reverse=True) if what == "packed" else lengths[::-1]
        x = pack_sequence([torch.randn(n, inputs, dtype=dtype) for n in lengths], enforce_sorted=what == "packed")
        x, shape = x._replace(data=x.data.requires_grad_()), (rows, B, H)
    hx = tuple(new(*shape) for _ in range(2 if kind == "LSTM" else 1)) if given_hx else ()
    return x, hx


def results(layers, x, hx):
    """Outputs, last states, and the gradients of a loss that reads all of them."""
    torch.manual_seed(1)  # of dropout
    output, last = layers(x, None if not hx else hx if len(hx) > 1 else hx[0])
    last = last if isinstance(last, tuple) else (last,)
    data, read = (output.data, x.data) if isinstance(x, PackedSequence) else (output, x)
    if isinstance(x, PackedSequence):
        assert isinstance(output, PackedSequence) and torch.equal(output.batch_sizes, x.batch_sizes)
        for one, other in zip(output[2:], x[2:], strict=True):
            assert (one is other is None) or torch.equal(one, other)
    weight = torch.linspace(-1, 1, data.numel(), dtype=data.dtype).view_as(data)
    loss = (data.sin() * weight).sum() + sum((each * k).cos().sum() for k, each in enumerate(last, 1))
    return (data, *last), torch.autograd.grad(loss, [read, *hx, *layers.parameters()])


def compare(kind, both, what, given_hx, sizes, tol=(1e-12, 1e-10)):
    x, hx = draw(kind, both[0], what, given_hx, sizes)
    worst = 0
    for (expected, grads), (found, own_grads) in [[results(layers, x, hx) for layers in both]]:
        for bound, ones, others in (tol[0], found, expected), (tol[1], own_grads, grads):
            for one, other in zip(ones, others, strict=True):
                assert one.shape == other.shape and one.dtype == other.dtype
                gap = float((one - other).detach().abs().max() / (1 + other.detach().abs().max()))
                assert gap <= bound, (what, gap)
                worst = max(worst, gap)
    return worst


@each_kind
def test_every_argument_with_every_kind_of_input(kind):
    choices = (1, 2), (True, False), (False, True), (0.0, 0.4), (False, True), INPUTS, (False, True)
    count, worst = 0, 0
    for layers, bias, batch_first, dropout, both_ways, what, given_hx in itertools.product(*choices):
        if layers == 1 and dropout:  # which PyTorch warns about: there is nothing between layers
            continue
        how = {"bias": bias, "batch_first": batch_first, "dropout": dropout, "bidirectional": both_ways}
        both = pair(kind, 3, 4, layers, **how, dtype=torch.float64)
        worst = max(worst, compare(kind, both, what, given_hx, (6, 5, 3, 4)))
        count += 1
    assert count == 192
    print(f"{kind}: {count} configurations, largest difference {worst:.1e}")


@each_kind
@pytest.mark.parametrize("part", range(5))
def test_random_configurations(kind, part):
    rng = np.random.default_rng(part)
    for _ in range(100 if kind == "LSTM" else 30):
        T, B, inputs, H, layers = rng.integers(1, (40, 20, 6, 24, 4)).tolist()
        flip = lambda: bool(rng.integers(2))  # noqa: E731
        how = {"bias": flip(), "batch_first": flip(), "bidirectional": flip(), "dropout": 0.3 * (layers > 1) * flip()}
        only = METHODS[rng.integers(len(METHODS))]
        both = pair(kind, inputs, H, layers, **how, dtype=torch.float64, only=only)
        exact = "forward" not in only
        tol = (1e-12, 1e-10) if exact else (1e-9, 1e-7)  # where chunks met within a tolerance
        compare(kind, both, INPUTS[rng.integers(4)], flip(), (T, B, inputs, H), tol)


@each_kind
@pytest.mark.parametrize("what", INPUTS)
def test_in_float32(kind, what):
    both = pair(kind, 5, 33, 2, bidirectional=True)
    compare(kind, both, what, True, (50, 9, 5, 33), (1e-5, 1e-4))


@each_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(kind, dtype):
    _, layers = pair(kind, 3, 4, 2, dtype=dtype)
    wide = pair(kind, 3, 4, 2)[1]
    wide.load_state_dict(layers.state_dict())
    x = torch.randn(7, 2, 3).to(dtype)
    found, expected = results(layers, x.requires_grad_(), ()), results(wide, x.float().detach().requires_grad_(), ())
    for one, other in zip(found[0], expected[0], strict=True):
        assert one.dtype == dtype and torch.equal(one, other.to(dtype))
    for one, other in zip(found[1], expected[1], strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other.to(dtype), rtol=0.05, atol=0.05)


def restarted(layers, x, hx, resets):
    """What `torch.nn` gives for pieces of sequences, each sample by itself: the reference of resets."""
    outputs, last = [], []
    for b in range(x.shape[1]):
        own, parts = tuple(each[:, b : b + 1] for each in hx), []
        starts = [0, *(t for t in range(1, len(x)) if resets[t, b])]
        if resets[0, b]:
            own = tuple(map(torch.zeros_like, own))
        for start, stop in itertools.pairwise([*starts, len(x)]):
            output, own = layers(x[start:stop, b : b + 1], own if len(own) > 1 else own[0])
            parts.append(output)
            end = own if isinstance(own, tuple) else (own,)
            own = tuple(map(torch.zeros_like, end))
        outputs.append(torch.cat(parts))
        last.append(end)
    return torch.cat(outputs, 1), [torch.cat(each, 1) for each in zip(*last, strict=True)]


@each_kind
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("only", METHODS)
def test_resets_begin_sequences_anew(kind, share, only):
    for layers_count, B in (1, 3), (2, 17):
        theirs, layers = pair(kind, 3, 4, layers_count, dtype=torch.float64, only=only)
        x, hx = draw(kind, layers, "batch", True, (19, B, 3, 4))
        resets = torch.rand(19, B) < share
        expected, ends = restarted(theirs, x, hx, resets)
        output, last = layers(x, hx if len(hx) > 1 else hx[0], resets=resets)
        last = last if isinstance(last, tuple) else (last,)
        for one, other in zip((output, *last), (expected, *ends), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        grads = []
        for out, states, own in (output, last, layers), (expected, ends, theirs):
            loss = (out * torch.linspace(0, 1, out.numel()).view_as(out)).sum() + sum(s.sin().sum() for s in states)
            # Of states that are never read, the reference has no gradients.
            grads.append(torch.autograd.grad(loss, [x, *hx, *own.parameters()], materialize_grads=True))
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@each_kind
def test_resets_cut_both_directions_at_the_same_steps(kind):
    _, layers = pair(kind, 3, 4, 2, bidirectional=True, batch_first=True, dtype=torch.float64)
    x, resets = torch.randn(2, 9, 3, dtype=torch.float64), torch.zeros(2, 9, dtype=torch.bool)
    resets[0, [0, 2, 5]] = resets[1, 8] = True
    hx = tuple(torch.randn(4, 2, 4, dtype=torch.float64) for _ in range(2 if kind == "LSTM" else 1))
    given = lambda states: states if len(states) > 1 else states[0]  # noqa: E731
    found, _ = layers(x, given(hx), resets=resets)
    for b, cuts in (0, [0, 2, 5, 9]), (1, [0, 8, 9]):
        for start, stop in itertools.pairwise(cuts):
            own = [states[:, b : b + 1].clone() for states in hx]
            for states in own:
                states[::2] *= start == 0 and not resets[b, 0]
                states[1::2] *= stop == 9  # backward in time, which begins there
            expected, _ = layers(x[b : b + 1, start:stop], given(tuple(own)))
            torch.testing.assert_close(found[b : b + 1, start:stop], expected)
    one, _ = layers(x[0], given(tuple(states[:, 0] for states in hx)), resets=resets[0])
    torch.testing.assert_close(one, found[0])


def test_resets_are_those_of_the_forward_pass():
    layers, x, resets = ours.GRU(3, 4), torch.randn(6, 2, 3, requires_grad=True), torch.zeros(6, 2, dtype=torch.bool)
    resets[3] = True
    output, _ = layers(x, resets=resets)
    resets[:] = False
    assert not torch.autograd.grad(output[-1].sum(), x)[0][:3].any()


@each_kind
@pytest.mark.parametrize("how", [{"bidirectional": True}, {"resets": True}, {"packed": True}])
def test_gradients_are_those_of_differences(kind, how):
    how = dict(how)
    resets = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]]).bool() if how.pop("resets", False) else None
    packed = how.pop("packed", False)
    _, layers = pair(kind, 2, 3, 2, **how, dtype=torch.float64)
    x, hx = draw(kind, layers, "batch", True, (4, 2, 2, 3))
    sizes = torch.tensor([2, 2, 2, 1])

    def run(x, *rest):
        own = rest[: len(hx)]
        read = PackedSequence(x[:, 0].repeat(2, 1)[:7], sizes) if packed else x
        output, last = layers(read, own if len(own) > 1 else own[0], resets=resets)
        return (output.data if packed else output), *(last if isinstance(last, tuple) else (last,))

    assert torch.autograd.gradcheck(run, (x, *hx, *layers.parameters()))


def test_only_the_state_c_is_read():
    both = pair("LSTM", 3, 4, 2, dtype=torch.float64)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    grads = [torch.autograd.grad(layers(x)[1][1].sin().sum(), list(layers.parameters())) for layers in both]
    torch.testing.assert_close(*grads)


def test_padding_is_not_seen():
    layers, x = ours.GRU(3, 4, 2, bidirectional=True), pack_sequence([torch.ones(5, 3), torch.ones(2, 3)])
    padded, lengths = pad_packed_sequence(layers(x)[0])
    alone = layers(torch.ones(2, 1, 3))[0]
    assert lengths.tolist() == [5, 2] and not padded[2:, 1].any()
    torch.testing.assert_close(padded[:2, 1:], alone)


@each_kind
def test_nothing_is_held_after_the_way_back(kind):
    _, layers = pair(kind, 3, 4)
    output, _ = layers(torch.ones(5, 2, 3))
    output.sum().backward()
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        output.grad_fn.saved_tensors  # noqa: B018


@each_kind
def test_what_is_kept_goes_through_hooks(kind):
    _, layers = pair(kind, 3, 4, 2)
    x, numbers = torch.randn(50, 2, 3), []
    expected = torch.autograd.grad(layers(x)[0].sin().sum(), layers.weight_hh_l0)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: numbers.append(t.numel()) or t.clone(), lambda t: t):
        output, _ = layers(x)
    assert sum(numbers) > 2 * 50 * 2 * 4
    torch.testing.assert_close(torch.autograd.grad(output.sin().sum(), layers.weight_hh_l0), expected)
