"""For PyTorch: `RNN`, `GRU` and `LSTM` to stand where those of `torch.nn` stood; nothing else changes.

They are subclasses: constructor, parameters, `state_dict`, layouts and what `forward` takes and returns are PyTorch's.
What goes through time, forward and back, is this package's, where the tensors are, the host or a GPU, on PyTorch's
memory, without copies. It is imported by ``import bppsa_nb.torch``, never by the package itself.
"""

import torch

from bppsa_nb.torch.layers import Scanned


class RNN(Scanned, torch.nn.RNN):
    """Elman's recurrent layers, as `torch.nn.RNN`, which see; with tanh or ReLU.

    Parameters
    ----------
    *args, **kwargs
        Those of `torch.nn.RNN`.
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


class GRU(Scanned, torch.nn.GRU):
    """Gated recurrent units, as `torch.nn.GRU`, which see; its other parameters are those of `RNN`."""


class LSTM(Scanned, torch.nn.LSTM):
    """Long short-term memory, as `torch.nn.LSTM`, which see; its other parameters are those of `RNN`.

    `proj_size` must be 0.
    """
