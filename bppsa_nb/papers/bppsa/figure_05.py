"""Figure 5: transposed Jacobians of three operators, with guaranteed and possible zeros told apart."""

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from bppsa_nb import sparse
from bppsa_nb.papers import panels
from bppsa_nb.papers.figures import COLORS

KINDS = {  # color, label, as in `bppsa_nb.sparse.kinds_of_zeros`
    0: ("#f4f4f4", "guaranteed zero"),
    1: (COLORS["chunked"], "possible zero"),
    2: (COLORS["linear"], "non-zero"),
}
OPERATORS = ("Convolution", "Max-pooling", "ReLU")


def measure(scale, rng, progress):
    """Make the three matrices from random weights and inputs: a row for every stored entry."""
    tables = []
    for operator, (sizes, jacobian_T) in zip(OPERATORS, matrices(rng), strict=True):
        entries = jacobian_T.tocoo()
        values = {"row": entries.row, "column": entries.col, "value": entries.data.astype(float)}
        shape = {"operator": operator, "sizes": sizes, "rows": jacobian_T.shape[0], "columns": jacobian_T.shape[1]}
        tables.append(pd.DataFrame(values).assign(**shape))
    return pd.concat(tables, ignore_index=True)


def matrices(rng):
    """Make the transposed Jacobians, in the order of `OPERATORS`: what maps to what, and a scipy.sparse.csr_array."""
    weight, x = rng.standard_normal((3, 2, 3, 3)), rng.standard_normal((2, 4, 4))
    return [
        ("3 × 3, padding 1: 2 × 4 × 4\n→ 3 × 4 × 4", sparse.conv2d_jacobian_T(weight, (2, 4, 4), padding=1)),
        ("2 × 2: 2 × 4 × 4\n→ 2 × 2 × 2", sparse.max_pool2d_jacobian_T(x, 2)),
        ("2 × 4 × 4\n→ 2 × 4 × 4", sparse.relu_jacobian_T(x)),
    ]


def kinds(table):
    """Put one operator's entries into an array as from `bppsa_nb.sparse.kinds_of_zeros` [shape=(rows, columns)]."""
    first = table.iloc[0]
    entries = np.zeros((first["rows"], first["columns"]), np.int8)
    entries[table["row"], table["column"]] = 1 + (table["value"] != 0)
    return entries


def plot(table):
    """Draw the matrices side by side, a square to an entry."""
    colors = ListedColormap([color for color, _ in KINDS.values()])
    groups = [(operator, table[table["operator"] == operator]) for operator in OPERATORS]
    widths = [rows["columns"].iloc[0] / rows["rows"].iloc[0] for _, rows in groups]
    fig, axes = pyplot.subplots(1, 3, figsize=(9, 4.4), width_ratios=widths, layout="constrained")
    for ax, (operator, rows) in zip(axes, groups, strict=True):
        entries = kinds(rows)
        ax.imshow(entries, cmap=colors, vmin=0, vmax=len(KINDS) - 1, interpolation="none")
        sparsity = 1 - len(rows) / entries.size
        ax.set_title(f"{operator}\n{rows['sizes'].iloc[0]}\nsparsity {sparsity:.3f}", size=9)
        ax.set(xlabel="output", ylabel="input")
        ax.grid(visible=False)
    handles = [Patch(facecolor=color, edgecolor="#999999", lw=0.5, label=label) for color, label in KINDS.values()]
    panels.legend(fig, handles)
    return fig
