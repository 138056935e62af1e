"""The vanilla recurrent network of Equation 9: its computations in NumPy, and the model made of them."""

import numpy as np

from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.chains.structured import StructuredChain


def forward(x, h0, weight_ih, weight_hh, bias_ih, bias_hh):
    """Run ``h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh)`` over time (Equation 9).

    From `x` [shape=(T, B, I)], `h0` [shape=(B, H)], weights [shape=(H, I)] and [shape=(H, H)] and biases [shape=(H,)]
    to the hidden states [shape=(T + 1, B, H)], the initial one first.
    """
    steps, batch, inputs = x.shape
    size = weight_hh.shape[0]
    hidden = np.empty((steps + 1, batch, size), x.dtype)
    hidden[0] = h0
    # No input product waits for another: all of them are one matrix product, before the time loop.
    products = x.reshape(steps * batch, inputs) @ weight_ih.T
    hidden[1:] = products.reshape(steps, batch, size) + (bias_ih + bias_hh)
    for t in range(steps):
        hidden[t + 1] = np.tanh(hidden[t + 1] + hidden[t] @ weight_hh.T)
    return hidden


def chain(weight_hh, hidden):
    """Take ``(d h_{t+1} / d h_t)^T = W_hh^T diag(1 - h_{t+1}²)`` for a chain of one weight."""
    return StructuredChain.made(weight_hh[None], (1 - hidden[1:] ** 2)[None])


def gate_gradients(chain, hidden, grad_hidden):
    """Turn gradients at the hidden states [shape=(T + 1, B, H)] into pre-activation gradients.

    Returns two lists: at what the input's product was added to, and at what the hidden state's was: the same here.
    """
    grad_sum = grad_hidden[1:] * chain.slopes[0]
    return [grad_sum], [grad_sum]


class RNN(Recurrent):
    """The paper's classifier: vanilla recurrent layers and a linear layer on the last state (Section 4.1).

    Parameters
    ----------
    input_size, hidden_size, num_classes : int
        I, H and C, at least one each.
    num_layers : int
        How many layers are stacked; each reads the hidden states of the one below.
    rng : int or np.random.Generator
        Where the initial parameters come from: uniform between -1 / sqrt(H) and 1 / sqrt(H), as in PyTorch.
    dtype : np.dtype
        float32 or float64, for parameters, inputs and gradients alike.

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

    cell_module, gate_blocks = __name__, 1
