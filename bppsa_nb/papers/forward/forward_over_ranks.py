"""The forward pass over ranks that begin at once: measured on a few; modelled, as part of a step, on up to 1024."""

from functools import partial

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.distributed.predict import scan, sequential
from bppsa_nb.papers import on_ranks, panels, provenance
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.timing import quartiles

SIZES = {"quick": {"steps": 5000, "rounds": 5}, "paper": {"steps": 30000, "rounds": 25}}
RANKS, MODELLED, BATCHES = (1, 2, 4), tuple(2**i for i in range(11)), (1, 16)
STEPS = 30000  # that are modelled
LINK = on_ranks.LINKS[on_ranks.FAST]
WAYS = {"linear": ("rank after rank", "linear"), "chunked": ("at once, repaired", "chunked")}
ROADS = {
    "serial": ("rank after rank, both ways", "linear"),
    "scan": ("scan backward only", "blelloch"),
    "both": ("repaired forward, scan backward", "chunked"),
}


def measure(scale, rng, progress):
    """Time forward passes on ranks, and predict steps: a row per batch, method and number of ranks."""
    size = SIZES[scale]
    points = [{"batch": batch, "ranks": ranks} for batch in BATCHES for ranks in RANKS]

    def measure_point(point, rng):
        how = ["--steps", size["steps"], "--batch", point["batch"], "--backend", "cpu", "--repeat", size["rounds"]]
        return _measured(on_ranks.run(point["ranks"], "bppsa_nb.distributed", *how), **size)

    measured = progress.collect(points, measure_point, rng).assign(part="measured")
    of_batch = partial(on_ranks.alone, "rnn", 20, 2000, rounds=size["rounds"])
    points = [{"cost of": batch} for batch in BATCHES]
    costs = progress.collect(points, lambda point, rng: of_batch(batch=point["cost of"]), rng)
    rows = [row for _, known in costs.iterrows() for row in _modelled(known)]
    table = pd.concat([measured, pd.DataFrame(rows)], ignore_index=True)
    table.attrs |= {"backend": "cpu", "cores": provenance.cores()}
    return table


def _measured(found, steps, rounds):
    """Return a row per method: the rank that is done last, medians over rounds and quartiles."""
    rows = []
    for method in WAYS:
        times = pd.DataFrame([row for row in found["forward"] if row["method"] == method])
        row = {"road": method, "T": steps, "passes": int(times["passes"].max())}
        rows.append(row | quartiles("seconds", times.groupby("round")["seconds"].max()))
    return rows


def _modelled(known):
    batch, steps = int(known["cost of"]), STEPS
    costs = on_ranks.costs(known, batch)
    for ranks in MODELLED:
        seconds = {
            "serial": sequential(steps, ranks, costs, LINK, whole=True),
            "scan": scan(steps, ranks, costs, LINK, whole=True),
            "both": scan(steps, ranks, costs, LINK, whole=True, repaired=True),
        }
        same = {"part": "modelled", "T": steps, "batch": batch, "ranks": ranks}
        yield from (same | {"road": road, "seconds": value} for road, value in seconds.items())


def gains(table, batch):
    """Return the best times of a step over all numbers of ranks, in that of one rank."""
    rows = where(table, part="modelled", batch=batch)
    alone = where(rows, road="serial", ranks=1)["seconds"].iloc[0]
    return alone / rows.groupby("road")["seconds"].min()


def ratios(table, batch):
    """Return measured times rank after rank over those at once, by ranks."""
    rows = where(table, part="measured", batch=batch).pivot(index="ranks", columns="road", values="seconds")
    return rows["linear"] / rows["chunked"]


def values(table):
    """Return what words need beside the table: what was measured and modelled, and what is gained."""
    shares = pd.concat({batch: ratios(table, batch) for batch in BATCHES}, names=["batch"])
    best = pd.concat({batch: gains(table, batch)[list(ROADS)] for batch in BATCHES}, names=["batch"])
    parts = {name: where(table, part=part) for name, part in (("few", "measured"), ("many", "modelled"))}
    return parts | {"ratios": shares.rename("ratio").reset_index(), "gains": best.rename("gain").reset_index()}


def plot(table):
    """Draw measured forward passes, and modelled steps."""
    fig, axes = pyplot.subplots(1, 3, figsize=(11.6, 4.2), layout="constrained")
    rows = where(table, part="measured")
    for (batch, road), part in rows.groupby(["batch", "road"]):
        words, role = WAYS[road]
        look = {"color": COLORS[role], "marker": "o" if batch == 1 else "s", "ls": "-" if batch == 1 else "--"}
        milli = part.assign(**{name: 1e3 * part[name] for name in ("seconds", "seconds_low", "seconds_high")})
        panels.with_quartiles(axes[0], part["ranks"], milli, "seconds", label=f"{words}, B = {batch}", **look)
    axes[0].set(title="(a) forward pass, measured", ylabel="milliseconds")
    axes[0].set_ylim(0.3e3 * rows["seconds"].min(), 12e3 * rows["seconds"].max())
    axes[0].legend(loc="upper left", fontsize=8)
    for ax, batch, letter in zip(axes[1:], BATCHES, "bc", strict=True):
        for road, (words, role) in ROADS.items():
            part = where(table, part="modelled", batch=batch, road=road)
            ax.plot(part["ranks"], 1e3 * part["seconds"], color=COLORS[role], label=words)
        ax.set_title(f"({letter}) training step, modelled, B = {batch}")
    axes[1].set_ylim(bottom=0.3 * axes[1].get_ylim()[0])
    axes[1].legend(loc="lower left", fontsize=8)
    for ax, ticks in zip(axes, (RANKS, MODELLED[::2], MODELLED[::2]), strict=True):
        panels.sizes_axis(ax, ticks)
        panels.log_scale(ax, "y", "{x:,.10g}")
        ax.set_xlabel("ranks")
    return fig
