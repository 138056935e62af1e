"""The graphs of the differentiable-graphs article: basic operations, a fully connected layer, and recurrent steps.

The article computes ``U h`` on column-major arrays [size, minibatch]. Ours are row-major, (minibatch, size): the same
bytes in memory. Its ``U h`` is our ``h @ U.T``; weights are laid out (outputs, inputs), as in PyTorch.

Input products (``W x_t + b``) are made for all steps at once, before the time loop, so they enter a step from outside.
A step takes the hidden state ``h`` and puts out ``h_next``.
"""

import tomllib
from pathlib import Path

from bppsa_nb.graphs.graph import Graph
from bppsa_nb.graphs.nodes import relu, sigmoid, tanh
from bppsa_nb.machine.arguments import checked

_GRU = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_LABELS, _PLACES = _GRU["labels"], {name: tuple(place) for name, place in _GRU["places"].items()}

def operations() -> dict[str, Graph]:
    """Describe "sum", "copy", "multiply", "matmul" and "nonlinearity", each a graph from ``a`` to the last letter."""
    graphs = {name: Graph(name) for name in ("sum", "copy", "multiply", "matmul", "nonlinearity")}
    a = {name: graph.input("a", "B", "H") for name, graph in graphs.items()}
    b = {name: graphs[name].input("b", "B", "H") for name in ("sum", "multiply")}
    graphs["copy"].output(b=a["copy"], c=a["copy"])
    graphs["copy"].place(a=(0, 0, 1), b=(1.8, 0), c=(1.8, 0.9))
    graphs["nonlinearity"].output(b=sigmoid(a["nonlinearity"]))
    graphs["nonlinearity"].place(a=(0, 0.9), b=(1, 0.9))
    graphs["sum"].output(c=a["sum"] + b["sum"])
    graphs["multiply"].output(c=a["multiply"] * b["multiply"])
    weights = graphs["matmul"].parameter("b", "H", "O")
    graphs["matmul"].output(c=a["matmul"] @ weights)
    for name in ("sum", "multiply", "matmul"):
        graphs[name].place(a=(0, 0.9), b=(1, 0), c=(1, 0.9))
    return graphs


def fully_connected() -> Graph:
    """Describe a fully connected layer, ``y = relu(x @ W.T + b)``."""
    g = Graph("fully connected layer")
    x = g.input("x", "B", "I")
    W, b = g.parameter("W", "H", "I"), g.parameter("b", "H")
    a = (x @ W.T + b).named("a")
    g.output(y=relu(a))
    g.place(x=(0, 1), W=(1, 0.1), matmul_1=(1, 1), b=(2.2, 0.1), a=(2.2, 1), y=(3.3, 1))
    return g


def vanilla_rnn() -> Graph:
    """Describe a step of a vanilla RNN, ``h_next = tanh(x + h @ U.T)``."""
    g = Graph("vanilla RNN")
    x, h = g.input("x", "B", "H"), g.input("h", "B", "H")
    U = g.parameter("U", "H", "H")
    g.output(h_next=tanh(x + h @ U.T))
    g.label(x="W x_t", h="h_{t-1}", h_next="h_t")
    g.place(h=(0, 1), U=(1, 0.1), matmul_1=(1, 1), x=(2.3, 0.1), sum_1=(2.3, 1), h_next=(3.4, 1))
    return g


def gru() -> Graph:
    """Describe a step of the original GRU, where the reset gate comes before the recurrent product.

    Where z is 0, the hidden state stays as it is. (PyTorch and Equation 10 of BPPSA have 1 - z in place of z.)
    """
    g = _gru("original GRU", lambda g, h, r, U: ((r * h).named("rh") @ U.T).named("Urh"))
    g.label(rh=r"r \odot h", Urh=r"U (r \odot h)")
    g.place(**_PLACES, rh=(7.8, 3.9), U=(9.2, 3.05), Urh=(9.2, 3.9))
    return g


@checked
def gru_moved_reset(bias: bool = False) -> Graph:
    """Describe a step of the GRU whose reset gate is moved behind the recurrent product.

    All three recurrent products take the same input then, and can be one. With a `bias` of its own the moved product is
    ``r * (h @ U.T + b_u)``, as in PyTorch's GRU.
    """

    def moved(g, h, r, U):
        Uh = (h @ U.T + g.parameter("b_u", "H") if bias else h @ U.T).named("Uh")
        return (r * Uh).named("rUh")

    g = _gru("GRU, reset moved", moved)
    g.label(Uh="U h", rUh=r"r \odot U h")
    if not bias:  # drawn as in the article, which leaves it out
        g.place(**_PLACES, U=(2, 3.05), Uh=(2, 3.9), rUh=(7.8, 3.9))
    return g


def _gru(name, recurrent):
    """Describe what both GRUs have; `recurrent` makes what reaches the candidate of the hidden state."""
    g = Graph(name)
    h, x_r, x_z, x_c = (g.input(name, "B", "H") for name in ("h", "x_r", "x_z", "x_c"))
    U_r, U_z, U = (g.parameter(name, "H", "H") for name in ("U_r", "U_z", "U"))
    z = sigmoid((x_z + (h @ U_z.T).named("U_zh")).named("a_z")).named("z")
    r = sigmoid((x_r + (h @ U_r.T).named("U_rh")).named("a_r")).named("r")
    c = tanh((x_c + recurrent(g, h, r, U)).named("a_c")).named("c")
    keep = (1 - z).named("keep")
    g.output(h_next=(keep * h).named("old") + (z * c).named("new"))
    g.label(**_LABELS)
    return g
