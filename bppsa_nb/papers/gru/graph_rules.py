"""Rules of differentiable graphs."""

import pandas as pd

from bppsa_nb.graphs import drawing, library
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import Figure
from bppsa_nb.papers.gru.operations import count_operations


def graphs():
    """Describe what is drawn: a Graph for each name."""
    return library.operations() | {"fully connected": library.fully_connected(), "vanilla RNN": library.vanilla_rnn()}


def measure(scale, rng, progress):
    """Count what is drawn: a row per graph, direction and operation."""
    return pd.concat([count_operations(graph, name) for name, graph in graphs().items()], ignore_index=True)


def plot(table):
    fig = panels.figure(figsize=(8.8, 6.6))
    grid = fig.add_gridspec(4, 10, height_ratios=(1.9, 2.6, 2, 2))
    described = graphs()
    for column, name in enumerate(list(described)[:5]):
        for row, direction in enumerate(drawing.INKS):
            ax = fig.add_subplot(grid[row, 2 * column : 2 * column + 2])
            drawing.draw(described[name], ax, direction)
            ax.set(xlim=(-0.75, 2.45), ylim=(-1.3 if row else -0.6, 1.3))
            if row:  # the derived program
                ax.text(0.85, -0.6, described[name].backward(), ha="center", va="top", size=6.5, family="monospace")
            ax.set_title("" if row else name, size=10)
    for row, name in enumerate(list(described)[5:], 2):
        for column, direction in enumerate(drawing.INKS):
            ax = fig.add_subplot(grid[row, 5 * column : 5 * column + 5])
            drawing.draw(described[name], ax, direction)
            ax.set(xlim=(-2.2, 5.8), ylim=(-0.5, 1.5))
            ax.set_title(f"{described[name].name}, {direction}", size=10)
    fig.legend(handles=drawing.legend_handles(), loc="outside upper center", ncols=5)
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""The backward pass of a graph is a graph of the same operations. Sum and copy are each other's rule; a
    multiplication reads the other input, a nonlinearity its own output. Above, every basic operation forward, and the
    rule that sends its error term back. Below, the rules applied to a fully connected layer and to a step of a vanilla
    RNN. Matrix products: a b above, x Wᵀ and h Uᵀ below.""",
    alt="""Small circuit diagrams: sum, copy, elementwise multiplication, matrix product and sigmoid, forward, and below
    them with arrows reversed. The sum has become a copy, the copy a sum; the other three have orange borders and the
    activations they read. Then a fully connected layer and a step of a vanilla RNN, forward and backward; the step
    reads both its hidden states.""",
)
