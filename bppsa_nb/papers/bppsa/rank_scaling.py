"""The scan over MPI ranks: time, memory and ⋄ calls, measured."""

import numpy as np
import pandas as pd

from bppsa_nb.papers import panels, provenance
from bppsa_nb.papers import ranks as on_ranks
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.papers.ranks.model import Costs, Interconnect, OperatorCosts, exscan, scan, sequential

SCALES = {
    "quick": {"steps": (1000, 5000, 30000), "ranks": (1, 2, 4), "rounds": 5},
    "paper": {"steps": (1000, 2000, 5000, 10000, 20000, 30000), "ranks": (1, 2, 4), "rounds": 15},
}
B, H = 16, 20
COUNTED = {"quick": (3,), "paper": (3, 5, 6, 7, 8)}  # ranks on which ⋄ calls alone are looked at
COUNTED_STEPS = 100
WIDTHS = (4, 8, 20, 40)  # of maps that are scanned
METHODS = {"linear": (COLORS["linear"], "s"), "chunked": (COLORS["chunked"], "o")}
RANKS = {1: ("-", COLORS["baseline"]), 2: ("--", COLORS["vector"]), 4: (":", COLORS["identity"])}


def measure(scale, rng, progress):
    """Run the package's program on ranks: rows of ranks, of messages, of ⋄, and of predictions."""
    chosen = SCALES[scale]
    seed = int(np.random.default_rng(rng).integers(2**31))
    points = [{"ranks": ranks, "rounds": chosen["rounds"]} for ranks in chosen["ranks"]]
    points += [{"ranks": ranks, "rounds": 1} for ranks in COUNTED[scale]]

    def measure_point(point, rng):
        steps = (COUNTED_STEPS,) if point["ranks"] in COUNTED[scale] else chosen["steps"]
        return _run(steps=steps, seed=seed, **point)

    table = progress.collect(points, measure_point, rng)
    cores = provenance.cores()
    table = pd.concat([table, pd.DataFrame(predicted(table, cores))], ignore_index=True)
    table.attrs["cores"] = cores
    return table


def _run(ranks, rounds, steps, seed):
    """Run the program on some ranks; return a row per thing measured."""
    how = ["--steps", *steps, "--batch", B, "--width", H, "--backend", "cpu", "--seed", seed, "--repeat", rounds]
    measured = on_ranks.run(ranks, "chain", *how, "--scan-widths", *WIDTHS)
    key, times = ["steps", "rank", "method"], pd.DataFrame(measured["rows"])
    kept = {"combined": "max", "seconds": "median", "communication": "median", "done_by": "first"}
    memory = pd.DataFrame(measured["memory"]).set_index(key)["bytes"]
    ranks = times.groupby(key).agg(kept).assign(part="rank", memory=memory).reset_index()
    passes = times.groupby(["steps", "method", "round"])["seconds"].max()  # of the rank that is done last
    total = passes.groupby(["steps", "method"]).agg(total="median", low="min", high="max")
    rows = ranks.join(total, on=["steps", "method"]).to_dict("records")
    for parts in measured["parts"]:
        T = parts.pop("steps")
        rows += [{"part": f"alone, {name}", "steps": T, "seconds": seconds} for name, seconds in parts.items()]
    for row in measured["operator"]:
        for part, seconds in (("merge", row["product"]), ("apply", row["apply"])):
            rows.append({"part": f"alone, {part}", "seconds": seconds, "width": row["width"], "bytes": row["bytes"]})
    rows += [{"part": "message"} | row for row in measured["messages"]]
    rows += [{"part": "exscan"} | row for row in measured["scans"] if row["rank"] == 0]
    return rows


def link(table):
    """Fit α + β bytes to what messages between two ranks took: the link, by least squares of errors, and the error."""
    messages = where(table, part="message", ranks=2)
    size, seconds = (messages[name].to_numpy(float) for name in ("bytes", "seconds"))
    terms = np.stack([1 / seconds, size / seconds], axis=1)
    latency, per_byte = np.linalg.lstsq(terms, np.ones(len(size)))[0]
    errors = (latency + per_byte * size) / seconds - 1
    return Interconnect(float(latency), float(1 / per_byte)), float(np.sqrt(np.mean(errors**2)))


def costs(table, steps):
    """Return what one rank took by itself, of chains of so many steps; its sweep is a whole call, with checks."""
    alone = where(table, ranks=1, steps=steps)
    part = alone.set_index("part")["seconds"]
    sweep, gradients = where(alone, method="linear")["total"].iloc[0], part["alone, backward"] - part["alone, sweep"]
    seconds = part["alone, forward"], sweep, max(gradients, 0), 0, part["alone, product"]
    return Costs(*(each / steps for each in seconds), 4 * B * H, operator_costs(table, H))


def operator_costs(table, width):
    """Return what one rank took to combine maps of states of some width."""
    rows = where(table, width=width, ranks=1).set_index("part")
    seconds = (rows["seconds"][name] for name in ("alone, merge", "alone, apply", "exscan"))
    return OperatorCosts(*seconds, int(rows["bytes"].iloc[0]))


def predicted(table, cores):
    """Predict a backward pass of every length, number of ranks and method that was timed, and Exscan: a row each.

    Exscan is predicted on as many ranks as have a core each: the others wait for time slices, not for messages.
    """
    rows, (between, _) = [], link(table)
    for (T, p, method), _ in timed(table).groupby(["steps", "ranks", "method"]):
        predict = scan if method == "chunked" else sequential
        # MPI's ranks poll, so those that wait keep a core busy: with more ranks than cores, they take turns.
        seconds = predict(int(T), int(p), costs(table, T), between) * max(1, p / cores)  # NumPy makes floats of them
        rows.append({"part": "predicted", "steps": T, "ranks": p, "method": method, "total": seconds})
    for row in where(table, part="exscan").query(f"ranks <= {cores}").itertuples():
        seconds = exscan(np.zeros(row.ranks), between, operator_costs(table, row.width))[0].max()
        same = {"ranks": row.ranks, "width": row.width, "bytes": row.bytes}
        rows.append({"part": "predicted exscan", "seconds": seconds} | same)
    return rows


def ratios(table):
    """Return measured over predicted seconds, by steps, ranks and method."""
    key = ["steps", "ranks", "method"]
    predicted = where(table, part="predicted").set_index(key)["total"]
    return (timed(table).groupby(key)["total"].first() / predicted).dropna()


def timed(table):
    """Return rows of ranks, but those where ⋄ calls alone are looked at."""
    return where(table, part="rank").query(f"steps != {COUNTED_STEPS}")


def facts(table):
    """Say what the longest chain took and held, how often ranks computed ⋄, and what fits to messages."""
    ranks, (between, _) = timed(table), link(table)
    longest = where(ranks, steps=ranks["steps"].max())
    held = where(longest, method="chunked").groupby("ranks")["memory"].max() / 2**20
    calls = where(table, part="rank", done_by="chunked").query("ranks > 1")
    lengths = calls.groupby(["ranks", "rank"])["combined"].nunique().max()
    return {
        "ratios": ratios(table),
        "T": longest["steps"].max(),
        "seconds": {m: {"total": where(longest, method=m).groupby("ranks")["total"].first()} for m in METHODS},
        "held": held,
        "share": held * held.index / held.get(1, np.nan),
        "calls": calls.groupby("ranks")["combined"].max(),
        "same": lengths == 1,
        "lengths": "whatever T is" if lengths == 1 else "depending on T",
        "combined": where(table, part="rank", method="chunked").groupby("ranks")["combined"].max(),
        "latency": between.latency,
        "bandwidth": between.bandwidth / 1e9,
    }


def plot(table):
    fig, axes = panels.subplots(2, 2, figsize=(9.6, 7.4))
    ranks = timed(table)
    _draw_times(axes[0, 0], table, ranks)
    _draw_memory(axes[0, 1], where(ranks, method="chunked"))
    _draw_calls(axes[1, 0], where(table, part="rank", method="chunked"))
    _draw_messages(axes[1, 1], table)
    for ax in axes[0]:
        panels.log_scale(ax, "x", "{x:,}", sorted(ranks["steps"].astype(int).unique()))
        ax.set_xlabel("steps, T")
    for ax in (axes[0, 1], axes[1, 1]):
        ax.legend(loc="upper left", fontsize=8)
    return fig


def _draw_times(ax, table, ranks):
    for method, (color, marker) in METHODS.items():
        for p, (dash, _) in RANKS.items():
            line, dots = where(table, part="predicted", method=method, ranks=p), where(ranks, method=method, ranks=p)
            ax.plot(line["steps"], 1e3 * line["total"], dash, color=color, lw=1.3)
            dots = dots.drop_duplicates("steps").rename(columns={"low": "total_low", "high": "total_high"})
            look = {"fmt": marker, "color": color, "ms": 4 + p, "mfc": "none", "lw": 0.8}
            look["label"] = f"{method}, {p} rank{'s' if p > 1 else ''}"
            panels.with_quartiles(ax, dots["steps"], 1e3 * dots[["total", "total_low", "total_high"]], "total", **look)
    found, T = ratios(table), ranks["steps"].max()
    texts = [f"{p} ranks, {m}: {found[T, p, m]:.2f}" for p in list(RANKS)[1:] for m in METHODS]
    texts = "\n".join([f"{table.attrs['cores']} cores; at T = {T:,.0f},", "measured / predicted:", *texts])
    ax.text(0.98, 0.02, texts, transform=ax.transAxes, ha="right", size=8)
    panels.log_scale(ax, "y", "{x:,g}")
    ax.set_ylim(0.2 * 1e3 * ranks["total"].min(), 30e3 * ranks["total"].max())
    ax.set(ylabel="milliseconds of one backward pass", title="(a) time")
    ax.legend(loc="upper left", ncols=2, fontsize=8)


def _draw_memory(ax, ranks):
    for p, (_, color) in RANKS.items():
        held = where(ranks, ranks=p).groupby("steps")["memory"].max() / 2**20
        words = f"{p} rank{'s' if p > 1 else ''}: {held.iloc[-1]:.1f} MiB at T = {held.index[-1]:,.0f}"
        ax.plot(held.index, held, "o", color=color, label=words)
        steps = np.geomspace(held.index[0], held.index[-1], 20)
        ax.plot(steps, (steps / p + 1) * B * H * 4 / 2**20, "-", color=color, lw=1.1)
    panels.log_scale(ax, "y")
    ax.set(ylabel="MiB of the rank with the most", title="(b) peak memory of a rank")


def _draw_calls(ax, ranks):
    found = ranks.groupby("ranks").agg(most=("combined", "max"), lengths=("steps", "nunique"))
    limit = np.arange(1, found.index.max() + 1)
    ax.step(limit, 2 * np.ceil(np.log2(limit)), "--", where="mid", color=COLORS["baseline"], label="2⌈log₂ p⌉")
    ax.plot(found.index, found["most"], "o", color=COLORS["matrix"], label="the rank with the most calls")
    for p, most, lengths in found[found["lengths"] > 1].itertuples():
        ax.annotate(f"{lengths} lengths", (p, most), (0, -13), textcoords="offset points", ha="center", size=8)
    ax.set_xticks(limit)
    ax.set(xlabel="ranks, p", ylabel="⋄ in one backward pass", title="(c) ⋄ calls of a rank", ylim=(-0.9, None))
    ax.legend(loc="lower right", fontsize=8)


def _draw_messages(ax, table):
    between, error = link(table)
    dots = where(table, part="message", ranks=2)
    size = np.geomspace(dots["bytes"].min(), dots["bytes"].max(), 100)
    gray = COLORS["baseline"]
    words = f"{1e6 * between.latency:.1f} µs + bytes / ({between.bandwidth / 1e9:.1f} GB/s), off by {error:.0%}"
    ax.plot(dots["bytes"], 1e6 * dots["seconds"], "o", color=gray, label="a message between two ranks")
    ax.plot(size, 1e6 * between.seconds(size), "-", color=gray, lw=1.1, label=words)
    for p in (2, 4):
        dots, line = (where(table, part=part, ranks=p).sort_values("bytes") for part in ("exscan", "predicted exscan"))
        words, color = f"Exscan of maps, {p} ranks" + ("" if len(line) else " that take turns"), RANKS[p][1]
        ax.plot(dots["bytes"], 1e6 * dots["seconds"], "s", color=color, label=words)
        if len(line):
            off = np.sqrt(np.mean((line["seconds"].to_numpy() / dots["seconds"].to_numpy() - 1) ** 2))
            words = f"predicted, off by {off:.0%}"
            ax.plot(line["bytes"], 1e6 * line["seconds"], "--", color=color, lw=1.1, label=words)
    ax.set_xscale("log")
    panels.log_scale(ax, "y", "{x:,.0f}")
    ax.set_ylim(top=0.5e9 * dots["seconds"].max())
    ax.set(xlabel="bytes of a message, or of a map", ylabel="microseconds", title="(d) messages, and Exscan with ⋄")


FIGURE = Figure(
    origin="timed", backend="cpu",
    caption="""Measured times are {ratios:.2g} times the predicted ones. The chain is an RNN's, B = 16, H = 20, float32,
    with one thread per rank. (a) One backward pass; dots: medians, lines: predicted from one rank. From three ranks on,
    some multiply H × H matrices. p ranks on c < p cores take p / c times as long, which the prediction counts. (b) The
    most memory of a rank during the call, above what it had before; lines: its gradients alone. (c) How often a rank
    computed ⋄ in the scan over ranks, Exscan, and the limit. (d) Messages between two ranks, fitted by α + β bytes;
    Exscan, predicted from that and ⋄ on one rank.""",
    alt="""Four plots. (a) Milliseconds over T; at T = {T:,.0f}, {seconds:each times;} ranks. (b) MiB over T, at most
    {held:.1f on _} ranks. (c) The most ⋄ calls of a rank, {combined:.0f on _}, beside a staircase, the limit. (d)
    Microseconds over bytes: messages, with the fitted line {latency:.1f µs} + bytes / ({bandwidth:.1f} GB/s), and
    Exscan.""",
    phrases={"times": "{_} {total:.3g ms on _}"},
    claims=[
        Claim("§1, §3.6", "Split over n devices, the backward pass takes logarithmically many steps.",
              "Θ(log n) (here: at most 2⌈log₂ p⌉ ⋄ a rank)",
              "⋄ calls of a rank, counted: {calls:.0f on _} ranks, {lengths}",
              lambda f: (f["calls"] <= 2 * np.ceil(np.log2(f["calls"].index))).all() and f["same"], "printed"),
        Claim("§3.6, on ranks", "A device's space falls with the number of devices.",
              "Θ(max(n/p, 1)) M_Jacob (here: within a fourth of 1/p)",
              "MiB above what a rank had before, T = {T:,.0f}: {held:.1f on _} ranks; times p, {share:.2f} of one "
              "rank's", lambda f: f["share"].max() <= 1.25, "memory"),
    ],
)
