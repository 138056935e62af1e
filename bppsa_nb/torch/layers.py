"""What all kinds of layers share: what they are given is looked at, and goes through layers and directions."""

from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from bppsa_nb.cells import gru, lstm, rnn
from bppsa_nb.cells.cell import NAMES, Cell, Spans
from bppsa_nb.cells.unroll import Forward
from bppsa_nb.chains import backprop as chain
from bppsa_nb.machine import backends
from bppsa_nb.machine.arguments import Backend, Count, Method, checked
from bppsa_nb.machine.checks import check_choice
from bppsa_nb.torch import solve
from bppsa_nb.torch.sequences import BOTH, Sequences, check_packed, permuted

_CELLS = {f"RNN_{name.upper()}": cell for name, cell in rnn.CELLS.items()}
_CELLS |= {"GRU": gru.GRU.cell, "LSTM": lstm.LSTM.cell}
_PLACES, _FLOATS, _PLAIN = ("cpu", "cuda"), (torch.float32, torch.float64), (torch.Tensor, torch.nn.Parameter)
_HALVES = torch.float16, torch.bfloat16  # which are computed in float32
_SETTINGS = "mode input_size hidden_size num_layers bidirectional proj_size method backend levels".split()


class Scanned:
    """What all kinds of layers share: `forward`, and what they refuse."""

    @checked
    def __init__(
        self, *args: Any, method: Method = "auto", backend: Backend = "auto", levels: Count | None = None,
        forward: Literal["auto", "linear", "chunked", "newton"] = "auto", **kwargs: Any,
    ):  # fmt: skip
        super().__init__(*args, **kwargs)
        self.method, self.backend, self.levels = method, backend, levels
        self.forward_choice = Forward(forward)
        self._seen = None
        self._check()

    @property
    def cell(self) -> Cell:
        """The cell's equations."""
        return _CELLS[self.mode]

    @property
    def directions(self) -> int:
        """How many directions in time there are."""
        return 2 if self.bidirectional else 1

    def _check(self):
        """Refuse what is not there, once for all attributes as they are."""
        seen = [getattr(self, name, None) for name in _SETTINGS]
        if seen == self._seen:
            return
        check_choice("mode", self.mode, _CELLS)
        if self.proj_size:
            got = f"got {self.proj_size!r}: torch.nn.{type(self).__name__} has it"
            raise NotImplementedError(f"proj_size must be 0 in a bppsa_nb.torch.{type(self).__name__}, {got}")
        chain.choose(self.method, self.resolve_backend(), self.levels, (1, 1, self.hidden_size), np.dtype("f4"), 1)
        ends = [f"_l{layer}{way}" for layer in range(self.num_layers) for way in ("", "_reverse")[: self.directions]]
        self._names = [f"{name}{end}" for end in ends for name in NAMES]
        rows, H = self.cell.gates * self.hidden_size, self.hidden_size
        self._shapes = []
        for layer in range(self.num_layers):
            of_x = rows, H * self.directions if layer else self.input_size
            self._shapes += [of_x, (rows, H), (rows,), (rows,)] * self.directions
        self._seen = seen

    def resolve_backend(self, on_gpu=False):
        """Return what computes: for tensors on the host, a GPU only if it is asked for."""
        if on_gpu:
            return backends.cuda_only(self.backend)
        if self.backend == "auto":
            return "cpu" if backends.compiles() else "numpy"
        return backends.resolve(self.backend)

    def view_layers(self, params):
        """Return layers as `bppsa_nb.cells.stack` takes them, on the memory of parameters in PyTorch's order."""
        arrays, count = list(map(solve.as_array, params)), len(params) // len(NAMES)
        names = [f"{name}_l{layer}" for layer in range(count) for name in NAMES]
        named = dict(zip(names, arrays, strict=True))
        return solve.Layers(self.cell, arrays[0].dtype, self.hidden_size, count, named)

    def forward(
        self, input: torch.Tensor | PackedSequence, hx: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        resets: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | PackedSequence, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:  # fmt: skip
        """Go through time.

        Parameters
        ----------
        input
            Inputs (T, B, I), (B, T, I) with ``batch_first=True``, or (T, I), in the parameters' dtype; where PyTorch
            chooses dtypes (`torch.autocast`), in any.
        hx
            Initial states (D L, B, H), or (D L, H) of one sample; zeros if not given. Of an LSTM, a tuple of h and c.
            D is 2 with ``bidirectional=True``.
        resets
            Of bool, (T, B) or laid out as the input: true where a sample begins anew. Before this step, its states are
            set to zeros, and no gradient goes back. Backward in time, it begins anew between the same two steps. On the
            host only.

        Returns
        -------
        output : torch.Tensor [shape=(T, B, D H)] or PackedSequence
            Hidden states of the last layer, laid out as the input.
        h_n : torch.Tensor
            Last states of all layers, laid out as `hx`; of an LSTM, a tuple of h and c.

        Raises
        ------
        NotImplementedError
            For a PackedSequence or resets on a GPU.
        """
        self._check()
        params, given = self._params(), self._given(hx)
        if resets is None and given is not None and self._is_usual(input, given, params):
            x = input.transpose(0, 1) if self.batch_first else input
            output, *last = self._run(x, given or self._zeros(x, x.shape[1]), BOTH, params)
            output = output.transpose(0, 1) if self.batch_first else output
        else:
            output, last = self._run_any(input, hx, resets, params)
        return output, (last[0] if len(last) == 1 else tuple(last))

    forward = torch.compiler.disable(forward)  # which could not look inside; no decorator, which hides its type

    def _given(self, hx):
        """Return the initial states that are given, a tuple, which is empty for none; or None if they do not fit."""
        if hx is None:
            return ()
        given = (hx,) if self.cell.states == 1 else hx
        return tuple(given) if isinstance(given, (tuple, list)) and len(given) == self.cell.states else None

    def _is_usual(self, input, given, params):
        """Tell whether nothing can be wrong: the tensors are plain ones on the host, and of one dtype, and fit."""
        dtype = params[0].dtype
        for tensor in (input, *given, *params):
            if type(tensor) not in _PLAIN or tensor.dtype is not dtype or not tensor.is_cpu or solve.on_gpu(tensor):
                return False
            if tensor.layout is not torch.strided:
                return False
        if dtype not in _FLOATS or torch.is_autocast_enabled("cpu") or input.dim() != 3 or not input.numel():
            return False
        shape = self.num_layers * self.directions, input.shape[0 if self.batch_first else 1], self.hidden_size
        return input.shape[2] == self.input_size and all(start.shape == shape for start in given)

    def _run(self, x, starts, ways, params):
        """Go through all layers; return outputs, and last states (D L, B, H), of an LSTM h and c.

        Outputs are laid out as inputs are, rows of packed sequences or steps (T, B, ...); `ways` are both directions.
        """
        D, drop = self.directions, self.dropout if self.training else 0
        if D == 1 and not drop:
            return solve.Solve.apply(self, ways[0], solve.plain(x), *map(solve.plain, starts), *params)
        last, count = [], len(NAMES)
        for layer in range(self.num_layers):
            x, found = solve.plain(dropout(x, drop) if layer and drop else x), []
            for i, way in enumerate(ways[:D], D * layer):
                own = *(solve.plain(start[i : i + 1]) for start in starts), *params[count * i : count * (i + 1)]
                output, *ended = solve.Solve.apply(self, way, x, *own)
                found.append(output)
                last.append(ended)
            x = torch.cat(found, 2 if x.dim() == 3 else 1) if D > 1 else output
        return x, *map(torch.cat, zip(*last, strict=True))

    def _run_any(self, input, hx, resets, params):
        """Raise what is wrong, or go through all layers; return what `forward` returns, with all last states a list."""
        packed, batch_axis = isinstance(input, PackedSequence), 0 if self.batch_first else 1
        data, sizes = (input.data, input.batch_sizes) if packed else (input, None)
        if not isinstance(data, torch.Tensor):
            raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
        starts, single = self._starts(data, hx, packed), data.dim() == 2 and not packed
        if single:
            data, starts = data.unsqueeze(batch_axis), [start.unsqueeze(1) for start in starts]
        if data.device.type in _PLACES and torch.is_autocast_enabled(data.device.type):
            data, *starts = (each.to(self.weight_hh_l0.dtype) for each in (data, *starts))
        if packed:
            check_packed(input)
        starts = starts or self._zeros(data, int(sizes[0]) if packed else data.shape[batch_axis])
        self.check_forward_args(data, starts[0] if len(starts) == 1 else tuple(starts), sizes)
        names = ["hx"] if len(starts) == 1 else [f"hx[{s}]" for s in range(len(starts))]
        named = dict(zip([*self._names, *names], [*params, *starts], strict=True))
        self._check_tensors(data, packed or resets is not None, **named)
        x, ways = data.transpose(0, 1) if self.batch_first and not packed else data, BOTH
        if resets is not None:
            ways = Sequences.cut(self._spans(resets, x, packed, single))
        if packed:
            ways, starts = Sequences.packed(sizes), permuted(starts, input.sorted_indices)
        dtype = x.dtype
        if dtype in _HALVES:
            x, starts, params = x.float(), [each.float() for each in starts], [each.float() for each in params]
        output, *last = (each.to(dtype) for each in self._run(x, starts, ways, params))
        if packed:
            return PackedSequence(output, *input[1:]), permuted(last, input.unsorted_indices)
        output = output.transpose(0, 1) if self.batch_first else output
        return (output.squeeze(batch_axis), [each.squeeze(1) for each in last]) if single else (output, last)

    def _zeros(self, data, batch):
        """Return the initial states of a batch of so many samples where none are given."""
        return [data.new_zeros(self.num_layers * self.directions, batch, self.hidden_size)] * self.cell.states

    def _starts(self, data, hx, packed):
        """Return the initial states that are given, a list, which is empty for none."""
        count, given = self.cell.states, self._given(hx)
        if given is None or not all(isinstance(each, torch.Tensor) for each in given):
            expected = "a torch.Tensor" if count == 1 else f"a tuple of {count} torch.Tensors"
            raise TypeError(f"hx must be {expected}, got {type(hx).__name__}")
        dims = {3} if packed else {each.dim() for each in (data, *given)}
        if packed and any(each.dim() != 3 for each in given):
            raise ValueError(f"hx must be 3-d with a PackedSequence, got {[each.dim() for each in given]}")
        if len(dims) > 1 or not dims <= {2, 3}:
            got = " and ".join(f"{each.dim()}-d" for each in (data, *given))
            raise ValueError(f"input must be 2-d or 3-d, and hx have as many dimensions, got {got}")
        return list(given)

    def _spans(self, resets, x, packed, single):
        """Return where samples begin anew, of what a caller gives for inputs `x` (T, B, I)."""
        if packed:
            raise ValueError("resets must be None with a PackedSequence: cut its sequences there")
        if not isinstance(resets, torch.Tensor) or resets.dtype != torch.bool:
            got = resets.dtype if isinstance(resets, torch.Tensor) else type(resets).__name__
            raise TypeError(f"resets must be a torch.Tensor of bool, got {got}")
        T, B, _ = x.shape
        shape = (T,) if single else (B, T) if self.batch_first else (T, B)
        if resets.shape != shape:
            raise ValueError(f"resets must have shape {shape}, as input has, got {tuple(resets.shape)}")
        if not resets.is_cpu or resets.layout is not torch.strided:
            got = f"{resets.device}, {resets.layout}"
            raise TypeError(f"resets must be a dense tensor on the host, as input is, got {got}")
        resets = resets[:, None] if single else resets.T if self.batch_first else resets
        return Spans.checked(None, resets.numpy(), x)

    def _params(self):
        """Return what there is under the parameters' names: zeros for biases that are not there."""
        own, names = self._parameters, self._names
        if all(map(own.__contains__, names)):
            found = [own[name] for name in names]
        else:
            zeros = None if self.bias else self.weight_hh_l0.new_zeros(len(self.weight_hh_l0))
            found = [getattr(self, name, zeros) for name in names]
        for name, tensor, shape in zip(names, found, self._shapes, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
            if tensor.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
        return list(map(solve.plain, found))

    def _check_tensors(self, input, parted, **tensors):
        own, tensors = tensors["weight_hh_l0"], {"input": input} | tensors
        if own.dtype not in (*_FLOATS, *_HALVES):
            known = "float32, float64, float16 or bfloat16"
            raise TypeError(f"parameters must be {known}, got {own.dtype}")
        if own.device.type not in _PLACES:
            raise TypeError(f"parameters must be on the host or on a GPU, got {own.device}")
        for name, tensor in tensors.items():
            if tensor.dtype != own.dtype:
                raise TypeError(f"{name} must be {own.dtype}, as weight_hh_l0 is, got {tensor.dtype}")
            if tensor.layout is not torch.strided:
                raise TypeError(f"{name} must be a dense tensor, got one of layout {tensor.layout}")
            if tensor.device != own.device:
                raise TypeError(f"{name} must be on {own.device}, as weight_hh_l0 is, got {tensor.device}")
        shape = tuple(input.shape)
        if 0 in shape[:2]:
            raise ValueError(f"input must have at least one step and one sample, got shape {shape}")
        if self.forward_choice.method == "newton" and solve.on_gpu(input):
            raise ValueError("forward must be 'auto', 'linear' or 'chunked' where input is on a GPU, got 'newton'")
        if parted and solve.on_gpu(input):
            raise NotImplementedError("a PackedSequence and resets must be on the host, got those for a GPU")

    def extra_repr(self):
        """Return what stands between the brackets when the module is printed."""
        chosen = {name: getattr(self, name) for name in ("method", "backend", "levels")}
        chosen["forward"] = self.forward_choice.method
        usual = "auto", None
        return ", ".join([super().extra_repr(), *(f"{k}={v!r}" for k, v in chosen.items() if v not in usual)])
