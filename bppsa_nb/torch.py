"""For PyTorch: `RNN` and `GRU` to stand where `torch.nn.RNN` and `torch.nn.GRU` stood; nothing else changes.

They are subclasses: constructor, parameters, `state_dict`, layouts and what `forward` takes and returns are PyTorch's.
What goes through time, forward and back, is this package's, where the tensors are, the host or a GPU, on PyTorch's
memory, without copies. It is imported by ``import bppsa_nb.torch``, never by the package itself.
"""

import functools
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from bppsa_nb.cells import gru, rnn, stacked, unroll
from bppsa_nb.cells.cell import Cell
from bppsa_nb.cells.layer import NAMES
from bppsa_nb.chains import backprop as chain
from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import check_choice
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.training.forward import METHODS, Forward, share_of

_CELLS = {"RNN_TANH": rnn.RNN, "GRU": gru.GRU}
_PLACES, _FLOATS, _PLAIN = ("cpu", "cuda"), (torch.float32, torch.float64), (torch.Tensor, torch.nn.Parameter)
_SETTINGS = "bidirectional", "dropout", "proj_size", "nonlinearity", "mode", "method", "backend", "levels"


class _Layers(NamedTuple):
    """As much of a `Recurrent` as `bppsa_nb.cells.stacked` needs."""

    cell: Cell
    dtype: np.dtype
    hidden_size: int
    num_layers: int
    params: dict


class _Solve(torch.autograd.Function):
    """All layers and all steps at once: one node of the graph."""

    @staticmethod
    def forward(ctx, module, names, x, h0, *params):
        backend = module.resolve_backend(_on_gpu(x))
        options = _options(**module.forward_choice.how())
        with _beside(x):
            layers = module.view_layers(names, params)
            means = _means(x, backend=backend)
            saved, solved = _stacked(x).forward(layers, _array(x), _initial(h0), options, **means)
        if module.forward_choice.rest or any(solved):
            module.forward_choice.remember(share_of(layers, x.shape, solved, backend))
        output = _tensor(saved[-1][0][0, 1:], x)
        # Through PyTorch's hands, so that it notices where one of them is changed before it is needed again.
        ctx.save_for_backward(x, output, *params)
        ctx.kept = module, names, saved
        ctx.set_materialize_grads(False)
        return output, _stack([states[0, len(x)] for states, _ in saved], x)

    @staticmethod
    def backward(ctx, grad_output, grad_last):
        if torch.is_grad_enabled():  # by create_graph=True
            why = "gradients of gradients are not known to bppsa_nb.torch; torch.nn has them"
            raise NotImplementedError(f"create_graph must be False: {why}")
        x, output, *params = ctx.saved_tensors
        if grad_output is None and grad_last is None:  # nothing that was read depends on it
            return (None,) * len(ctx.needs_input_grad)
        module, names, saved = ctx.kept
        backend = module.resolve_backend(_on_gpu(x))
        grad_output, grad_last = (each if each is None else _plain(each) for each in (grad_output, grad_last))
        with _beside(x):
            layers = module.view_layers(names, params)
            ends = [None] * layers.num_layers if grad_last is None else list(map(_array, grad_last))
            local_grads = None if grad_output is None else _array(grad_output)
            sizes = (*output.shape[:2], layers.cell.states * layers.hidden_size), layers.dtype, layers.cell.weights
            how = chain.choose(module.method, backend, module.levels, *sizes)
            wanted = ctx.needs_input_grad[2]
            found = _stacked(x).backward(layers, _array(x), saved, ends, local_grads, how, wanted, **_means(x))
        grads, at_input, at_start = found
        of_h0 = _stack(at_start, x) if ctx.needs_input_grad[3] else None
        of_x = None if at_input is None else _tensor(at_input, x)
        return None, None, of_x, of_h0, *(_tensor(grads[name], x) for name in names)


# Where PyTorch and Numba meet.


def _on_gpu(tensor):
    """Tell whether a tensor is in a GPU's memory."""
    return tensor.is_cuda


@functools.cache
def _options(**how):
    return unroll.SolverOptions(**{"method": "auto"} | how)


def _stacked(tensor):
    """Return what goes through layers where a tensor is."""
    return implementation("bppsa_nb.cells.stacked", "cuda") if _on_gpu(tensor) else stacked


def _means(tensor, **on_host):
    """Return what it needs besides, by keyword: on a GPU, room for arrays, which PyTorch gives."""
    return {"new": lambda shape: _array(tensor.new_empty(shape))} if _on_gpu(tensor) else on_host


def _plain(tensor):
    """Return a tensor whose numbers are in memory as they are, row by row: without minus signs that were put off."""
    return tensor.resolve_neg().contiguous()


def _array(tensor):
    """View a tensor, contiguous where it is on a GPU, as an array: NumPy's or Numba's, which keeps it alive."""
    if not _on_gpu(tensor):
        return tensor.detach().numpy()
    from bppsa_nb.machine.arrays_cuda import as_device_array

    return as_device_array("input", tensor.detach())


def _initial(h0):
    """View initial states (L, B, H) as the module for where they are takes them."""
    return [_array(h0)] if _on_gpu(h0) else _array(h0)[:, None]


def _tensor(array, like):
    """View an array as a tensor, which keeps it alive, where another tensor is."""
    return torch.as_tensor(array, device=like.device) if _on_gpu(like) else torch.from_numpy(array)


def _stack(arrays, like):
    """Copy arrays to a tensor where another one is."""
    if _on_gpu(like):
        return torch.stack([_tensor(array, like) for array in arrays])
    return torch.from_numpy(np.array(arrays))


def _beside(tensor):
    """Have a block compute where a tensor is; whatever leaves the range is infinite or NaN, as in PyTorch."""
    return _beside_pytorch(tensor) if tensor.is_cuda else np.errstate(all="ignore")


@contextmanager
def _beside_pytorch(tensor):
    """Have Numba compute on the device of a tensor, and take turns with PyTorch.

    Numba launches on the legacy default stream. It is PyTorch's default stream, too; where PyTorch is on another one,
    either waits for the other. Nothing of PyTorch's is launched in between.
    """
    from bppsa_nb.machine.cuda_compiler import cuda

    with torch.cuda.device(tensor.device), cuda.gpus[tensor.device.index], np.errstate(all="ignore"):
        here, legacy = torch.cuda.current_stream(), torch.cuda.default_stream()
        legacy.wait_stream(here)
        try:
            yield
        finally:
            here.wait_stream(legacy)


class _Scanned:
    """What both kinds of layers share: `forward`, and what they refuse."""

    def __init__(self, *args, method="auto", backend="auto", levels=None, forward="auto", **kwargs):
        super().__init__(*args, **kwargs)
        self.method, self.backend, self.levels = method, backend, levels
        check_choice("forward", forward, METHODS)
        self.forward_choice = Forward(forward)
        self._names = [f"{name}_l{layer}" for layer in range(self.num_layers) for name in NAMES]
        self._seen = None
        self._check()

    def _check(self):
        """Refuse what is not there, once for all attributes as they are."""
        seen = [getattr(self, name, None) for name in _SETTINGS]
        if seen == self._seen:
            return
        only = {"bidirectional": False, "dropout": 0, "proj_size": 0, "nonlinearity": "tanh", "mode": self._mode}
        for name, usual in only.items():
            if (value := getattr(self, name, usual)) != usual:
                kind = type(self).__name__
                got = f"got {value!r}: torch.nn.{kind} has it"
                raise NotImplementedError(f"{name} must be {usual!r} in a bppsa_nb.torch.{kind}, {got}")
        shape, dtype = (1, 1, self.hidden_size), np.dtype(np.float32)
        chain.choose(self.method, self.resolve_backend(), self.levels, shape, dtype, 1)
        self._seen = seen

    def resolve_backend(self, on_gpu=False):
        """Return what computes: for tensors on the host, a GPU only if it is asked for."""
        if on_gpu:
            from bppsa_nb.chains.backprop_cuda import cuda_only

            return backends.resolve(cuda_only(self.backend))
        if self.backend == "auto":
            return "cpu" if backends.compiles() else "numpy"
        return backends.resolve(self.backend)

    def view_layers(self, names, params):
        """Return the layers as `bppsa_nb.cells.stacked` takes them, on the memory of these parameters."""
        arrays, sizes = dict(zip(names, map(_array, params), strict=True)), (self.hidden_size, self.num_layers)
        return _Layers(_CELLS[self.mode].cell, arrays[names[0]].dtype, *sizes, arrays)

    @torch.compiler.disable  # which could not look inside
    def forward(self, input, hx=None):
        """Go through time.

        Parameters
        ----------
        input : torch.Tensor [shape=(T, B, I)], [shape=(B, T, I)] with ``batch_first=True``, or [shape=(T, I)]
            In the parameters' dtype, float32 or float64; where PyTorch chooses dtypes (`torch.autocast`), in any.
        hx : torch.Tensor [shape=(L, B, H)] or [shape=(L, H)], optional
            Initial states; zeros if not given.

        Returns
        -------
        output : torch.Tensor
            Hidden states of the last layer, laid out as the input.
        h_n : torch.Tensor
            Last states of all layers, laid out as `hx`.

        Raises
        ------
        RuntimeError, ValueError
            What PyTorch raises, too, for shapes and dtypes that do not fit; for a method or a backend that is not to be
            had on a GPU.
        NotImplementedError, TypeError
            For a PackedSequence; for what is no tensor, parameters of another dtype than float32 and float64, and
            tensors that are not all in one place, on the host or a GPU.
        """
        self._check()
        params, single, batch_axis = self._params(), False, 0 if self.batch_first else 1
        if not self._is_usual(input, hx, params):
            input, hx, single = self._looked_at(input, hx, params)
        if hx is None:
            hx = input.new_zeros(self.num_layers, input.shape[batch_axis], self.hidden_size)
        x = input.transpose(0, 1) if self.batch_first else input
        output, last = _Solve.apply(self, self._names, _plain(x), _plain(hx), *params)
        output = output.transpose(0, 1) if self.batch_first else output
        return (output.squeeze(batch_axis), last.squeeze(1)) if single else (output, last)

    def _is_usual(self, input, hx, params):
        """Tell whether nothing can be wrong: the tensors are plain ones on the host, and of one dtype, and fit."""
        dtype, tensors = params[0].dtype, (input, *params) if hx is None else (input, hx, *params)
        for tensor in tensors:
            if type(tensor) not in _PLAIN or tensor.dtype is not dtype or not tensor.is_cpu or _on_gpu(tensor):
                return False
        if dtype not in _FLOATS or torch.is_autocast_enabled("cpu") or input.dim() != 3 or not input.numel():
            return False
        shape = self.num_layers, input.shape[0 if self.batch_first else 1], self.hidden_size
        return input.shape[2] == self.input_size and (hx is None or hx.shape == shape)

    def _looked_at(self, input, hx, params):
        """Raise what is wrong; return input and initial states of a batch, and whether they came without one."""
        if isinstance(input, PackedSequence):
            kind = type(self).__name__
            got = f"got a PackedSequence: torch.nn.{kind} takes these"
            raise NotImplementedError(f"input must be a tensor in a bppsa_nb.torch.{kind}, {got}")
        for name, given in ("input", input), ("hx", hx):
            if not isinstance(given, torch.Tensor) and (given is not None or name == "input"):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(given).__name__}")
        if input.dim() not in (2, 3) or (hx is not None and hx.dim() != input.dim()):
            got = f"{input.dim()}-d" + ("" if hx is None else f" and {hx.dim()}-d")
            raise ValueError(f"input must be 2-d or 3-d, and hx have as many dimensions, got {got}")
        single, batch_axis = input.dim() == 2, 0 if self.batch_first else 1
        if single:
            input, hx = input.unsqueeze(batch_axis), None if hx is None else hx.unsqueeze(1)
        if input.device.type in _PLACES and torch.is_autocast_enabled(input.device.type):
            input, hx = (None if each is None else each.to(self.weight_hh_l0.dtype) for each in (input, hx))
        if hx is None:
            hx = input.new_zeros(self.num_layers, input.shape[batch_axis], self.hidden_size)
        self.check_forward_args(input, hx, None)
        self._check_tensors(**dict(zip(self._names, params, strict=True)), input=input, hx=hx)
        return input, hx, single

    def _params(self):
        """Return what there is under the parameters' names: zeros for biases that are not there."""
        own, names = self._parameters, self._names
        if all(map(own.__contains__, names)):
            return [_plain(own[name]) for name in names]
        zeros = None if self.bias else self.weight_hh_l0.new_zeros(len(self.weight_hh_l0))
        return [_plain(getattr(self, name, zeros)) for name in names]

    def _check_tensors(self, **tensors):
        own = tensors["weight_hh_l0"]
        if own.dtype not in _FLOATS:
            raise TypeError(f"parameters must be float32 or float64, got {own.dtype}")
        if own.device.type not in _PLACES:
            raise TypeError(f"parameters must be on the host or on a GPU, got {own.device}")
        for name, tensor in tensors.items():
            if tensor.dtype != own.dtype:
                raise TypeError(f"{name} must be {own.dtype}, as weight_hh_l0 is, got {tensor.dtype}")
            if tensor.device != own.device:
                raise TypeError(f"{name} must be on {own.device}, as weight_hh_l0 is, got {tensor.device}")
        shape = tuple(tensors["input"].shape)
        if 0 in shape[:2]:
            raise ValueError(f"input must have at least one step and one sample, got shape {shape}")
        if self.forward_choice.method == "newton" and _on_gpu(tensors["input"]):
            raise ValueError("forward must be 'auto', 'linear' or 'chunked' where input is on a GPU, got 'newton'")

    def extra_repr(self):
        """Return what stands between the brackets when the module is printed."""
        chosen = {name: getattr(self, name) for name in ("method", "backend", "levels")}
        chosen["forward"] = self.forward_choice.method
        usual = "auto", None
        return ", ".join([super().extra_repr(), *(f"{k}={v!r}" for k, v in chosen.items() if v not in usual)])


class RNN(_Scanned, torch.nn.RNN):
    """Elman's recurrent layers, as `torch.nn.RNN`, which see; with tanh.

    Parameters
    ----------
    *args, **kwargs
        Those of `torch.nn.RNN`. What is not there raises NotImplementedError: ReLU, two directions, dropout.
    method : {"auto", "linear", "blelloch", "truncated", "chunked"}
        How gradients go back through time; see `bppsa_nb.RNN.backward`, also for `levels`.
    backend : {"auto", "cpu", "numpy", "cuda"}
        What computes; by default what the tensors are on. For those on a GPU, "auto" or "cuda".
    levels : int, optional
    forward : {"auto", "linear", "chunked", "newton"}
        How states are found; see `bppsa_nb.RNN.forward`. On a GPU not "newton".

    Examples
    --------
    >>> import torch
    >>> from bppsa_nb.torch import RNN
    >>> output, h_n = RNN(input_size=3, hidden_size=20)(torch.ones(7, 2, 3))
    >>> output.shape, h_n.shape
    (torch.Size([7, 2, 20]), torch.Size([1, 2, 20]))
    """

    _mode = "RNN_TANH"


class GRU(_Scanned, torch.nn.GRU):
    """Gated recurrent units, as `torch.nn.GRU`, which see; its other parameters are those of `RNN`."""

    _mode = "GRU"
