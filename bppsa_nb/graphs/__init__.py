"""Differentiable graphs: describe a computation, derive its backward pass, draw both, choose what to save.

After the article on differentiable graphs and GRU variants. A graph is described by computing with its inputs:

>>> from bppsa_nb import graphs
>>> g = graphs.Graph("vanilla RNN")
>>> x, h = g.input("x", "B", "H"), g.input("h", "B", "H")
>>> U = g.parameter("U", "H", "H")
>>> g.output(h_next=graphs.tanh(x + h @ U.T))
>>> print(g)
matmul_1 = h @ U.T
sum_1 = x + matmul_1
h_next = tanh(sum_1)

The backward pass is another graph of the same operations. It says which activations must be there:

>>> back = g.backward()
>>> back.saved
['h', 'h_next']
>>> back.needs
{'matmul_1': ('h', 'U'), 'h_next': ('h_next',)}
>>> print(back)
multiply_1 = h_next * h_next
one_minus_1 = 1 - multiply_1
grad_sum_1 = grad_h_next * one_minus_1
grad_h = grad_sum_1 @ U
grad_U = grad_sum_1.T @ h
grad_x = grad_sum_1

Both run on arrays:

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> values = {"x": rng.normal(size=(2, 3)), "h": rng.normal(size=(2, 3)), "U": rng.normal(size=(3, 3))}
>>> grads = g.gradients(values, {"h_next": np.ones((2, 3))})
>>> {name: grad.shape for name, grad in grads.items()}
{'x': (2, 3), 'h': (2, 3), 'U': (3, 3)}
"""

from bppsa_nb.graphs import library
from bppsa_nb.graphs.graph import Graph
from bppsa_nb.graphs.nodes import Node, relu, sigmoid, tanh

__all__ = ["Graph", "Node", "library", "relu", "sigmoid", "tanh"]
