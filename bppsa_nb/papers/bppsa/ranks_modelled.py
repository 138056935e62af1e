"""Training on up to 1024 ranks, predicted from what one takes: four ways to share out the steps of a chain."""

import pandas as pd
from matplotlib import pyplot

from bppsa_nb.distributed.predict import Costs, longest_at_the_loss, pipeline, scan, sequential
from bppsa_nb.papers import on_ranks, panels
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.on_ranks import FAST, LINKS, SLOW
from bppsa_nb.papers.tables import where
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.cycles import record

RANKS = tuple(2**i for i in range(11))
BATCH, CYCLES, COARSENING = 16, 2, 4
SPLITS = (1, 2, 4, 8, 16)  # micro-batches
STEPS = {"RNN": 30000, "narrow": 4096, "wide": 4096}
NETWORKS = {  # cell, width, steps that are timed
    "RNN": ("rnn", 20, 2000),
    "narrow": ("residual", 8, 256),
    "wide": ("residual", 128, 48),
}
WIDTHS = {"quick": (8, 60), "paper": (4, 8, 12, 40, 60, 80, 120)}  # of other RNNs
ROUNDS = {"quick": 5, "paper": 15}
NAMES = {"RNN": "RNN, H = 20", "narrow": "residual, 8 units", "wide": "residual, 128 units"}
LONGER = "uneven scan"
METHODS = {  # color
    "scan": COLORS["blelloch"],
    LONGER: COLORS["truncated"],
    "rank after rank": COLORS["linear"],
    "GPipe": COLORS["pipeline"],
    "MGRIT": COLORS["multigrid"],
}
DASHES = {SLOW: "--", FAST: "-"}


def measure(scale, rng, progress):
    """Time steps and ⋄ on one rank, and predict: rows of costs, times, memory and widths."""
    points = [{"network": name, "batch": B} for name in NETWORKS for B in (BATCH, 1)]
    points += [{"network": f"RNN of {width}", "batch": BATCH} for width in WIDTHS[scale]]

    def measure_point(point, rng):
        cell, width, steps = NETWORKS.get(point["network"]) or ("rnn", int(point["network"].split()[-1]), 500)
        return on_ranks.alone(cell, width, steps, point["batch"], ROUNDS[scale])

    measured = progress.collect(points, measure_point, rng)
    known = {(row.pop("network"), row.pop("batch")): row for row in measured.to_dict("records")}
    rows = []
    for network in NETWORKS:
        rows += _times(network, known[network, BATCH], known[network, 1])
        rows += _memory(network, known[network, BATCH])
    for network in [*(f"RNN of {width}" for width in WIDTHS[scale]), "RNN"]:
        rows += _times(network, known[network, BATCH])
    table = pd.concat([measured.assign(part="cost"), pd.DataFrame(rows)], ignore_index=True)
    table.attrs |= {"backend": "cpu", "links": {name: list(link) for name, link in LINKS.items()}}
    return table


def _times(network, one, sample=None):
    """Predict a network's backward pass and, where costs of a single sample are given too, its step of training."""
    steps, batch, rows = STEPS.get(network, STEPS["RNN"]), on_ranks.costs(one, BATCH), []
    part = {"part": "time" if sample else "width", "network": network, "width": one["width"]}
    for name, link in LINKS.items():
        for ranks in RANKS:
            same = part | {"link": name, "ranks": ranks}
            for task in ("backward", "step") if sample else ("backward",):
                how = steps, ranks, batch, link, task == "step"
                roads = {"scan": (scan(*how), None), "rank after rank": (sequential(*how), None)}
                roads |= {LONGER: longest_at_the_loss(*how)} if sample else {}
                for road, (seconds, longer) in roads.items():
                    rows.append(same | {"road": road, "task": task, "seconds": seconds, "longer": longer})
            if sample:
                single = on_ranks.costs(sample, 1)
                splits = {m: pipeline(steps, ranks, m, _micro_batch(batch, single, m), link) for m in SPLITS}
                best = min(splits, key=splits.get)
                found = {"seconds": splits[best][0], "micro_batches": best, "bubble": splits[best][1]}
                rows.append(same | {"road": "GPipe", "task": "step"} | found)
    return rows + (_cycles(network, steps, batch) if sample and network != "RNN" else [])


def _micro_batch(batch, sample, count):
    """Return costs of one of `count` micro-batches: between those of a sample and of the batch."""
    share = (BATCH / count - 1) / (BATCH - 1)
    steps = [one + share * (whole - one) for one, whole in zip(sample[:5], batch[:5], strict=True)]
    return Costs(*steps, batch.state // count, batch.operator)


def _cycles(network, steps, batch):
    """Schedule recorded cycles of MGRIT, on every fourth number of ranks."""
    rows, took = [], {"F": batch.forward, "δO": batch.sweep, "δW": batch.gradients}
    for ranks in RANKS[::2]:
        step = record(steps, ranks, CYCLES, COARSENING)
        for name, link in LINKS.items():
            seconds = timeline.makespan(step.timeline(took, link.seconds(batch.state))[0])
            same = {"part": "time", "network": network, "road": "MGRIT", "link": name, "task": "step"}
            rows.append(same | {"ranks": ranks, "seconds": seconds})
    return rows


def _memory(network, row):
    """Count the bytes that a rank holds, parameters left out."""
    steps, rows, state = STEPS[network], [], 4 * BATCH * row["width"]
    for ranks in RANKS:
        held = -(-steps // ranks)
        inside = 2 * held * state  # states of its own steps, and gradients
        jacobians = held * 4 * BATCH * row["matrix"]
        sizes = {
            "scan": inside + jacobians + 3 * row["bytes"],
            "GPipe": inside + ranks * state,
            "GPipe, nothing computed again": inside + (ranks - 1) * held * state,
            "GPipe, the same 16 samples": inside / BATCH + state,
        }
        same = {"part": "memory", "network": network, "ranks": ranks}
        rows += [same | {"road": road, "memory": float(size)} for road, size in sizes.items()]
    return rows


def by_road(table, network, task="backward", link=FAST):
    """Return modelled seconds: a row for each number of ranks, a column for each road."""
    rows = where(table, network=network, task=task, link=link)
    return rows.pivot_table("seconds", "ranks", "road", "first")  # of the RNN, there are rows of two parts


def crossings(table, network, task="backward", link=FAST):
    """Find from how many ranks on the scan pays (None: never), on how many it is fastest, and its speedup there."""
    times = by_road(table, network, task, link)
    scan, other = times["scan"], times["rank after rank"]
    wins = times.index[(scan < other) & (times.index > 2)]  # two ranks do the same in the same time
    return (int(wins[0]) if len(wins) else None), int(scan.idxmin()), float(other.min() / scan.min())


def values(table):
    """Return what words need beside the table: where the scan pays, and what an uneven one gains."""
    scans = {}
    for network, task in ("RNN", "backward"), ("RNN", "step"), ("narrow", "step"), ("wide", "step"):
        texts = []
        for link, name in zip(DASHES, ("slow", "fast"), strict=True):
            pays, best, speedup = crossings(table, network, task, link)
            leads = f"is faster than rank after rank from {pays} ranks on" if pays else "is never faster"
            texts.append(f"over the {name} link it {leads}, and {speedup:.2g} times as fast at its best, on {best}")
        scans[f"{network}, {task}"] = "; ".join(texts)
    times = by_road(table, "RNN")
    gains = (times["rank after rank"] / times[LONGER]).rename("gain")
    uneven = gains.loc[[4, times.index[len(times) // 2]]].reset_index()
    return {"scans": scans, "uneven": uneven}


def crossed(table):
    """Return `crossings` of RNNs over the fast link: a row for each width of a state."""
    rows = where(table, part="width").drop_duplicates("network").sort_values("width")
    found = [(row.width, *crossings(table, row.network)) for row in rows.itertuples()]
    return pd.DataFrame(found, columns=["width", "pays", "best", "speedup"], dtype=float)


def plot(table):
    """Draw the RNN's backward pass and step, memory, steps of two residual networks, and RNNs over width."""
    fig, axes = pyplot.subplots(2, 3, figsize=(11.6, 7.4), layout="constrained")
    _draw_times(axes[0, 0], table, "RNN", "backward", "(a) backward pass, ")
    _draw_times(axes[0, 1], table, "RNN", "step", "(b) step, ")
    _draw_memory(axes[0, 2], table[table["part"] == "memory"])
    _draw_times(axes[1, 0], table, "narrow", "step", "(d) step, ")
    _draw_times(axes[1, 1], table, "wide", "step", "(e) step, ")
    _draw_widths(axes[1, 2], table)
    for ax in axes.flat[:5]:
        panels.sizes_axis(ax, RANKS[::2])
        ax.set_xlabel("ranks")
        panels.log_scale(ax, "y", "{x:,.10g}")
    axes[0, 1].legend(loc="upper right", fontsize=8)
    axes[1, 0].legend(loc="upper right", fontsize=8)
    return fig


def _draw_times(ax, table, network, task, title):
    rows = where(table, part="time", network=network, task=task)
    for road, color in METHODS.items():
        for link, dash in DASHES.items():
            part = where(rows, road=road, link=link)
            if len(part):
                label = road if dash == "-" else None
                ax.plot(part["ranks"], 1e3 * part["seconds"], dash, color=color, label=label, lw=1.5)
    words = []
    for link, dash in DASHES.items():
        pays, best, speedup = crossings(table, network, task, link)
        scan_times = by_road(table, network, task, link)["scan"]
        for ranks, marker in ((pays, "v"), (best, "^")):
            if ranks is not None:
                ax.plot(ranks, 1e3 * scan_times[ranks], marker, color="black", ms=6, zorder=5)
        texts = f"pays from {pays}" if pays else "never pays"
        words.append(f"{'slow' if dash == '--' else 'fast'} link: {texts}; best {best}, {speedup:.2g}×")
    ax.text(0.02, 0.02, "\n".join(words), transform=ax.transAxes, size=8)
    seconds = 1e3 * rows["seconds"]
    ax.set_ylim(seconds.min() / 4, 8 * seconds.max())  # with room for words and a legend
    ax.set(ylabel="milliseconds", title=title + NAMES[network])


def _draw_memory(ax, rows):
    for network, dash in (("RNN", "-"), ("wide", ":")):
        for road, color in (("scan", METHODS["scan"]), ("GPipe", METHODS["GPipe"])):
            part = where(rows, network=network, road=road)
            words = f"{road}, {NAMES[network]}"
            ax.plot(part["ranks"], part["memory"] / 2**20, dash, color=color, label=words)
    for road, dash in (("GPipe, nothing computed again", "--"), ("GPipe, the same 16 samples", "-.")):
        part = where(rows, network="RNN", road=road)
        ax.plot(part["ranks"], part["memory"] / 2**20, dash, color=METHODS["GPipe"], lw=1.1, label=f"{road}, RNN")
    ax.set_ylim(rows["memory"].min() / 2**20 / 2, 300 * rows["memory"].max() / 2**20)
    ax.set(ylabel="MiB per rank", title="(c) memory")
    ax.legend(loc="upper right", fontsize=7)


def _draw_widths(ax, table):
    rows = crossed(table)
    for column, mark, role, label in (
        ("pays", "o", "linear", "ranks from which the scan pays"),
        ("best", "s", "baseline", "ranks at its best"),
        ("speedup", "^", "blelloch", "speedup there, backward pass"),
    ):
        known = rows.dropna(subset=column)
        ax.plot(known["width"], known[column], f"{mark}-", color=COLORS[role], label=label)
    ax.axhline(1, color=COLORS["baseline"], lw=0.8)
    never = ", ".join(rows.loc[rows["pays"].isna(), "width"].map("{:g}".format))
    if never:
        ax.text(0.02, 0.02, f"on no number of ranks at H = {never}", transform=ax.transAxes, size=8)
    panels.log_scale(ax, shown="{x:,g}", ticks=rows["width"])
    ax.set_ylim(0.3, 4e4)
    ax.set(xlabel="width of a state, H", title="(f) where the scan pays, RNNs")
    ax.legend(loc="upper right", fontsize=8)
