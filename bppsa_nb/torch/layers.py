"""What all kinds of layers share: who goes through time, torch.nn or this package, and how this package does."""

import math
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from bppsa_nb.cells import gru, lstm, rnn
from bppsa_nb.cells.cell import Cell
from bppsa_nb.cells.unroll import Forward
from bppsa_nb.chains import backprop as chain
from bppsa_nb.machine import backends
from bppsa_nb.machine.arguments import Backend, Count, Method, Size, checked
from bppsa_nb.torch import choice, composed, solve
from bppsa_nb.torch.sequences import BOTH, Sequences, fit, permuted

_CELLS = {f"RNN_{name.upper()}": cell for name, cell in rnn.CELLS.items()}
_CELLS |= {"GRU": gru.GRU.cell, "LSTM": lstm.LSTM.cell}
_PLACES, _PLAIN = ("cpu", "cuda"), (torch.Tensor, torch.nn.Parameter)
_WIDE = {torch.float32: torch.float32, torch.float64: torch.float64}  # what numbers are computed in
_WIDE |= {torch.float16: torch.float32, torch.bfloat16: torch.float32}
OWN_CELL = "own"  # the mode of layers that torch.nn has not
_SIZES = 1000  # of so many, choices are kept
OWN = "method backend levels checkpoint_every".split()
_SETTINGS = ["mode", "cell", "input_size", "hidden_size", "num_layers", "bidirectional", "proj_size", *OWN]
OWN += ["_forward_choice", "_seen", "_chosen", "_names", "_shapes"]  # all that torch.nn's have not
_TRANSFORMED = "torch.func or forward mode transforms the call"
_STATES = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def _find(*arguments):
    """Return what `solve.Solve` returns, where nothing goes back."""
    return solve.find(*arguments)[0]


def _transformed():
    """Tell whether gradients are found in forward mode, or a transform of `torch.func` is at work."""
    return forward_ad._current_level >= 0 or solve.transformed()


class Scanned:
    """What all kinds of layers share: `forward`, and `runs_by`."""

    method, backend, levels, checkpoint_every = "auto", "auto", None, None  # of layers whose class was set, too
    _seen, _chosen = None, {}

    @checked
    def __init__(
        self, *args: Any, method: Method = "auto", backend: Backend = "auto", levels: Count | None = None,
        forward: Literal["auto", "linear", "chunked", "newton"] = "auto", checkpoint_every: Size | None = None,
        **kwargs: Any,
    ):  # fmt: skip
        super().__init__(*args, **kwargs)
        self.method, self.backend, self.levels, self.checkpoint_every = method, backend, levels, checkpoint_every
        self._forward_choice = Forward(forward)
        self._settle()

    @property
    def cell(self) -> Cell:
        """The cell's equations."""
        return _CELLS.get(self.mode, _CELLS["RNN_TANH"])  # torch.nn says that it does not know another mode

    @property
    def forward_choice(self) -> Forward:
        """How states are found, and what is remembered of it."""
        return self.__dict__.setdefault("_forward_choice", Forward("auto"))

    def _settle(self):
        """Look at what was set, and find names and shapes of parameters, once for all attributes as they are."""
        seen = [getattr(self, name, None) for name in _SETTINGS]
        if seen == self._seen:
            return
        chain.choose(self.method, self.resolve_backend(), self.levels, (1, 1, self.hidden_size), np.dtype("f4"), 1)
        ways = ("", "_reverse")[: 1 + self.bidirectional]
        ends = [f"_l{layer}{way}" for layer in range(self.num_layers) for way in ways]
        self._names = [f"{name}{end}" for end in ends for name in self.cell.names]
        H, self._shapes = self.hidden_size, []
        for layer in range(self.num_layers):
            own = self.cell.shapes(H * len(ways) if layer else self.input_size, H)
            self._shapes += [*own.values()] * len(ways)
        self._seen = seen

    def resolve_backend(self, on_gpu=False):
        """Return what computes: for tensors on the host, a GPU only if it is asked for."""
        if on_gpu:
            return backends.cuda_only(self.backend)
        if self.backend == "auto":
            return "cpu" if backends.compiles() else "numpy"
        return backends.resolve(self.backend)

    def forward(
        self, input: torch.Tensor | PackedSequence, hx: _STATES | None = None, resets: torch.Tensor | None = None, *,
        reset_states: _STATES | None = None, return_states: bool = False,
    ) -> tuple[torch.Tensor | PackedSequence, _STATES] | tuple[torch.Tensor | PackedSequence, _STATES, _STATES]:
        """Go through time, as torch.nn's layers do, whose arguments, results and errors these are.

        `resets` are of bool, laid out as the input, whose last axis is 1 here, or left out: true where a sample begins
        anew. Before this step, its states are set to zeros, and no gradient goes back. Backward in time, it begins anew
        between the same two steps. `reset_states` are states to set them to, in the place of zeros, and get gradients:
        those of all layers and steps, (D L, T, B, H), of an LSTM two of these; any axis may be 1, for all the same.

        With `return_states`, a third result has the states of all layers after all steps, (D L, T, B, H), or (D L, N,
        H) for N rows of packed sequences; of an LSTM, two of these. T and B are in the order that inputs have.

        Resets are for the host. All three raise NotImplementedError where only torch.nn can go through time.
        """
        if resets is None and not return_states and self.mode != OWN_CELL:
            if is_dynamo_compiling():
                return super().forward(input, hx)
            size = None  # for which it is chosen once, and found at once: a step takes microseconds
            if type(input) is torch.Tensor and not input.is_nested:
                size = input.shape, input.dtype, input.is_cpu, torch.is_grad_enabled()
            elif type(input) is PackedSequence:
                data = input.data
                size = (input.batch_sizes.shape, data.shape), data.dtype, data.is_cpu, torch.is_grad_enabled()
            if size and (self._chosen.get(size) or self._choose(input, size)) and not solve.batched():
                return super().forward(input, hx)
        return self._run(input, hx, resets, reset_states, return_states)

    def _choose(self, input, size):
        """Tell whether torch.nn goes through time, for a size for which it is not known to."""
        if torch.is_autocast_enabled("cpu"):
            size = *size, torch.get_autocast_dtype("cpu")
        chosen = self.__dict__.setdefault("_chosen", {})
        if len(chosen) >= _SIZES:
            chosen.clear()
        return chosen[size] if size in chosen else chosen.setdefault(size, self._ratio(input) < choice.TIE)

    def _ratio(self, input):
        """Predict torch.nn's time over ours."""
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        auto = self.method == self.backend == self.forward_choice.method == "auto"
        if not auto or self.checkpoint_every or solve.on_gpu(data) or not data.is_cpu:
            return math.inf
        if data.dim() not in (2, 3) or not data.numel():
            return math.inf
        kind, dtype = self.mode.split("_")[0], data.dtype
        if packed:
            T = input.batch_sizes.numel()
            B, kind = len(data) / T, f"{kind}, packed"
        else:
            T, B = (len(data), 1) if data.dim() == 2 else data.shape[1::-1] if self.batch_first else data.shape[:2]
            if dtype is torch.float32 and torch.is_autocast_enabled("cpu"):
                dtype = torch.get_autocast_dtype("cpu")
            if kind == "LSTM":  # oneDNN's in two dtypes, and a step at a time in others, as a GRU
                kind = {torch.float32: "LSTM", torch.bfloat16: "LSTM, bfloat16"}.get(dtype, "GRU")
        grad, H = torch.is_grad_enabled(), self.hidden_size
        return min(choice.ratio(kind, (steps, B, H), grad) for steps in (T, T * self.num_layers))

    def __setattr__(self, name, value):
        """Set an attribute; choices do not outlive what they were made for."""
        if name in _SETTINGS:
            self.__dict__["_chosen"] = {}
        super().__setattr__(name, value)

    def __getstate__(self):
        """Return what copies and files have: no choices, which are this machine's."""
        return {name: each for name, each in super().__getstate__().items() if name != "_chosen"}

    @torch.compiler.disable
    def _run(self, input, hx, resets, reset_states, every):
        given, params = self._given(hx), self._params()
        why, only_ours = self._why_torch(input, given, params), resets is not None or every
        if why is None or (why is _TRANSFORMED and (only_ours or solve.batched())):
            run = None if why is None else composed.run
            return self._run_batch(input, given, params, self._cut(input, resets, reset_states), every, run)
        if isinstance(input, torch.fx.Proxy) and (path := input.tracer.path_of_module(self)):  # a leaf, as torch.nn's
            more = {"reset_states": reset_states, "return_states": every} if only_ours else {}
            return input.tracer.create_proxy("call_module", path, (input, hx, resets), more)
        return self._run_by_torch(why, input, hx, resets, reset_states, every)

    def _run_by_torch(self, why, input, hx, resets, reset_states, every):
        """Go through time as torch.nn does, which raises what is wrong; `why` says why."""
        found = super().forward(input, hx)
        if resets is not None or every:
            name = "return_states must be False" if resets is None else "resets must be None"
            raise NotImplementedError(f"{name} where torch.nn goes through time ({why})")
        return found

    def _run_batch(self, input, starts, params, cut, every, run):
        """Go through all layers as `_run_here` does; one sample is a batch of one."""
        if isinstance(input, PackedSequence) or input.dim() == 3:
            return self._run_here(input, starts, params, cut, every, run)
        axis, starts = 0 if self.batch_first else 1, [each.unsqueeze(1) for each in starts]
        output, *states = self._run_here(input.unsqueeze(axis), starts, params, cut, every, run)
        places = zip(states, (1, axis + 1), strict=False)
        return output.squeeze(axis), *(tree_map(lambda each, k=k: each.squeeze(k), own) for own, k in places)

    def runs_by(self, input: torch.Tensor | PackedSequence, hx: Any = None) -> tuple[str, str]:
        """Return whose code would go through time for these, "bppsa_nb.torch" or "torch.nn", and why."""
        why = self._why_torch(input, self._given(hx), self._params())
        ratio = 0 if why else self._ratio(input)
        told = f"torch.nn is predicted to take {ratio:.2f} of our time" if ratio < math.inf else "no table is asked"
        return "torch.nn" if ratio < choice.TIE else "bppsa_nb.torch", why or told

    def _given(self, hx):
        """Return the initial states that are given, a tuple, which is empty for none; or None if they cannot be."""
        states = self.cell.states
        if hx is None or states == 1:
            return () if hx is None else (hx,)
        return tuple(hx) if isinstance(hx, (tuple, list)) and len(hx) == states else None

    def _params(self):
        """Return what there is under the parameters' names: zeros for biases that are not there."""
        self._settle()
        own, names = self._parameters, self._names
        if all(map(own.__contains__, names)):
            return [own[name] for name in names]
        zeros = None if self.bias else self.weight_ih_l0.new_zeros(len(self.weight_ih_l0))
        return [getattr(self, name, zeros) for name in names]

    def _why_torch(self, input, given, params):
        """Say why torch.nn has to go through time, or raise what is wrong; return None if there is no reason."""
        if torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack():
            return "operations are recorded"
        if self.mode not in (*_CELLS, OWN_CELL) or self.proj_size:
            return f"mode is {self.mode!r}, proj_size {self.proj_size}"
        packed, own = isinstance(input, PackedSequence), params[0]
        if own.dtype not in _WIDE or own.device.type not in _PLACES:
            return f"parameters are {own.dtype} on {own.device.type}"
        dtypes, kind = {own.dtype}, own.device.type
        if own.dtype is not torch.float64 and torch.is_autocast_enabled(kind):
            dtypes.add(torch.get_autocast_dtype(kind))
        data = input.data if packed else input
        for tensor in (data, *params, *((None,) if given is None else given)):
            if type(tensor) not in _PLAIN:
                return f"there is a {type(tensor).__name__} in place of a plain tensor"
            if tensor.device != own.device or tensor.layout is not torch.strided or tensor.is_nested:
                return "not all tensors are dense, and on one device"
            if tensor.dtype not in dtypes:
                return "not all tensors are of one dtype"
        if not data.numel() or packed and solve.on_gpu(data):
            return "sequences are packed on a GPU" if data.numel() else "the input is empty"
        if not self._fits(input, data, packed, given, params):
            return "not all shapes fit"
        return _TRANSFORMED if _transformed() else None

    def _fits(self, input, data, packed, given, params):
        """Tell whether the shapes of tensors fit."""
        dims = data.dim()
        if dims not in (2, 3 - packed) or data.shape[-1] != self.input_size or (packed and not fit(input)):
            return False
        batch = [int(input.batch_sizes[0])] if packed else [data.shape[not self.batch_first]] * (dims - 2)
        shapes = [*self._shapes, *[(self.num_layers * (1 + self.bidirectional), *batch, self.hidden_size)] * len(given)]
        return all(tensor.shape == shape for tensor, shape in zip((*params, *given), shapes, strict=True))

    def _result(self, own, first):
        """Return the dtype of results: that of parameters, or the one that torch.nn's have under `torch.autocast`.

        That of a GRU on the host is that of its `first` states; where none are given, these are zeros like inputs.
        """
        kind = own.device.type
        if own.dtype is torch.float64 or kind not in _PLACES or not torch.is_autocast_enabled(kind):
            return own.dtype
        return first.dtype if (self.mode, kind) == ("GRU", "cpu") else torch.get_autocast_dtype(kind)

    def _run_here(self, input, starts, params, cut, every, run):
        """Go through all layers, by numbers that are computed as wide as `_WIDE` says; return what `forward` does.

        `cut` is what `_cut` returns, and `every` says whether all states are asked for. `run` is what goes through time
        in the place of `solve`.
        """
        own, packed = params[0], isinstance(input, PackedSequence)
        x = input.data if packed else input.transpose(0, 1) if self.batch_first else input
        wide, result = _WIDE.get(own.dtype, own.dtype), self._result(own, starts[0] if starts else x)
        if not starts:
            batch = int(input.batch_sizes[0]) if packed else x.shape[1]
            rows = self.num_layers * (1 + self.bidirectional)
            starts = [own.new_zeros(rows, batch, self.hidden_size)] * self.cell.states
        if solve.on_gpu(x) and (self.forward_choice.method == "newton" or self.checkpoint_every):
            wrong = self.checkpoint_every or self.forward_choice.method
            what = "be 'auto', 'linear' or 'chunked'"
            what = "checkpoint_every must be None" if self.checkpoint_every else f"forward must {what}"
            raise ValueError(f"{what} where input is on a GPU, got {wrong!r}")
        if packed:
            ways, starts = Sequences.packed(input.batch_sizes), permuted(starts, input.sorted_indices)
        else:
            ways = BOTH if cut is None else Sequences.cut(cut[0], several=bool(cut[1]))
        anew, S = cut[1] if cut else [], len(starts)
        if any(each.dtype is not wide for each in (x, *starts, *anew, own)):
            x, *starts = (each.to(wide) for each in (x, *starts, *anew))
            params, starts, anew = [each.to(wide) for each in params], starts[:S], starts[S:]
        D, by_way = 1 + self.bidirectional, []
        for k, way in enumerate(ways[:D]):
            of_way = [each[k::D] for each in starts] if D > 1 else starts
            if anew:
                of_way = [way.started(one, other[k::D], cut[0]) for one, other in zip(of_way, anew, strict=True)]
            by_way.append((way, of_way))
        graph = torch.is_grad_enabled() and any(each.requires_grad for each in (x, *starts, *anew, *params))
        run = run or (solve.Solve.apply if graph else _find)
        output, *states = self._through_layers(x, by_way, list(map(solve.plain, params)), every, run)
        if result is not wide:
            output, *states = (each.to(result) for each in (output, *states))
        last, states = states[:S], states[S:]
        if packed:
            output, last = PackedSequence(output, *input[1:]), permuted(last, input.unsorted_indices)
        elif self.batch_first:
            output, states = output.transpose(0, 1), [each.transpose(1, 2) for each in states]
        return output, *(own[0] if S == 1 else tuple(own) for own in (last, states) if own)

    def _through_layers(self, x, by_way, params, every, run):
        """Go through all layers; return outputs, last states (D L, B, H), of an LSTM h and c, and all states, if asked.

        Outputs are laid out as inputs are, rows of packed sequences or steps (T, B, ...). Of each direction come how
        sequences are read, and their initial states (L, B or n, H).
        """
        drop = self.dropout if self.training else 0
        if len(by_way) == 1 and not drop:
            (way, starts), = by_way
            return run(self, way, every, solve.plain(x), *map(solve.plain, starts), *params)
        states, count, own = [], len(self.cell.names), iter(params)
        for layer in range(self.num_layers):
            x, found = solve.plain(dropout(x, drop) if layer and drop else x), []
            for way, starts in by_way:
                given = *(solve.plain(start[layer : layer + 1]) for start in starts), *islice(own, count)
                output, *more = run(self, way, every, x, *given)
                found.append(output)
                states.append(more)
            x = torch.cat(found, 2 if x.dim() == 3 else 1) if len(found) > 1 else output
        return x, *map(torch.cat, zip(*states, strict=True))

    def _cut(self, input, resets, reset_states):
        """Return where samples begin anew [shape=(T, B)], and states that they begin with [shape=(D L, T, B, H)]."""
        if resets is None:
            if reset_states is not None:
                raise ValueError("reset_states must be None without resets")
            return None
        if isinstance(input, PackedSequence):
            raise ValueError("resets must be None with a PackedSequence: cut its sequences there")
        if not isinstance(resets, torch.Tensor) or resets.dtype != torch.bool:
            got = resets.dtype if isinstance(resets, torch.Tensor) else type(resets).__name__
            raise TypeError(f"resets must be a torch.Tensor of bool, got {got}")
        shape, by_time = input.shape[:-1], self.batch_first and input.dim() == 3
        if resets.shape not in (shape, (*shape, 1)):
            raise RuntimeError(f"resets must have shape {tuple(shape)}, as input has, got {tuple(resets.shape)}")
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(resets)
        if not resets.is_cpu or resets.layout is not torch.strided or wrapped:
            got = "one that torch.func transforms" if wrapped else f"{resets.device}, {resets.layout}"
            raise RuntimeError(f"resets must be a dense tensor on the host, as input is, got {got}")
        if solve.on_gpu(input):
            raise NotImplementedError("resets must be None where input is on a GPU, got a torch.Tensor")
        with torch._C._DisableFuncTorch():  # for which it is a number among others
            anew, resets = [], resets.numpy().reshape(*shape, *[1] * (2 - len(shape)))
        most, begun = (self.num_layers * (1 + self.bidirectional), *shape, self.hidden_size), self._given(reset_states)
        for each in (None,) if begun is None else begun:
            if not isinstance(each, torch.Tensor):
                kind = f"a tuple of {self.cell.states} tensors" if self.cell.states > 1 else "a torch.Tensor"
                raise TypeError(f"reset_states must be {kind}, got {type(reset_states).__name__}")
            if each.device != input.device or each.dtype not in (input.dtype, self.weight_ih_l0.dtype):
                got = f"{each.dtype} on {each.device}"
                raise RuntimeError(f"reset_states must be {input.dtype} on {input.device}, as input is, got {got}")
            if each.dim() != len(most) or any(n not in (1, full) for n, full in zip(each.shape, most, strict=True)):
                raise RuntimeError(f"reset_states must be {list(most)}, where axes may be 1, got {list(each.shape)}")
            each = each.expand(most)
            anew.append(each.unsqueeze(2) if len(shape) == 1 else each.transpose(1, 2) if by_time else each)
        return (resets.T if by_time else resets), anew

    def extra_repr(self):
        """Return what stands between the brackets when the module is printed."""
        chosen = {**{name: getattr(self, name) for name in _SETTINGS[-4:]}, "forward": self.forward_choice.method}
        return ", ".join([super().extra_repr(), *(f"{k}={v!r}" for k, v in chosen.items() if v not in ("auto", None))])
