"""All that layers of PyTorch take, taken by ours: every argument with every kind of input, and resets beside."""

import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch
from minimal_gated_unit import MinimalGatedUnit
from minimal_gru import MinimalGRU
from peephole_lstm import PeepholeLSTM
from torch.func import functional_call
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map_only

import bppsa_nb.torch as ours
from bppsa_nb.torch.layers import Scanned

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("always_ours")]
KINDS = {
    "tanh": (torch.nn.RNN, ours.RNN, {}), "relu": (torch.nn.RNN, ours.RNN, {"nonlinearity": "relu"}),
    "GRU": (torch.nn.GRU, ours.GRU, {}), "LSTM": (torch.nn.LSTM, ours.LSTM, {}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def minimal_gru(x, h, params, bias, *_):
    """A minimal GRU's step, as `torch.gru` takes it."""
    z, n = linear(x, params[0], params[1] if bias else None).chunk(2, -1)
    return (h + z.sigmoid() * (n - h),) * 2


def minimal_gated_unit(x, h, params, bias, *_):
    """A minimal gated unit's."""
    (f, n), (by_f, by_n) = (linear(one, *params[k::2][: 1 + bias]).chunk(2, -1) for k, one in enumerate((x, h)))
    f = (f + by_f).sigmoid()
    return ((1 - f) * (n + f * by_n).tanh() + f * h,) * 2


def peephole_lstm(x, states, params, bias, *_):
    """That of an LSTM whose gates see c."""
    (h, c), (ci, cf, co) = states, params[-3:]
    i, f, g, o = sum(linear(one, *params[k:-3:2][: 1 + bias]) for k, one in enumerate((x, h))).chunk(4, -1)
    c = (f + cf * c).sigmoid() * c + (i + ci * c).sigmoid() * g.tanh()
    h = (o + co * c).sigmoid() * c.tanh()
    return h, h, c


class Alone(ours.Recurrent):
    """Layers of a cell of one's own that go by one of the functions above, a step at a time."""

    def forward(self, *args, **more):
        return expected(self, *args, **more)


OWN_STEPS = {MinimalGRU: minimal_gru, MinimalGatedUnit: minimal_gated_unit, PeepholeLSTM: peephole_lstm}
OWN_KINDS = {kind.__name__: (Alone, ours.Recurrent, {"cell": kind.cell}) for kind in OWN_STEPS}
OWN_STEPS = {kind.cell: step for kind, step in OWN_STEPS.items()}
SEVERAL = "LSTM", "PeepholeLSTM"  # have two states
each_of_all = pytest.mark.parametrize("kind", [*KINDS, *OWN_KINDS])
INPUTS = "batch", "one sample", "packed", "packed, unsorted"
METHODS = [{"method": method} for method in ("auto", "linear", "blelloch", "chunked")]
METHODS += [{"method": "truncated", "levels": 99}, {"forward": "chunked"}, {"forward": "newton", "backend": "numpy"}]


@each_kind
def test_help_says_what_they_take_and_give(kind):
    theirs, own, _ = KINDS[kind]
    taken = re.findall(r"[(,](\w+)", theirs.__doc__.split("\n")[0])  # as it begins: __init__(input_size,hidden_size,...
    told = "batch_first", "method", "backend", "levels", "forward", "checkpoint_every", "resets", "reset_states"
    told += "return_states", "(T, B, D H)", f"torch.nn.{own.__name__}"
    assert [each for each in (*taken, *told) if each not in own.__doc__] == []


BOUNDS = {torch.float64: (1e-12, 1e-10), torch.float32: (1e-5, 1e-3)}  # of results and gradients
BOUNDS |= {torch.float16: (1e-3, 1e-2), torch.bfloat16: (1e-2, 1e-1)}


def pair(kind, *sizes, only=None, **how):
    """PyTorch's layers and ours, with the same parameters; ours know more."""
    theirs, own, usual = (KINDS | OWN_KINDS)[kind]
    how |= usual | dict(zip(("input_size", "hidden_size", "num_layers"), sizes, strict=False))
    theirs, own = theirs(**how), own(**how, **(only or {}))
    own.load_state_dict(theirs.state_dict())
    return theirs, own


def draw(kind, layers, what, given_hx, sizes, views=False):
    """Draw an input, and initial states; all of them want gradients."""
    (T, B, inputs, H), dtype = sizes, layers.weight_ih_l0.dtype
    last, rows = layers.proj_size or H, layers.num_layers * (2 if layers.bidirectional else 1)

    def new(*shape):
        every = torch.randn(*shape[:-1], (1 + views) * shape[-1], dtype=dtype)
        return every[..., :: 1 + views].requires_grad_()

    if what == "one sample":
        x, shape = new(T, inputs), (rows,)
    elif what == "batch":
        x, shape = new(*((B, T) if layers.batch_first else (T, B)), inputs), (rows, B)
    else:
        lengths = [T, *np.random.default_rng(T * B).integers(1, T + 1, B - 1).tolist()]
        lengths = sorted(lengths, reverse=True) if what == "packed" else lengths[::-1]
        x = pack_sequence([torch.randn(n, inputs) for n in lengths], enforce_sorted=what == "packed")
        x, shape = x._replace(data=new(*x.data.shape)), (rows, B)
    return x, tuple(new(*shape, n) for n in ((last, H) if kind in SEVERAL else (H,)) if given_hx)


def expected(theirs, x, hx, resets=None, reset_states=None, return_states=False):
    """What `torch.nn` gives: in float32 for halves; step by step, where more than it takes is asked for."""
    own = theirs.weight_ih_l0.dtype
    wide = torch.float32 if own.itemsize == 2 else own
    to = lambda dtype: lambda each: each.to(dtype) if each.is_floating_point() else each  # noqa: E731
    params, x, hx, begun = tree_map_only(torch.Tensor, to(wide), (dict(theirs.named_parameters()), x, hx, reset_states))
    if resets is None and not return_states and not isinstance(theirs, Alone):
        found = functional_call(theirs, params, (x, hx))
    else:
        found = stepped(theirs, params, x, hx, resets, begun)[: 2 + return_states]
    return tree_map_only(torch.Tensor, to(own), found)


def stepped(theirs, params, x, hx, resets, begun):
    """What `expected` gives, and all states: layer by layer, in each direction, a step at a time."""
    names, drop, batch = theirs._all_weights, torch.nn.functional.dropout, isinstance(x, PackedSequence) or x.dim() == 3
    by_time, D, alive = theirs.batch_first and batch, len(names) // theirs.num_layers, None
    if packed := isinstance(x, PackedSequence):
        by_time, alive = False, torch.arange(int(x.batch_sizes[0])) < x.batch_sizes[:, None]
        rows, order, back = x, x.sorted_indices, x.unsorted_indices
        x = x.data.new_zeros(*alive.shape, theirs.input_size).masked_scatter(alive[:, :, None], x.data)
    lay = lambda each, axis: each.transpose(axis, axis + 1) if by_time else each if batch else each.unsqueeze(axis + 1)  # noqa: E731
    x, H = lay(x, 0), theirs.hidden_size
    alive = torch.ones(x.shape[:2], dtype=torch.bool) if alive is None else alive
    resets = torch.zeros_like(alive) if resets is None else lay(resets.reshape(resets.shape[: 1 + batch]), 0)
    if hx is None:
        states = theirs.cell.states if isinstance(theirs, Alone) else 1 + (theirs.mode == "LSTM")
        hx = (x.new_zeros(len(names), *x.shape[1:][:batch], H),) * states
    hx = [each if batch else each.unsqueeze(1) for each in (hx if isinstance(hx, tuple) else (hx,))]
    hx = [each[:, order] for each in hx] if packed and order is not None else hx
    begun = [x.new_zeros(len(names), *alive.shape, H)] * len(hx) if begun is None else [
        lay(each, 1).expand(len(names), *alive.shape, H) for each in (begun if isinstance(begun, tuple) else (begun,))
    ]
    function = OWN_STEPS[theirs.cell] if isinstance(theirs, Alone) else getattr(torch, theirs.mode.lower())
    last, every, outputs = [], [], []
    for row, own in enumerate(names):
        if row % D == 0:
            x, outputs = torch.cat(outputs, 2) if row else x, []
            dropped = drop(x[alive] if packed else x, theirs.dropout) if row else x
            x = torch.zeros_like(x).masked_scatter(alive[:, :, None], dropped) if packed and row else dropped
        states, found = [each[row] for each in hx], [None] * len(x)
        anew = lambda t, states, row=row: [  # noqa: E731
            torch.where(resets[t][:, None], each[row, t], now) for each, now in zip(begun, states, strict=True)
        ]
        for t in range(len(x))[:: -1 if row % D else 1]:
            states = states if row % D else anew(t, states)
            given = [each[None] for each in states]
            given = tuple(given) if len(given) > 1 else given[0], [params[name] for name in own]
            _, *after = function(x[t : t + 1], *given, theirs.bias, 1, 0.0, False, False, False)
            states = [torch.where(alive[t][:, None], *both) for both in zip((e[0] for e in after), states, strict=True)]
            found[t] = states
            states = anew(t, states) if row % D and t else states
        every.append([torch.stack(each) for each in zip(*found, strict=True)])
        outputs.append(every[-1][0])
        last.append(states)
    results = torch.cat(outputs, 2), *([torch.stack(e) for e in zip(*own, strict=True)] for own in (last, every))
    if packed:
        output, last, every = results
        last = last if back is None else [each[:, back] for each in last]
        results = rows._replace(data=output[alive]), last, [each[:, alive] for each in every]
    elif by_time:
        results = results[0].transpose(0, 1), results[1], [each.transpose(1, 2) for each in results[2]]
    elif not batch:
        results = results[0].squeeze(1), [e.squeeze(1) for e in results[1]], [e.squeeze(2) for e in results[2]]
    return results[0], *(tuple(each) if len(each) > 1 else each[0] for each in results[1:])


def results(layers, x, hx, second=False, **more):
    """Outputs, states, and the gradients of a loss that reads all; with `second`, of their squares, too."""
    torch.manual_seed(1)  # of dropout
    run = layers if isinstance(layers, Scanned) else partial(expected, layers)
    output, *states = run(x, None if not hx else hx if len(hx) > 1 else hx[0], **more)
    states = [each for own in states for each in (own if isinstance(own, tuple) else (own,))]
    data, read = (output.data, x.data) if isinstance(x, PackedSequence) else (output, x)
    if isinstance(x, PackedSequence):
        assert isinstance(output, PackedSequence) and torch.equal(output.batch_sizes, x.batch_sizes)
        for one, other in zip(output[2:], x[2:], strict=True):
            assert (one is other is None) or torch.equal(one, other)
    weight = torch.linspace(-1, 1, data.numel(), dtype=data.dtype).view_as(data)
    loss = (data.sin() * weight).sum() + sum((each * k).cos().sum() for k, each in enumerate(states, 1))
    begun = more.get("reset_states", ())
    begun = begun if isinstance(begun, tuple) else (begun,)
    wanted = [x for x in (read, *hx, *begun, *layers.parameters()) if x.requires_grad]
    grads = torch.autograd.grad(loss, wanted, create_graph=second, materialize_grads=True) if wanted else ()
    if wanted and second:
        grads += torch.autograd.grad(sum(each.square().sum() for each in grads), wanted, materialize_grads=True)
    return (data, *states), grads


def compare(kind, both, what, given_hx, sizes, tol=(1e-12, 1e-10), rng=None, **more):
    x, hx = draw(kind, both[0], what, given_hx, sizes, more.pop("views", False))
    # Frozen are some, where a generator is given.
    frozen = [name for name, _ in both[0].named_parameters() if rng and rng.integers(3) == 0]
    for layers in both:
        for name in frozen:
            getattr(layers, name).requires_grad_(False)
    for each in (x.data if isinstance(x, PackedSequence) else x, *hx):
        each.requires_grad_(not (rng and rng.integers(3) == 0))
    worst = 0
    for (expected, grads), (found, own_grads) in [[results(layers, x, hx, **more) for layers in both]]:
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


def drawn_resets(kind, rng, what, sizes, layers):
    """Draw where samples begin anew, and, now and then, with which states: of one for all to one for each place."""
    (T, B, H), rows = sizes, layers.num_layers * (1 + layers.bidirectional)
    resets = torch.rand(T, B) < rng.choice([0, 0.1, 0.5, 1])
    resets = resets[:, 0] if what == "one sample" else resets.T.contiguous() if layers.batch_first else resets
    found = {"resets": resets.unsqueeze(-1) if rng.integers(2) else resets}
    if rng.integers(2):
        shape = [n if rng.integers(2) else 1 for n in (rows, *resets.shape, H)]
        dtype, count = layers.weight_ih_l0.dtype, 1 + (kind in SEVERAL)
        states = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(count)]
        found["reset_states"] = tuple(states) if count > 1 else states[0]
    return found


@each_of_all
@pytest.mark.parametrize("part", range(5))
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_random_configurations(kind, part):
    """Everything crossed, and gradients of gradients."""
    rng = np.random.default_rng(part)
    flip = lambda: bool(rng.integers(2))  # noqa: E731
    for _ in range(50):
        T, B, inputs, H, layers = rng.integers(1, (30, 9, 6, 16, 4)).tolist()
        what, dtype = INPUTS[rng.integers(4)], list(BOUNDS)[max(0, rng.integers(-3, 4))]
        how = {"bias": flip(), "batch_first": flip(), "bidirectional": flip(), "dropout": 0.3 * (layers > 1) * flip()}
        if kind == "LSTM" and H > 1 and rng.integers(5) == 0:
            how["proj_size"] = int(rng.integers(1, H))
        only = METHODS[rng.integers(len(METHODS))]
        both = pair(kind, inputs, H, layers, **how, dtype=dtype, only=only)
        more = {"second": dtype.itemsize > 2 and rng.random() < 0.4, "views": flip(), "rng": rng}
        if "packed" not in what and "proj_size" not in how and flip():
            more |= drawn_resets(kind, rng, what, (T, B, H), both[1])
        more["return_states"] = "proj_size" not in how and flip()
        both[1].checkpoint_every = int(rng.integers(1, T + 2)) if flip() else None
        tol = BOUNDS[dtype] if dtype is not torch.float64 or "forward" not in only else (1e-9, 1e-7)
        compare(kind, both, what, flip(), (T, B, inputs, H), tol, **more)


@each_kind
@pytest.mark.parametrize("what", INPUTS)
def test_in_float32(kind, what):
    both = pair(kind, 5, 33, 2, bidirectional=True)
    compare(kind, both, what, True, (50, 9, 5, 33), (1e-5, 1e-4))


@each_kind
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("only", METHODS)
def test_resets_begin_sequences_anew(kind, share, only):
    for layers, B in (1, 3), (2, 17):
        both = pair(kind, 3, 4, layers, dtype=torch.float64, only=only)
        compare(kind, both, "batch", True, (19, B, 3, 4), (1e-9, 1e-7), resets=torch.rand(19, B) < share)


def test_resets_are_those_of_the_forward_pass():
    layers, x, resets = ours.GRU(3, 4), torch.randn(6, 2, 3, requires_grad=True), torch.zeros(6, 2, dtype=torch.bool)
    resets[3] = True
    output, _ = layers(x, resets=resets)
    resets[:] = False
    assert not torch.autograd.grad(output[-1].sum(), x)[0][:3].any()


@each_of_all
@pytest.mark.parametrize("how", [
    {"bidirectional": True}, {"resets": True}, {"packed": True}, {"checkpoint_every": 3},
    {"resets": True, "begun": True, "bidirectional": True}, {"resets": True, "begun": True, "checkpoint_every": 2},
])  # fmt: skip
@pytest.mark.parametrize("every", [False, True])
def test_gradients_are_those_of_differences(kind, how, every):
    how = dict(how)
    more = {"only": {"checkpoint_every": how.pop("checkpoint_every", None)}}
    begun = how.pop("begun", False)
    resets = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]]).bool() if how.pop("resets", False) else None
    packed = how.pop("packed", False)
    _, layers = pair(kind, 2, 3, 2, **how, **more, dtype=torch.float64)
    x, hx = draw(kind, layers, "batch", True, (4, 2, 2, 3))
    begun = [torch.randn(len(hx[0]), 4, 2, 3, dtype=torch.float64, requires_grad=True) for _ in hx if begun]
    sizes = torch.tensor([2, 2, 2, 1])

    def run(x, *rest):
        own, anew = rest[: len(hx)], rest[len(hx) : len(hx) + len(begun)]
        anew = {"reset_states": anew if len(anew) > 1 else anew[0]} if anew else {}
        read = PackedSequence(x[:, 0].repeat(2, 1)[:7], sizes) if packed else x
        found = layers(read, own if len(own) > 1 else own[0], resets=resets, return_states=every, **anew)
        states = [each for own in found[1:] for each in (own if isinstance(own, tuple) else (own,))]
        return (found[0].data if packed else found[0]), *states

    assert torch.autograd.gradcheck(run, (x, *hx, *begun, *layers.parameters()))


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
