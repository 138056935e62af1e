"""Figure 9: what an iteration of the GRU is made of, by the sets S, M and L and the batch size."""

import time
from functools import partial

import numpy as np
import pandas as pd

from bppsa_nb.cells import gru
from bppsa_nb.chains import structured
from bppsa_nb.machine import backends
from bppsa_nb.papers import published, timing
from bppsa_nb.papers.bppsa import figure_08
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.phrases import span
from bppsa_nb.training.datasets.audio import FEATURES, LABELS
from bppsa_nb.training.loss import cross_entropy

TITLE = "Figure 9: what an iteration of the GRU is made of"
CAPTION = (
    "In each group, first bar: the baseline, forward pass (FP) and back-propagation (BP); second: FP, the forward "
    "overhead (FO) of computing Jacobians, and the backward pass by BPPSA in levels, as in the paper; all over FP + "
    "BP. Above: the paper's V100, worked out from its Table 6; its overhead recomputes the gates, which cuDNN hides. "
    "Below: this machine, on features of the same sizes drawn at random; our forward pass keeps the gates, so FO only "
    "assembles Jacobians. Third bar: BPPSA in chunks, which need none. Medians of rounds in which all took turns, warm."
)
BATCHES = (16, 32, 64)
CLIPS = 6705  # of an epoch: IRMAS's training set
SECONDS = {"quick": 0.3, "paper": 60.0}  # for one point
PARTS = {
    "fp": ("FP", "baseline"),
    "fo": ("FO", "vector"),
    "bp": ("BP", "linear"),
    "bppsa_alone": ("BPPSA, levels", "blelloch"),
    "chunked_alone": ("BPPSA, chunks", "chunked"),
}
BARS = (("fp", "bp"), ("fp", "fo", "bppsa_alone"), ("fp", "chunked_alone"))


def measure(scale, rng, progress):
    """Time all sets and batch sizes on this machine's fastest backend, per epoch; put them below the paper's."""
    printed = published.table("table_6")
    backend = backends.resolve("auto")
    points = [{"features": features, "B": B} for features in FEATURES for B in BATCHES]
    timed = progress.collect(points, partial(time_iterations, backend=backend, seconds=SECONDS[scale]), rng)
    seconds = timed.columns.drop(["features", "B", "rounds"])
    timed[seconds] = timed[seconds].mul(CLIPS / timed["B"], axis=0)
    table = pd.concat([printed.assign(source="paper"), timed.assign(source="here")], ignore_index=True)
    table["T"] = table["features"].map({name: features.frames for name, features in FEATURES.items()})
    table.attrs = {"backend": backend, "machine_of_the_paper": printed.attrs["gpu"]}
    return table


def time_iterations(point, rng, backend, seconds):
    """Time forward passes, the assembly of Jacobians and all methods' backward passes, taking turns.

    Parameters
    ----------
    point : dict
        `features`, a set of Table 3, and `B`.
    rng : np.random.Generator
    backend : {"numpy", "cpu", "cuda"}
    seconds : float
        As for `timing.repeat`.

    Returns
    -------
    list of dict
        One row, with the columns of Table 6 in seconds per iteration: `forward`, `baseline` (with the backward pass
        by BPTT), `forward_overhead` (with the assembly) and `bppsa` (with the backward pass by BPPSA in levels), and
        `chunked` (with the one in chunks), medians; each one's standard deviation as `<name>_spread`; how many `rounds`
        there were. The loss belongs to the forward
        pass, all parameter gradients to the backward passes.
    """
    features, B = FEATURES[point["features"]], point["B"]
    model = gru.GRU(features.size, 20, len(LABELS), rng=rng)
    x = rng.standard_normal((features.frames, B, features.size), np.float32)
    y = rng.integers(len(LABELS), size=B)
    # What does not change from round to round; times depend on sizes only.
    saved = model.forward(x, backend=backend)
    assemble = assembly(model.params["weight_hh_l0"], saved.hidden[0], saved.gates[0], backend)

    def one_round():
        marks = [time.perf_counter()]
        activations = model.forward(x, backend=backend)
        _, grad_logits = cross_entropy(activations.logits, y)
        marks.append(time.perf_counter())
        for method in figure_08.METHODS:
            model.backward(activations, grad_logits, method=method, backend=backend)
            marks.append(time.perf_counter())
        assemble()
        marks.append(time.perf_counter())
        return np.diff(marks)

    forward, bp, bppsa, chunked, overhead = timing.repeat(one_round, seconds).T
    whole = {
        "forward": forward,
        "baseline": forward + bp,
        "forward_overhead": forward + overhead,
        "bppsa": forward + bppsa,  # the assembly is part of the backward pass
        "chunked": forward + chunked,  # whose diagonals are, too
    }
    row = {name: np.median(each) for name, each in whole.items()}
    return [row | {f"{name}_spread": np.std(each) for name, each in whole.items()} | {"rounds": len(forward)}]


def assembly(weight_hh, hidden, gates, backend):
    """Prepare to assemble a layer's transposed Jacobians as a backward pass does.

    Parameters
    ----------
    weight_hh : np.ndarray [shape=(3 H, H)]
    hidden : np.ndarray [shape=(T + 1, B, H)]
    gates : np.ndarray [shape=(4, T, B, H)]
    backend : {"numpy", "cpu", "cuda"}

    Returns
    -------
    callable
        Without arguments. Returns them [shape=(T, B, H, H)] when they are ready; on a GPU they stay there, scaled,
        beside their exponents of two [shape=(T, B)].
    """
    if backend == "numpy":
        return lambda: structured.jacobians_T(gru.chain(weight_hh, hidden, gates))
    if backend == "cpu":
        from bppsa_nb.cells import cpu
        from bppsa_nb.chains.structured_cpu import jacobians_T

        return lambda: jacobians_T(cpu.gru_chain(weight_hh, hidden, gates))
    from numba import cuda

    from bppsa_nb.cells.cuda import gru_chain
    from bppsa_nb.chains.levels_cuda import launch_prepare, workspace
    from bppsa_nb.chains.structured_cuda import Links, prepare

    _, T, B, H = gates.shape
    weight_hh, hidden, gates = map(cuda.to_device, (weight_hh, hidden, gates))
    mats, exps, _, lost = workspace(T, B, B, H, hidden.dtype)

    def assemble():
        launch_prepare(prepare, Links(gru_chain(weight_hh, hidden, gates)).arguments[2:], mats, exps, lost)
        cuda.synchronize()
        return mats, exps

    return assemble


def breakdown(table):
    """Take the columns of Table 6 apart, as Appendix G says.

    Parameters
    ----------
    table : pandas.DataFrame
        With columns `forward`, `baseline`, `forward_overhead` and `bppsa`, such as from this experiment or from
        ``published.table("table_6")``; with `chunked` or without.

    Returns
    -------
    pandas.DataFrame
        The table, with the parts `fp`, `fo`, `bp` and `bppsa_alone`, and the ratios `overall` = baseline / bppsa,
        `backward` = bp / bppsa_alone (excluding the overhead) and `overhead` = fo / fp; with `chunked`, also
        `chunked_alone` and `backward_chunked` = bp / chunked_alone.
    """
    parts = table.assign(
        fp=table["forward"],
        fo=table["forward_overhead"] - table["forward"],
        bp=table["baseline"] - table["forward"],
        bppsa_alone=table["bppsa"] - table["forward_overhead"],
    )
    if "chunked" in table:
        parts["chunked_alone"] = table["chunked"] - table["forward"]
        parts["backward_chunked"] = parts["bp"] / parts["chunked_alone"]
    return parts.assign(
        overall=table["baseline"] / table["bppsa"],
        backward=parts["bp"] / parts["bppsa_alone"],
        overhead=parts["fo"] / parts["fp"],
    )


def alt(table):
    """Say what there is to see, and how high the bars of this machine are."""
    here = breakdown(table[table["source"] == "here"])
    levels, chunks = span(1 / here["overall"], "{:.2g}"), span(here["chunked"] / here["baseline"], "{:.2g}")
    return (
        "Stacked bars in groups, for batches of 16, 32 and 64, each with the sets S, M and L. Above, on the paper's "
        "V100, the right bar of each pair is lower than the left, at 0.6 to 0.8 of its height: BPPSA's backward pass "
        "is a strip that gets thinner from S to L, beside an overhead that grows with the batch. Below, on this "
        f"machine, the same bars and a third one: the second, BPPSA by levels, is {levels} times as high as the first, "
        f"the third, BPPSA by chunks, {chunks} times."
    )


def plot(table):
    """Draw both machines' bars, the paper's above."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    fig, axes = pyplot.subplots(2, 1, figsize=(8.4, 6.2), layout="constrained")
    table = breakdown(table)
    machines = {"paper": f"{table.attrs['machine_of_the_paper']}, from Table 6 of the paper", "here": "This machine"}
    for ax, (source, machine) in zip(axes, machines.items(), strict=True):
        _bars(ax, table[table["source"] == source].sort_values(["B", "T"]))
        ax.set_title(machine)
        ax.set_ylabel("time / (FP + BP)")
        ax.grid(axis="x", visible=False)
    fig.legend(
        handles=[Patch(color=COLORS[role], label=label) for label, role in PARTS.values()],
        loc="outside upper center",
        ncols=len(PARTS),
    )
    return fig


def _bars(ax, rows):
    """Draw a group of bars per row, with the height of BPPSA's written above."""
    total = rows["fp"] + rows["bp"]
    places = np.arange(len(rows)) + 0.4 * (np.arange(len(rows)) // len(FEATURES))  # a gap between batch sizes
    bars = [names for names in BARS if rows[names[-1]].notna().all()]  # the paper has no chunks
    width = 0.8 / len(bars)
    highest = 1
    for number, names in enumerate(bars):
        at, bottom = places + (number - (len(bars) - 1) / 2) * width, np.zeros(len(rows))
        for name in names:
            height = (rows[name] / total).to_numpy()
            ax.bar(at, height, bottom=bottom, width=0.94 * width, color=COLORS[PARTS[name][1]], lw=0)
            bottom += height
        if number:
            for place, height in zip(at, bottom, strict=True):
                label = f"{height:.2f}" if height < 1 else f"{height:.1f}"
                ax.text(place, height, label, ha="center", va="bottom", size=7.5)
        highest = max(highest, bottom.max())
    ax.axhline(1, color="black", lw=0.8)
    ax.set_xticks(places, [f"{name}\nB = {B}" for name, B in zip(rows["features"], rows["B"], strict=True)])
    ax.set_ylim(0, 1.12 * highest)
