"""For PyTorch: `RNN`, `GRU` and `LSTM` to stand where those of `torch.nn` stood; nothing else changes.

They are subclasses: constructor, parameters, `state_dict`, layouts and what `forward` takes and returns are PyTorch's.
What goes through time, forward and back, is this package's, where the tensors are, the host or a GPU, on PyTorch's
memory, without copies. It is imported by ``import bppsa_nb.torch``, never by the package itself.
"""

import inspect
from pathlib import Path
from typing import get_overloads

import torch

from bppsa_nb.torch import choice
from bppsa_nb.torch.convert import KINDS, convert  # noqa: F401
from bppsa_nb.torch.layers import Scanned
from bppsa_nb.torch.recurrent import Recurrent

_MORE = """, as `torch.nn.LAYER`, with its parameters and `state_dict`.

    ``output, h_n = layers(input, hx)`` takes inputs (T, B, I), or (B, T, I) with ``batch_first=True``, and first states
    (D L, B, H), zeros if not given; it returns outputs (T, B, D H), laid out as inputs, and last states (D L, B, H). D
    is 2 with ``bidirectional=True``, else 1. An LSTM has tuples of states, h and c. `forward` has `resets`, too, with
    `reset_states` to begin anew with, and returns all states with `return_states`; see there.

    Parameters
    ----------
    input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, device, dtype
        As for `torch.nn.LAYER`; the first three are I, H and L. Only an RNN has a `nonlinearity`.
    method, levels, forward, backend, checkpoint_every
        As for `bppsa_nb.RNN.backward`; `forward` and `checkpoint_every` as for `bppsa_nb.RNN.forward`. On a GPU,
        neither "newton" nor `checkpoint_every` is there.

    Attributes
    ----------
    weight_ih_l<l>, weight_hh_l<l>, bias_ih_l<l>, bias_hh_l<l> : torch.nn.Parameter
        [shape=(G H, I)] (l > 0: [shape=(G H, D H)]), [shape=(G H, H)] and twice [shape=(G H,)]. G is the number of
        gates: an RNN's one, a GRU's r, z, n, an LSTM's i, f, g, o. Names for the way back end in ``_reverse``.

    Notes
    -----
    `torch.nn.LAYER` itself goes through time where it is faster, and for what these layers do not know, such as
    `proj_size`, complex numbers, or transforms of `torch.func` but `vmap`; `runs_by` tells.

    Examples
    --------
    >>> output, last = LAYER(input_size=3, hidden_size=20)(torch.ones(7, 2, 3))
    >>> output.shape
    torch.Size([7, 2, 20])
    """


def _init_of(theirs):
    """Make an `__init__` that names what it takes: what torch.nn's does, and the keywords of `Scanned`."""

    def __init__(self, *args, **kwargs):
        Scanned.__init__(self, *args, **kwargs)

    __init__.__signature__ = inspect.Signature(_taken_by(theirs))
    return __init__


def _taken_by(theirs):
    """Return the parameters of torch.nn's `__init__`, and the keywords of `Scanned`."""
    usual = inspect.signature(get_overloads(theirs.__init__)[0]).parameters.values()
    more = inspect.signature(Scanned.__init__).parameters.values()
    return [*usual, *(each for each in more if each.kind is each.KEYWORD_ONLY)]


class RNN(Scanned, torch.nn.RNN):  # noqa: D101
    __doc__ = "Elman's recurrent layers" + _MORE.replace("LAYER", "RNN")


class GRU(Scanned, torch.nn.GRU):  # noqa: D101
    __doc__ = "Gated recurrent units" + _MORE.replace("LAYER", "GRU")


class LSTM(Scanned, torch.nn.LSTM):  # noqa: D101
    __doc__ = "Layers of long short-term memory" + _MORE.replace("LAYER", "LSTM")


KINDS |= {torch.nn.RNN: RNN, torch.nn.GRU: GRU, torch.nn.LSTM: LSTM}
for _theirs, _own in KINDS.items():  # type checkers read that of `Scanned`
    _own.__init__ = _init_of(_theirs)
_self, *_others = _taken_by(torch.nn.GRU)
_cell = inspect.signature(Recurrent.__init__).parameters["cell"]
Recurrent.__init__.__signature__ = inspect.Signature([_self, _cell, *_others])


def calibrate(progress: bool = True) -> Path:
    """Measure, for minutes, which layers are faster by torch.nn here; return the file that they go by from then on."""
    return choice.measure(KINDS, progress)
