"""For PyTorch: `RNN` and `GRU` to stand where `torch.nn.RNN` and `torch.nn.GRU` stood; nothing else changes.

They are subclasses: constructor, parameters, `state_dict`, layouts and what `forward` takes and returns are PyTorch's.
What goes through time, forward and back, is this package's, on PyTorch's memory, without copies. It is imported by
``import bppsa_nb.torch``, never by the package itself.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from bppsa_nb.cells import gru, rnn, stacked, unroll
from bppsa_nb.chains import backprop as chain
from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import check_choice
from bppsa_nb.training.forward import METHODS, Forward, share_of

_CELLS = {"RNN_TANH": rnn.RNN, "GRU": gru.GRU}


@dataclass
class _Layers:
    """What `bppsa_nb.cells.stacked` needs to know of layers."""

    _cell: str
    _rows: int
    hidden_size: int
    num_layers: int
    dtype: np.dtype
    params: dict


class _Solve(torch.autograd.Function):
    """All layers and all steps at once: one node of the graph."""

    @staticmethod
    def forward(ctx, module, names, x, h0, *params):
        layers, backend = module._layers(names, params), module._backend
        how = unroll.How(**{"method": "auto"} | module._forward.how())
        with np.errstate(all="ignore"):
            saved, solved = stacked.forward(layers, _array(x), _array(h0), how, backend)
        module._forward.remember(share_of(layers, x.shape, solved, backend))
        output = torch.from_numpy(saved[-1][0][1:])
        # Through PyTorch's hands, so that it notices where one of them is changed before it is needed again.
        ctx.save_for_backward(x, output, *params)
        ctx.kept = module, names, saved
        ctx.set_materialize_grads(False)
        return output, torch.from_numpy(np.stack([states[-1] for states, *_ in saved]))

    @staticmethod
    def backward(ctx, grad_output, grad_last):
        if torch.is_grad_enabled():  # by create_graph=True
            raise NotImplementedError(
                "gradients of gradients are not known to bppsa_nb.torch: create_graph must be False; torch.nn has them"
            )
        x, output, *params = ctx.saved_tensors
        if grad_output is None and grad_last is None:  # nothing that was read depends on it
            return (None,) * len(ctx.needs_input_grad)
        module, names, saved = ctx.kept
        layers = module._layers(names, params)
        ends = [None] * layers.num_layers if grad_last is None else list(_array(grad_last))
        local_grads = None if grad_output is None else stacked.plain(_array(grad_output))
        shape = *output.shape[:2], layers.hidden_size
        how = chain.choose(module.method, module._backend, module.levels, shape, layers.dtype, layers._rows)
        with np.errstate(all="ignore"):
            found = stacked.backward(layers, _array(x), saved, ends, local_grads, how, ctx.needs_input_grad[2])
        grads, at_input, at_start = found
        of_h0 = torch.from_numpy(np.stack(at_start)) if ctx.needs_input_grad[3] else None
        of_x = None if at_input is None else torch.from_numpy(at_input)
        return None, None, of_x, of_h0, *(torch.from_numpy(grads[name]) for name in names)


def _array(tensor):
    """View a tensor as an array."""
    return tensor.detach().numpy()


class _Scanned:
    """What both kinds of layers share: `forward`, and what they refuse."""

    def __init__(self, *args, method="auto", backend="auto", levels=None, forward="auto", **kwargs):
        super().__init__(*args, **kwargs)
        self.method, self.backend, self.levels = method, backend, levels
        check_choice("forward", forward, METHODS)
        self._forward = Forward(forward)
        self._check()

    def _check(self):
        for name, usual in {"bidirectional": False, "dropout": 0, "proj_size": 0, "nonlinearity": "tanh"}.items():
            if (value := getattr(self, name, usual)) != usual:
                raise NotImplementedError(
                    f"{name} must be {usual!r} in a bppsa_nb.torch.{type(self).__name__}, got {value!r}: "
                    f"torch.nn.{type(self).__name__} has it"
                )
        chain.choose(self.method, self._backend, self.levels, (1, 1, self.hidden_size), np.dtype(np.float32), 1)

    @property
    def _backend(self):
        """What computes for tensors on the host: a GPU only if it is asked for."""
        if self.backend == "auto":
            return "cpu" if backends.compiles() else "numpy"
        return backends.resolve(self.backend)

    def _layers(self, names, params):
        kind = _CELLS[self.mode]
        arrays = dict(zip(names, map(_array, params), strict=True))
        dtype = arrays[names[0]].dtype
        if not self.bias:
            zeros = np.zeros(kind._rows * self.hidden_size, dtype)
            arrays |= {f"bias_{of}_l{layer}": zeros for of in ("ih", "hh") for layer in range(self.num_layers)}
        return _Layers(kind._cell, kind._rows, self.hidden_size, self.num_layers, dtype, arrays)

    def forward(self, input, hx=None):
        """Go through time.

        Parameters
        ----------
        input : torch.Tensor [shape=(T, B, I)], [shape=(B, T, I)] with ``batch_first=True``, or [shape=(T, I)]
            In the parameters' dtype, float32 or float64.
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
            What PyTorch raises, too, for shapes and dtypes that do not fit.
        NotImplementedError
            For a PackedSequence.
        TypeError
            For parameters of another dtype than float32 and float64, or that are not on the host.
        """
        if isinstance(input, PackedSequence):
            raise NotImplementedError(
                f"input must be a tensor in a bppsa_nb.torch.{type(self).__name__}, got a PackedSequence: "
                f"torch.nn.{type(self).__name__} takes these"
            )
        if input.dim() not in (2, 3) or (hx is not None and hx.dim() != input.dim()):
            got = f"{input.dim()}-d" + ("" if hx is None else f" and {hx.dim()}-d")
            raise ValueError(f"input must be 2-d or 3-d, and hx have as many dimensions, got {got}")
        single, batch_axis = input.dim() == 2, 0 if self.batch_first else 1
        if single:
            input, hx = input.unsqueeze(batch_axis), None if hx is None else hx.unsqueeze(1)
        if hx is None:
            hx = input.new_zeros(self.num_layers, input.shape[batch_axis], self.hidden_size)
        self.check_forward_args(input, hx, None)
        names = [name for of_layer in self._all_weights for name in of_layer]
        params = [getattr(self, name) for name in names]
        self._check_tensors(input=input, hx=hx, **dict(zip(names, params, strict=True)))
        x = input.transpose(0, 1) if self.batch_first else input
        output, last = _Solve.apply(self, names, x.contiguous(), hx.contiguous(), *params)
        output = output.transpose(0, 1) if self.batch_first else output
        return (output.squeeze(batch_axis), last.squeeze(1)) if single else (output, last)

    def _check_tensors(self, **tensors):
        dtype = getattr(self, self._all_weights[0][0]).dtype
        for name, tensor in tensors.items():
            if tensor.dtype != dtype or dtype not in (torch.float32, torch.float64):
                raise TypeError(f"{name} must be float32 or float64, as all of them, got {tensor.dtype} and {dtype}")
            if tensor.device.type != "cpu":
                raise TypeError(f"{name} must be on the host, got a tensor on {tensor.device}")
        if 0 in tensors["input"].shape[:2]:
            raise ValueError(
                f"input must have at least one step and one sample, got shape {tuple(tensors['input'].shape)}"
            )

    def extra_repr(self):
        """Return what stands between the brackets when the module is printed."""
        chosen = {
            "method": self.method,
            "backend": self.backend,
            "levels": self.levels,
            "forward": self._forward.method,
        }
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
        What computes; by default what the tensors are on.
    levels : int, optional
    forward : {"auto", "linear", "chunked", "newton"}
        How states are found; see `bppsa_nb.RNN.forward`.

    Examples
    --------
    >>> import torch
    >>> from bppsa_nb.torch import RNN
    >>> output, h_n = RNN(input_size=3, hidden_size=20)(torch.ones(7, 2, 3))
    >>> output.shape, h_n.shape
    (torch.Size([7, 2, 20]), torch.Size([1, 2, 20]))
    """


class GRU(_Scanned, torch.nn.GRU):
    """Gated recurrent units, as `torch.nn.GRU`, which see; its other parameters are those of `RNN`."""
