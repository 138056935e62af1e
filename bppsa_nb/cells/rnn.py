"""The vanilla recurrent network of Equation 9: its equations, and the model made of them."""

from typing import Literal

import numpy as np

from bppsa_nb.cells.cell import Cell
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.machine.arguments import Dtype, Rng, Size, checked
from bppsa_nb.machine.pointwise import constant, relu, tanh, where


def step(preacts, before):
    """Take a step: ``h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh)`` (Equation 9)."""
    return (tanh(preacts[0]),), ()


def back(grads, before, after, kept):
    """Go a step back: ``(d h_t / d h_{t-1})^T = W_hh^T diag(1 - h_t²)``."""
    (grad,), (h,) = grads, after
    return (grad - grad * h * h,), ()


def relu_step(preacts, before):
    """Take a step with max(0, x) in the place of tanh."""
    return (relu(preacts[0]),), ()


def relu_back(grads, before, after, kept):
    """Go a step back where a unit is not silent."""
    (grad,), (h,) = grads, after
    zero = constant(0, h)
    return (where(h > zero, grad, zero),), ()


CELLS = {"tanh": Cell(step, back, bounded=True), "relu": Cell(relu_step, relu_back)}


class RNN(Recurrent):
    """The paper's classifier: vanilla recurrent layers and a linear layer on the last state (Section 4.1).

    Parameters
    ----------
    input_size, hidden_size, num_classes
        I, H and C.
    num_layers
        How many layers are stacked; each reads the hidden states of the one below.
    rng
        Where the initial parameters come from: uniform between -1 / sqrt(H) and 1 / sqrt(H), as in PyTorch.
    dtype
        Of parameters, inputs and gradients.
    nonlinearity
        The function of a unit: tanh, or max(0, x).

    Attributes
    ----------
    params : dict of str to np.ndarray
        With PyTorch's names and layout, for each layer l: ``weight_ih_l<l>`` [shape=(H, I)] (l > 0:
        [shape=(H, H)]), ``weight_hh_l<l>`` [shape=(H, H)], ``bias_ih_l<l>`` and ``bias_hh_l<l>`` [shape=(H,)];
        then ``fc.weight`` [shape=(C, H)], ``fc.bias`` [shape=(C,)].

    Examples
    --------
    >>> import numpy as np
    >>> model = RNN(input_size=1, hidden_size=20, num_classes=10)
    >>> activations = model.forward(np.ones((7, 2, 1), np.float32), backend="numpy")
    >>> activations.logits.shape, activations.hidden.shape
    ((2, 10), (1, 8, 2, 20))
    """

    cell = CELLS["tanh"]

    @checked
    def __init__(
        self, input_size: Size, hidden_size: Size, num_classes: Size, num_layers: Size = 1, rng: Rng = 0,
        dtype: Dtype = np.float32, nonlinearity: Literal["tanh", "relu"] = "tanh",
    ):  # fmt: skip
        self.cell = CELLS[nonlinearity]
        super().__init__(input_size, hidden_size, num_classes, num_layers, rng, dtype)
