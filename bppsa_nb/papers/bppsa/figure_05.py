"""Figure 5: transposed Jacobians of a convolution, max-pooling and ReLU."""

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from bppsa_nb import sparse
from bppsa_nb.papers import panels
from bppsa_nb.papers.experiment import COLORS, Figure

KINDS = {  # in the order of `bppsa_nb.sparse.kinds_of_zeros`
    "guaranteed zero": "#f4f4f4",
    "possible zero": COLORS["chunked"],
    "non-zero": COLORS["linear"],
}


def measure(scale, rng, progress):
    """Make the three matrices from random weights and inputs: a row for every stored entry."""
    tables = []
    for operator, (sizes, jacobian_T) in matrices(rng).items():
        entries, (rows, columns) = jacobian_T.tocoo(), jacobian_T.shape
        table = pd.DataFrame({"row": entries.row, "column": entries.col, "value": entries.data.astype(float)})
        tables.append(table.assign(operator=operator, sizes=sizes, rows=rows, columns=columns))
    return pd.concat(tables, ignore_index=True)


def matrices(rng):
    """Make the transposed Jacobian of each operator: what maps to what, and a scipy.sparse.csr_array."""
    weight, x = rng.standard_normal((3, 2, 3, 3)), rng.standard_normal((2, 4, 4))
    convolution = sparse.Conv2d("conv", 2, 3, 3, padding=1)
    return {
        "Convolution": ("3 × 3, padding 1: 2 × 4 × 4\n→ 3 × 4 × 4", convolution.jacobian_T(x, weight)),
        "Max-pooling": ("2 × 2: 2 × 4 × 4\n→ 2 × 2 × 2", sparse.MaxPool2d("pool", 2).jacobian_T(x)),
        "ReLU": ("2 × 4 × 4\n→ 2 × 4 × 4", sparse.ReLU("relu").jacobian_T(x)),
    }


def kinds(table):
    """Put one operator's entries into an array as from `bppsa_nb.sparse.kinds_of_zeros` [shape=(rows, columns)]."""
    first = table.iloc[0]
    entries = np.zeros((first["rows"], first["columns"]), np.int8)
    entries[table["row"], table["column"]] = 1 + (table["value"] != 0)
    return entries


def plot(table):
    groups = dict(list(table.groupby("operator", sort=False)))
    widths = [rows["columns"].iloc[0] / rows["rows"].iloc[0] for rows in groups.values()]
    fig, axes = panels.subplots(1, 3, figsize=(9, 4.4), width_ratios=widths)
    for ax, (operator, rows) in zip(axes, groups.items(), strict=True):
        entries = kinds(rows)
        ax.imshow(entries, cmap=ListedColormap([*KINDS.values()]), vmin=0, vmax=2, interpolation="none")
        ax.set_title(f"{operator}\n{rows['sizes'].iloc[0]}\nsparsity {1 - len(rows) / entries.size:.3f}", size=9)
        ax.set(xlabel="output", ylabel="input")
        ax.grid(visible=False)
    panels.legend(fig, [Patch(fc=color, ec="#999999", lw=0.5, label=label) for label, color in KINDS.items()])
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""Most entries are guaranteed zeros; in larger images nearly all are (Table 1). They follow from the
    architecture, and are not stored. Possible zeros depend on the input. They are stored, so that every input has the
    same pattern. Rows are inputs, columns outputs, both flattened channel by channel.""",
    alt="""Three matrices in three colors, mostly guaranteed zeros. Convolution: bands of non-zeros along the diagonals
    of blocks. Max-pooling: a non-zero and three possible zeros to each column, in steps. ReLU: a diagonal of both,
    mixed.""",
)
