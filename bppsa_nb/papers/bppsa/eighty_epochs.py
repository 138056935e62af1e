"""Figures 7 and 13 to their ends: eighty epochs, and four hundred."""

import os
from collections import namedtuple
from functools import partial

import numpy as np
import pandas as pd

import bppsa_nb as bp
from bppsa_nb.machine import backends, files
from bppsa_nb.papers import experiments
from bppsa_nb.papers.bppsa import training_curves as curves
from bppsa_nb.papers.bppsa.epochs import CLIPS
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.training.datasets import instruments
from bppsa_nb.training.datasets.audio import FEATURES, LABELS

Course = namedtuple("Course", "epochs row seeds rate")  # a row of the table is so many epochs
COURSES = {"RNN": Course(80, 0.5, 4, 1e-5)}  # Section 4.1 and Figure 7
COURSES |= dict.fromkeys(FEATURES, Course(400, 10, 3, curves.GRU_RATE))  # Section 4.2 and Appendix F
T, SAMPLES = 1000, 32000  # of the RNN
LOOK = 10  # epochs until the accuracy is looked at
AT_ONCE = os.cpu_count()  # trainings

CONTROL = "nudged"  # BPTT with one bit perturbed: what rounding does to training without any BPPSA
METHODS = {"linear": "BPTT", CONTROL: "BPTT, one bit changed"}
METHODS |= {"chunked": "BPPSA, by chunks", "blelloch": "BPPSA, by levels"}
STYLES = {  # what lies on BPTT's line is thinner
    "linear": {"color": COLORS["linear"], "lw": 3.5, "alpha": 0.6},
    CONTROL: {"color": "black", "ls": "--", "lw": 1.5},
    "chunked": {"color": COLORS["chunked"], "lw": 1.6},
    "blelloch": {"color": COLORS["blelloch"], "lw": 1.2, "ls": "--"},
}


def measure(scale, rng, progress):
    """Train by all methods (quick scale: collect what was recorded): rows of `blocks` for every training.

    Trainings run side by side, a thread each: a batch of 16 leaves little to do for a second one.
    """
    if scale == "quick":
        return whole(_recording("eighty_epochs"))
    from joblib import Parallel, delayed, parallel_config

    folder = instruments.clips(CLIPS, progress=progress.show)
    # Computed once, here.
    data = {bp.Instruments(folder, features, progress=progress.show).data for features in FEATURES}
    points = [
        (features, seed, method)
        for features, course in COURSES.items()
        for seed in range(course.seeds)
        for method in METHODS
        if method != CONTROL or seed == 0 or features == "RNN"
        if method != "blelloch" or (seed == 0 and features in ("RNN", "S"))  # takes longest
    ]
    queue = points[::-1]  # most long ones first
    keep = [progress.keep(".".join(map(str, point))) for point in queue]
    jobs = [delayed(train)(folder, point, kept, os.getpid()) for point, kept in zip(queue, keep, strict=True)]
    with parallel_config("loky", n_jobs=AT_ONCE, inner_max_num_threads=1):
        done = progress.bar(Parallel(return_as="generator")(jobs), "trainings", len(jobs))
        trained = dict(zip(queue, done, strict=True))
    parts = []
    for features, seed, method in points:
        rows = blocks(COURSES[features], *trained[features, seed, method], trained[features, seed, "linear"][0].loss)
        frames = T if features == "RNN" else FEATURES[features].frames
        parts.append(rows.assign(features=features, T=frames, seed=seed, method=method))
    table = pd.concat(parts, ignore_index=True)
    table.attrs |= {"data": data.pop(), "backend": backends.resolve("auto")}
    return table


def train(folder, point, kept, starter):
    """Train from one seed by one method: the history, and the accuracy after every `LOOK` epochs.

    Going forward it takes the loop, whatever the method. A training that was stopped goes on from what is in the folder
    `kept`. It ends at the next look after the process `starter` was killed; a successor waits for that.
    """
    features, seed, method = point
    course = COURSES[features]
    if features == "RNN":
        samples = held_out = bp.Bitstream(T, SAMPLES, rng=seed)
        new = partial(bp.RNN, 1, 20, 10, rng=seed)
    else:
        samples, held_out = bp.Instruments(folder, features, progress=False).split(rng=seed)
        new = partial(bp.GRU, samples.x.shape[2], 20, len(LABELS), rng=seed)
    back = "linear" if method == CONTROL else method
    warm, trainer = (bp.Trainer(new(), bp.Adam(lr=course.rate), method=back, forward="linear") for _ in range(2))
    if method == CONTROL:
        weight = next(iter(trainer.model.params.values()))
        weight.flat[0] = np.nextafter(weight.flat[0], np.inf, dtype=weight.dtype)
    warm.step(*samples.batch(np.arange(curves.BATCH)))  # compiled before the clock starts
    looks, state, numbers = [], kept / "trainer.npz", kept / "looks.json"
    with files.folder_lock(kept):
        if state.exists():
            trainer.load(state)
        if numbers.exists():
            looks = files.read_json(numbers)
        saving = {"save_to": state, "save_every": -(-len(samples) // curves.BATCH)}
        while len(looks) * LOOK < course.epochs:
            if starter not in (os.getpid(), os.getppid()):
                raise RuntimeError("whoever started this training was killed; its successor needs the core")
            trainer.fit(samples, (len(looks) + 1) * LOOK, curves.BATCH, seed, progress=False, **saving)
            looks.append(trainer.evaluate(held_out, 256)[1])
            files.write_json(numbers, looks)
    return trainer.history, looks


def blocks(course, history, looks, bptt):
    """Put so many epochs into a row; `apart` is the largest relative difference of a loss from BPTT's."""
    table = pd.DataFrame({"loss": history.loss, "seconds": history.seconds, "apart": abs(history.loss - bptt) / bptt})
    epoch = len(table) // course.epochs
    every = round(course.row * epoch)
    table = table.groupby(table.index // every * every).agg({"loss": "mean", "seconds": "sum", "apart": "max"})
    table["epoch"] = (table.index + every) / epoch
    table["accuracy"] = (table["epoch"] / LOOK).map(dict(enumerate(looks, 1)))
    return table.rename_axis("iteration").reset_index()


def _recording(name):
    """Return the first machine's recording at the paper's scale."""
    table = experiments.collect(name, "bppsa-nb measure eighty_epochs --scale paper")
    return where(table, machine=table["machine"].iloc[0])


def whole(table):
    """Put the GRU's trainings below the RNN's, which were recorded apart until they were measured by one function."""
    if "features" in table:
        return table
    gru = _recording("four_hundred_epochs")
    rnn = table.assign(features="RNN", T=T, epoch=(table["iteration"] + 1000) * curves.BATCH / SAMPLES)
    both = pd.concat([rnn, gru], ignore_index=True)
    both.attrs = table.attrs | {"data": gru.attrs["data"]}
    return both


def differences(table):
    """Return the rows that are not BPTT's, with `mean`: how far the mean loss is from that of BPTT, relative to it."""
    keys = ["features", "seed", "iteration"]
    theirs = where(table, method="linear").set_index(keys)["loss"].rename("theirs")
    rest = table[table["method"] != "linear"].join(theirs, on=keys)
    return rest.assign(mean=abs(rest["loss"] - rest["theirs"]) / rest["theirs"])


def facts(table):
    """Say of the RNN, and of the GRU on every set, how trainings end, how far they are apart, what an epoch takes."""
    table = whole(table)
    sets = {features: _ends(rows, COURSES[features].row) for features, rows in table.groupby("features", sort=False)}
    gru = {features: each for features, each in sets.items() if features != "RNN"}
    apart = pd.concat([each["apart"] for each in gru.values()])
    loss = {method: pd.concat([each["loss"][method] for each in gru.values()]) for method in ("linear", "chunked")}
    return {"RNN": sets.get("RNN", {}), "GRU": gru, "GRU_apart": apart, "GRU_loss": loss}


def _ends(table, row):
    """Say of one set what `facts` does; a row of the table is so many epochs."""
    trainings, compared = table.groupby(["method", "seed"], sort=False), differences(table)
    ends, epoch = trainings.last(), trainings["seconds"].median() / row
    loss, right = (dict(iter(ends[name].groupby("method", sort=False))) for name in ("loss", "accuracy"))
    control = where(compared, method=CONTROL)  # of the same seed
    pairs = compared[compared["method"] != CONTROL].merge(control, on=["seed", "iteration"], suffixes=("", "_control"))
    apart = pairs.groupby("method")[["mean", "mean_control"]].median().rename(index=METHODS)
    return {
        "loss": loss,
        "losses": {METHODS[method]: each for method, each in loss.items()},
        "epoch": epoch.groupby("method").median(),
        "right": {METHODS[name]: {"mean": right[name].mean(), "all": right[name]} for name in ("linear", "chunked")},
        "apart": apart.assign(ratio=apart["mean"] / apart["mean_control"]),
        "medians": {METHODS[method]: each.median() for method, each in compared.groupby("method", sort=False)["mean"]},
        "most": compared[["mean", "apart"]].max(),
    }


def plot(table):
    table = whole(table)
    titles = ("Loss per epoch", "Loss per second", "Accuracy", "Losses against BPTT")
    fig = curves.draw_sets(table, titles, ("epoch", "seconds", "epoch", "iteration"), _draw)
    if "machine" in table:
        fig.supxlabel("; ".join(table["machine"].dropna().unique()), size=10)
    return fig


def _draw(axes, rows):
    for ax, x, quantity in zip(axes, ("epoch", "seconds", "epoch"), ("loss", "loss", "accuracy"), strict=False):
        for method in ("linear", "chunked", "blelloch"):
            for seed, part in where(rows, method=method).groupby("seed"):
                if seed == 0 or x != "seconds":
                    part = part.assign(seconds=part["seconds"].cumsum()).dropna(subset=quantity)
                    style = STYLES[method] | {"marker": "." if len(part) < 10 else ""}
                    ax.plot(part[x], part[quantity], label=METHODS[method] if seed == 0 else None, **style)
    axes[2].set_xlim(axes[0].get_xlim())
    compared = differences(rows)
    for method in list(STYLES)[1:]:  # running medians of three of the seeds' median
        seeds = where(compared, method=method).pivot(index="iteration", columns="seed", values="mean")
        if method == CONTROL and seeds.shape[1] > 1:
            axes[3].fill_between(seeds.index, seeds.min(axis=1), seeds.max(axis=1), alpha=0.2, lw=0, color="black")
        if not seeds.empty:
            middle, style = seeds.median(axis=1).rolling(3, center=True, min_periods=1).median(), STYLES[method]
            axes[3].semilogy(seeds.index, middle, label=METHODS[method], **style | {"zorder": 2 + (method == CONTROL)})


FIGURE = Figure(
    origin="collected", needs=["eighty_epochs.paper", "four_hundred_epochs.paper"],
    caption="""After 80 epochs, the RNN's loss is {RNN[loss][linear]:.3g} by BPTT, {RNN[loss][chunked]:.3g} by BPPSA in
    chunks, and {RNN[loss][blelloch]:.3g} in levels (seed 0 only). After 400, the GRU tells held-out clips right by BPTT
    and by chunks: {GRU:each told}. Training amplifies BPPSA's rounding as it does one changed bit of one weight. Lines
    are of 4 seeds of the RNN and 3 of the GRU; over seconds, and by levels, of the first. Right, running medians of
    three of the seeds' median. Dashed black: BPTT with one bit of one weight changed; gray: all its seeds. Settings are
    those of Sections 4.1 and 4.2, but three quarters of 6705 clips; losses are means of 1000 iterations, and of 10
    epochs. An epoch took {RNN[epoch][linear]:.3g} s by BPTT, {RNN[epoch][chunked]:.3g} s by chunks and
    {RNN[epoch][blelloch]:.3g} s by levels; of the GRU {GRU:each epoch} by BPTT and by chunks, on one core while others
    ran beside it.""",
    alt="""Rows of plots, for the RNN that learns to tell bitstreams apart, and for the GRU on each set of audio
    features. Left, the training loss over epochs: BPPSA's lines lie on BPTT's or, late, near them. On audio they end at
    {GRU_loss[linear]:.2f} by BPTT and {GRU_loss[chunked]:.2f} by chunks. Then loss over seconds, and accuracy. Right,
    how far losses are from BPTT's, on a logarithmic axis. The RNN's medians are {RNN[medians]:.1e by _}, and they are
    at most {RNN[most][mean]:.1e} (single batches {RNN[most][apart]:.1e}). On audio, medians are {GRU_apart[mean]:.1e}
    by BPPSA, and {GRU_apart[mean_control]:.1e} by BPTT with one bit changed.""",
    phrases={
        "apart": "{ratio:×} for {_} ({mean:.1e} of the loss, in the median)",
        "right": "{mean:.1%} ({all:.1%}) by {_}",
        "told": "{right[BPTT][mean]:.1%} and {right[BPPSA, by chunks][mean]:.1%} on {_}",
        "set": "{_}: {apart:each apart}, held-out clips right {right:each right}",
        "epoch": "{epoch[linear]:.2g} and {epoch[chunked]:.2g} s on {_}",
    },
    claims=[
        Claim("§5.1, Figure 7", "Over all 80 epochs, training by BPPSA reconstructs BP (RNN).",
              "“roughly equivalent” (here: at most 2x as far from BPTT as BPTT with one bit changed)",
              "{RNN[apart]:each apart}; at the end a loss of {RNN[losses]:.3g by _}",
              lambda f: (f["RNN"]["apart"]["ratio"] <= 2).all(), "trained"),
        Claim("Appendix F, Figure 13", "Over all 400 epochs, the GRU's curves by BPPSA keep the shape of BP's.",
              "“a similar shape” (here: at most 2x as far from BPTT as BPTT with one bit changed)",
              "{GRU:each set;}", lambda f: all((each["apart"]["ratio"] <= 2).all() for each in f["GRU"].values()),
              "trained"),
    ],
)
