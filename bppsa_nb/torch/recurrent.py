"""Recurrent layers of a cell of one's own."""

from itertools import compress
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from bppsa_nb.cells.cell import NAMES, Cell
from bppsa_nb.cells.check_cell import check_numbers
from bppsa_nb.torch import composed
from bppsa_nb.torch.layers import OWN_CELL, Scanned

BIASES = NAMES[2:]


class Recurrent(Scanned, torch.nn.RNNBase):
    """Layers of a cell of one's own, which take and return what those of `torch.nn` do.

    ``output, last = layers(input, hx)``, and all else that `RNN.forward` has. A cell with several states has tuples of
    these.

    Parameters
    ----------
    cell
        The equations, a `bppsa_nb.Cell`.
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype
        As for `torch.nn.RNN`; the first three are I, H and L.
    method, levels, forward, backend, checkpoint_every
        As for `RNN`.

    Attributes
    ----------
    weight_ih_l<l>, weight_hh_l<l>, bias_ih_l<l>, bias_hh_l<l> : torch.nn.Parameter
        [shape=(G H, I)] (l > 0: [shape=(G H, D H)]), [shape=(G H, H)] and twice [shape=(G H,)], as those of `RNN`, for
        the G gates of the cell. An elementwise cell has no `weight_hh` and `bias_hh`. Each of the cell's vectors is a
        parameter, [shape=(H,)]. All begin as those of `RNN` do.

    Raises
    ------
    TypeError, ValueError
        If the cell's functions do not take and return as many numbers as it says.

    Notes
    -----
    What this package's code cannot do, PyTorch's operations do, step by step, by the cell's `step`: complex numbers,
    other devices, gradients of gradients, `torch.func`. `runs_by` tells. On a GPU, cells with vectors, or without
    weights of h, are not known yet.

    Examples
    --------
    >>> adds = Cell(lambda preacts, before: ((before[0] + preacts[0],), ()),
    ...             lambda grads, before, after, kept: ((grads[0],), (grads[0],)), carry=True)
    >>> output, last = Recurrent(adds, 3, 20)(torch.ones(7, 2, 3))
    >>> output.shape
    torch.Size([7, 2, 20])
    """

    cell: Cell = None

    def __init__(self, cell: Cell, *sizes: Any, device: Any = None, dtype: Any = None, **how: Any):
        check_numbers(cell)
        self.cell = cell
        super().__init__("RNN_TANH", *sizes, proj_size=0, device="meta", **how)  # which checks; parameters come below
        self.mode = OWN_CELL
        self._settle()
        self._parameters.clear()
        self._flat_weights_names, self._all_weights, count = [], [], len(cell.names)
        shapes = dict(zip(self._names, self._shapes, strict=True))
        has = [self.bias or name not in BIASES for name in cell.names]
        for first in range(0, len(shapes), count):
            self._all_weights.append([*compress(self._names[first:], has)])
            for name in self._all_weights[-1]:
                setattr(self, name, torch.nn.Parameter(torch.empty(shapes[name], device=device, dtype=dtype)))
        self._flat_weights_names = sum(self._all_weights, [])
        self._init_flat_weights()
        self.reset_parameters()

    def flatten_parameters(self) -> None:
        """Leave parameters as they are; cuDNN reads none of these."""

    def runs_by(self, input: torch.Tensor | PackedSequence, hx: Any = None) -> tuple[str, str]:
        """Return whose code would go through time for these, "bppsa_nb.torch" or "torch", and why."""
        why = self._why_torch(input, self._given(hx), self._params())
        return ("torch", why) if why else ("bppsa_nb.torch", "it can")

    def _run_by_torch(self, why, input, hx, resets, reset_states, every):
        """Go through time by PyTorch's operations, or raise what is wrong, as torch.nn does."""
        packed, given = isinstance(input, PackedSequence), self._given(hx)
        if given is None or not all(isinstance(each, torch.Tensor) for each in given):
            what = "a tensor" if self.cell.states == 1 else f"a tuple of {self.cell.states} tensors"
            raise TypeError(f"hx must be {what}, got {type(hx).__name__}")
        batch, sizes = (input.data, input.batch_sizes) if packed else (input, None)
        one = not packed and input.dim() == 2
        batch = batch.unsqueeze(not self.batch_first) if one else batch
        self.check_input(batch, sizes)
        for each in given:
            self.check_hidden_size(each.unsqueeze(1) if one else each, self.get_expected_hidden_size(batch, sizes))
        if not batch.shape[self.batch_first and not packed]:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        cut = self._cut(input, resets, reset_states)
        return self._run_batch(input, given, self._params(), cut, every, composed.run)

    def extra_repr(self):
        """Return what stands between the brackets when the module is printed."""
        return f"{self.cell}, {super().extra_repr()}"
