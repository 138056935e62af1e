"""A chain over MPI ranks, measured: time and memory of every rank, ⋄ calls, and what messages take."""

import numpy as np
import pandas as pd
from matplotlib import pyplot

from bppsa_nb.distributed.predict import Costs, Interconnect, OperatorCosts, exscan, scan, sequential
from bppsa_nb.papers import on_ranks, panels, provenance
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.papers.tables import where

SCALES = {
    "quick": {"steps": (1000, 5000, 30000), "ranks": (1, 2, 4), "rounds": 5},
    "paper": {"steps": (1000, 2000, 5000, 10000, 20000, 30000), "ranks": (1, 2, 4), "rounds": 15},
}
B, H = 16, 20
COUNTED = {"quick": (3,), "paper": (3, 5, 6, 7, 8)}  # ranks on which ⋄ calls alone are looked at
COUNTED_STEPS = 100
WIDTHS = (4, 8, 20, 40)  # of maps that are scanned
METHODS = {"linear": ("linear", COLORS["linear"], "s"), "chunked": ("chunked", COLORS["chunked"], "o")}
RANKS = {1: "-", 2: "--", 4: ":"}
_SHADES = {1: COLORS["baseline"], 2: COLORS["vector"], 4: COLORS["identity"]}


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
    rows = _predicted_times(table, cores) + _predicted_exscans(table, cores)
    table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
    table.attrs |= {"backend": "cpu", "cores": cores, "B": B, "H": H}
    return table


def _run(ranks, rounds, steps, seed):
    """Run the program on some ranks; return a row per thing measured."""
    how = ["--steps", *steps, "--batch", B, "--width", H, "--backend", "cpu", "--seed", seed, "--repeat", rounds]
    measured = on_ranks.run(ranks, "bppsa_nb.distributed", *how, "--scan-widths", *WIDTHS)
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
        same = {"width": row["width"], "bytes": row["bytes"]}
        rows += [{"part": "alone, merge", "seconds": row["product"]} | same]
        rows += [{"part": "alone, apply", "seconds": row["apply"]} | same]
    rows += [{"part": "message"} | row for row in measured["messages"]]
    rows += [{"part": "exscan"} | row for row in measured["scans"] if row["rank"] == 0]
    return rows


def fit(messages):
    """Fit α + β bytes to what messages took, by least squares of relative errors; return the link, and the error."""
    size, seconds = (messages[name].to_numpy(float) for name in ("bytes", "seconds"))
    terms = np.stack([1 / seconds, size / seconds], axis=1)
    latency, per_byte = np.linalg.lstsq(terms, np.ones(len(size)))[0]
    errors = (latency + per_byte * size) / seconds - 1
    return Interconnect(float(latency), float(1 / per_byte)), float(np.sqrt(np.mean(errors**2)))


def link(table):
    """Return the link that was fitted to messages between two ranks, and its error; see `fit`."""
    return fit(where(table, part="message").groupby("ranks").get_group(2))


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


def _predicted_times(table, cores):
    rows, (between, _) = [], link(table)
    for (T, p, method), _ in _timed(table).groupby(["steps", "ranks", "method"]):
        predict = scan if method == "chunked" else sequential
        # MPI's ranks poll, so those that wait keep a core busy: with more ranks than cores, they take turns.
        seconds = predict(int(T), int(p), costs(table, T), between) * max(1, p / cores)  # NumPy makes floats of them
        rows.append({"part": "predicted", "steps": T, "ranks": p, "method": method, "total": seconds})
    return rows


def _predicted_exscans(table, cores):
    """Predict Exscan on as many ranks as have a core each: the others wait for time slices, not for messages."""
    rows, (between, _) = [], link(table)
    for _, row in table[(table["part"] == "exscan") & (table["ranks"] <= cores)].iterrows():
        alone = operator_costs(table, row["width"])
        seconds = exscan(np.zeros(int(row["ranks"])), between, alone)[0].max()
        same = {name: row[name] for name in ("ranks", "width", "bytes")}
        rows.append({"part": "predicted exscan", "seconds": seconds} | same)
    return rows


def ratios(table):
    """Return measured over predicted seconds, by steps, ranks and method."""
    key = ["steps", "ranks", "method"]
    measured = table[table["part"] == "rank"].groupby(key)["total"].first()
    predicted = table[table["part"] == "predicted"].set_index(key)["total"]
    return (measured / predicted).dropna()


def values(table):
    """Return what words need beside the table: what the longest chain took, ⋄ calls, and the fitted link."""
    ranks, (between, _) = _timed(table), link(table)
    longest = where(ranks, steps=ranks["steps"].max()).assign(milliseconds=1e3 * ranks["total"])
    chunked = where(longest, method="chunked")
    longest = longest.drop_duplicates(["method", "ranks"]).sort_values("method", ascending=False, kind="stable")
    counted = where(table, part="rank", method="chunked").groupby("ranks")["combined"].max().reset_index()
    peaks = list(chunked.groupby("ranks")["memory"].max() / 2**20)
    fitted = {"latency": 1e6 * between.latency, "bandwidth": between.bandwidth / 1e9}
    return {"longest": longest, "ratios": list(ratios(table)), "peaks": peaks, "counted": counted} | fitted


def _timed(table):
    """Return rows of ranks, but those where ⋄ calls alone are looked at."""
    return table[(table["part"] == "rank") & (table["steps"] != COUNTED_STEPS)]


def plot(table):
    """Draw times over T, memory over T, ⋄ calls over ranks, and messages over bytes."""
    fig, axes = pyplot.subplots(2, 2, figsize=(9.6, 7.4), layout="constrained")
    ranks = _timed(table)
    _draw_times(axes[0, 0], table, ranks)
    _draw_memory(axes[0, 1], ranks[ranks["method"] == "chunked"])
    _draw_calls(axes[1, 0], where(table, part="rank", method="chunked"))
    _draw_messages(axes[1, 1], table)
    for ax in axes[0]:
        panels.log_scale(ax, "x", "{x:,}", sorted(ranks["steps"].astype(int).unique()))
        ax.set_xlabel("steps, T")
    return fig


def _draw_times(ax, table, ranks):
    predicted = table[table["part"] == "predicted"]
    for method, (name, color, marker) in METHODS.items():
        for p, dash in RANKS.items():
            line, dots = (where(rows, method=method, ranks=p) for rows in (predicted, ranks))
            dots = dots.drop_duplicates("steps")
            ax.plot(line["steps"], 1e3 * line["total"], dash, color=color, lw=1.3)
            look = {"fmt": marker, "color": color, "ms": 4 + p, "mfc": "none", "lw": 0.8}
            look["label"] = f"{name}, {p} rank{'s' if p > 1 else ''}"
            panels.errorbar(ax, dots["steps"], *(1e3 * dots[value] for value in ("low", "total", "high")), **look)
    found, cores = ratios(table), table.attrs["cores"]
    T = found.index.get_level_values("steps").max()
    texts = [f"{p} ranks, {m}: {found[T, p, m]:.2f}" for p in list(RANKS)[1:] for m in METHODS]
    texts = "\n".join([f"{cores} cores; at T = {T:,.0f},", "measured / predicted:", *texts])
    ax.text(0.98, 0.02, texts, transform=ax.transAxes, ha="right", size=8)
    panels.log_scale(ax, "y", "{x:,g}")
    ax.set_ylim(0.2 * 1e3 * ranks["total"].min(), 30e3 * ranks["total"].max())
    ax.set(ylabel="milliseconds of one backward pass", title="(a) time")
    ax.legend(loc="upper left", ncols=2, fontsize=8)


def _draw_memory(ax, ranks):
    for p, color in _SHADES.items():
        rows = ranks[ranks["ranks"] == p].groupby("steps")["memory"].max() / 2**20
        words = f"{p} rank{'s' if p > 1 else ''}: {rows.iloc[-1]:.1f} MiB at T = {rows.index[-1]:,.0f}"
        ax.plot(rows.index, rows, "o", color=color, label=words)
        steps = np.geomspace(rows.index[0], rows.index[-1], 20)
        ax.plot(steps, (steps / p + 1) * B * H * 4 / 2**20, "-", color=color, lw=1.1)
    panels.log_scale(ax, "y")
    ax.set(ylabel="MiB of the rank with the most", title="(b) peak memory of a rank")
    ax.legend(loc="upper left", fontsize=8)


def _draw_calls(ax, ranks):
    most = ranks.groupby("ranks")["combined"].max()
    apart = ranks.groupby("ranks")["steps"].nunique()
    limit = np.arange(1, most.index.max() + 1)
    ax.step(limit, 2 * np.ceil(np.log2(limit)), "--", where="mid", color=COLORS["baseline"], label="2⌈log₂ p⌉")
    ax.plot(most.index, most, "o", color=COLORS["matrix"], label="the rank with the most calls")
    for p in apart[apart > 1].index:
        ax.annotate(f"{apart[p]} lengths", (p, most[p]), (0, -13), textcoords="offset points", ha="center", size=8)
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
        words = f"Exscan of maps, {p} ranks" + ("" if len(line) else " that take turns")
        ax.plot(dots["bytes"], 1e6 * dots["seconds"], "s", color=_SHADES[p], label=words)
        if len(line):
            off = np.sqrt(np.mean((line["seconds"].to_numpy() / dots["seconds"].to_numpy() - 1) ** 2))
            words = f"predicted, off by {off:.0%}"
            ax.plot(line["bytes"], 1e6 * line["seconds"], "--", color=_SHADES[p], lw=1.1, label=words)
    ax.set_xscale("log")
    panels.log_scale(ax, "y", "{x:,.0f}")
    ax.set_ylim(top=0.5e9 * dots["seconds"].max())
    ax.set(xlabel="bytes of a message, or of a map", ylabel="microseconds", title="(d) messages, and Exscan with ⋄")
    ax.legend(loc="upper left", fontsize=8)
