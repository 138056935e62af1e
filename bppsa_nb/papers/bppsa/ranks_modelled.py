"""Up to 1024 ranks, modelled: the scan, rank after rank, GPipe and MGRIT."""

import functools
import itertools

import pandas as pd

from bppsa_nb.papers import panels
from bppsa_nb.papers import ranks as on_ranks
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, where
from bppsa_nb.papers.multigrid.recording import record
from bppsa_nb.papers.ranks import FAST, LINKS, SLOW
from bppsa_nb.papers.ranks.model import Costs, longest_at_the_loss, pipeline, scan, sequential
from bppsa_nb.schedule import events as timeline

RANKS = tuple(2**i for i in range(11))
BATCH = 16
SPLITS = (1, 2, 4, 8, 16)  # micro-batches
STEPS = {"RNN": 30000, "narrow": 4096, "wide": 4096}
NETWORKS = {"RNN": ("rnn", 20, 2000), "narrow": ("residual", 8, 256), "wide": ("residual", 128, 48)}  # the last: timed
NAMES = {"RNN": "RNN, H = 20", "narrow": "residual, 8 units", "wide": "residual, 128 units"}
WIDTHS = {"quick": (8, 60), "paper": (4, 8, 12, 40, 60, 80, 120)}  # of other RNNs
ROUNDS = {"quick": 5, "paper": 15}
ROADS = {"scan": COLORS["blelloch"], "uneven scan": COLORS["truncated"], "rank after rank": COLORS["linear"]}
ROADS |= {"GPipe": COLORS["pipeline"], "MGRIT": COLORS["multigrid"]}
SPEEDS = {"slow": (SLOW, "--"), "fast": (FAST, "-")}
DRAWN = {"a": ("RNN", "backward"), "b": ("RNN", "step"), "d": ("narrow", "step"), "e": ("wide", "step")}  # over ranks
NEEDS_RANKS = "not measurable here: needs many machines"


def measure(scale, rng, progress):
    """Time steps and ⋄ on one rank, and predict: rows of costs, times, memory and widths."""
    points = [{"network": network, "batch": B} for network in NETWORKS for B in (BATCH, 1)]
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
    return pd.concat([measured.assign(part="cost"), pd.DataFrame(rows)], ignore_index=True)


def _times(network, one, sample=None):
    """Predict a network's backward pass and, where costs of a single sample are given too, its step of training."""
    steps, batch, rows = STEPS.get(network, STEPS["RNN"]), on_ranks.costs(one, BATCH), []
    part = {"part": "time" if sample else "width", "network": network, "width": one["width"]}
    tasks = ("backward", "step") if sample else ("backward",)
    for ranks, (name, link), task in itertools.product(RANKS, LINKS.items(), tasks):
        same, how = part | {"link": name, "ranks": ranks, "task": task}, (steps, ranks, batch, link, task == "step")
        rows.append(same | {"road": "scan", "seconds": scan(*how)})
        rows.append(same | {"road": "rank after rank", "seconds": sequential(*how)})
        if sample:
            seconds, longer = longest_at_the_loss(*how)
            rows.append(same | {"road": "uneven scan", "seconds": seconds, "longer": longer})
        if task == "step":
            single = on_ranks.costs(sample, 1)
            splits = {m: pipeline(steps, ranks, m, _micro_batch(batch, single, m), link) for m in SPLITS}
            best = min(splits, key=splits.get)
            found = {"seconds": splits[best][0], "micro_batches": best, "bubble": splits[best][1]}
            rows.append(same | {"road": "GPipe"} | found)
        if task == "step" and network != "RNN" and ranks in RANKS[::2]:
            recorded = _record(steps, ranks, cycles=2, coarsening=4)
            took = {"F": batch.forward, "δO": batch.sweep, "δW": batch.gradients}
            seconds = timeline.makespan(recorded.timeline(took, link.seconds(batch.state))[0])
            rows.append(same | {"road": "MGRIT", "seconds": seconds})
    return rows


_record = functools.lru_cache(maxsize=1)(record)  # one link after the other is of the same cycles


def _micro_batch(batch, sample, count):
    """Return costs of one of `count` micro-batches: between those of a sample and of the batch."""
    share = (BATCH / count - 1) / (BATCH - 1)
    steps = [one + share * (whole - one) for one, whole in zip(sample[:5], batch[:5], strict=True)]
    return Costs(*steps, batch.state // count, batch.operator)


def _memory(network, row):
    """Count the bytes that a rank holds, parameters left out."""
    steps, rows, state = STEPS[network], [], 4 * BATCH * row["width"]
    for ranks in RANKS:
        held = -(-steps // ranks)
        inside = 2 * held * state  # states of its own steps, and gradients
        sizes = {
            "scan": inside + held * 4 * BATCH * row["matrix"] + 3 * row["bytes"],  # and Jacobians, and maps
            "GPipe": inside + ranks * state,
            "GPipe, nothing computed again": inside + (ranks - 1) * held * state,
            "GPipe, the same 16 samples": inside / BATCH + state,
        }
        same = {"part": "memory", "network": network, "ranks": ranks}
        rows += [same | {"road": road, "memory": float(size)} for road, size in sizes.items()]
    return rows


def by_road(table, network, task="backward", link=FAST):
    """Return modelled seconds: a row for each number of ranks, a column for each road."""
    rows = where(table, network=network, task=task, link=link).astype({"ranks": int})
    return rows.pivot_table("seconds", "ranks", "road", "first")  # of the RNN, there are rows of two parts


def crossing(table, network, task="backward", link=FAST):
    """Find from how many ranks on the scan pays (None: never), on how many it is fastest, and its speedup there."""
    times = by_road(table, network, task, link)
    scan, other = times["scan"], times["rank after rank"]
    wins = times.index[(scan < other) & (times.index > 2)]  # two ranks do the same in the same time
    pays = int(wins[0]) if len(wins) else None
    leads = f"faster than rank after rank from {pays} ranks on" if pays else "never faster than rank after rank"
    return {"pays": pays, "leads": leads, "best": int(scan.idxmin()), "speedup": other.min() / scan.min()}


def widths(table):
    """Find `crossing` of RNNs over the fast link: a row for each width of a state."""
    rows = where(table, part="width").drop_duplicates("network").sort_values("width")
    found = pd.DataFrame([crossing(table, network) for network in rows["network"]])
    return found.astype({"pays": float}).assign(width=rows["width"].to_list())


def facts(table):
    """Compare the scan with the other roads: where it pays, what it gains, and what a rank holds in MiB."""
    found = {}
    for task in ("backward", "step"):
        times = by_road(table, "RNN", task)
        gains, (middle, last) = times.rdiv(times["rank after rank"], axis=0), times.index[[len(times) // 2, -1]]
        found[task] = {"scan": gains["scan"][[4, last]], "uneven": gains["uneven scan"][[4, last]]}
        found[task] |= {"middle": gains["uneven scan"][[4, middle]]} | crossing(table, "RNN", task)
    held = where(table, part="memory").astype({"ranks": int})
    held = held.pivot(index="ranks", columns=["network", "road"], values="memory") / 2**20
    sparse = {}
    for network in ("RNN", "wide"):
        scan, full = held[network]["scan"], held[network]["GPipe"]
        when = f"from {scan.index[scan < full][0]} ranks on" if (scan < full).any() else "on no number of ranks"
        sparse[network] = {"name": NAMES[network], "when": when, "one": scan[1] / full[1]}
    return found | {
        "scans": {
            ", ".join(each): {speed: crossing(table, *each, link) for speed, (link, _) in SPEEDS.items()}
            for each in DRAWN.values()
        },
        "best": {NAMES[network]: {"seconds": by_road(table, network, "step").min()} for network in NAMES},
        "held": held["RNN"],
        "least": held["RNN"]["GPipe"].min(),
        "at": held["RNN"]["GPipe"].idxmin(),
        "last": held["RNN"].tail(1),
        "ranks": held.index[-1],
        "sparse": sparse,
        "widths": widths(table),
    }


def plot(table):
    fig = panels.figure(figsize=(11.6, 7.4))
    axes = fig.subplot_mosaic("abc;def")
    for letter, (network, task) in DRAWN.items():
        _draw_times(axes[letter], table, network, task)
        axes[letter].set_title(f"({letter}) {'backward pass' if task == 'backward' else task}, {NAMES[network]}")
    _draw_memory(axes["c"], where(table, part="memory"))
    _draw_widths(axes["f"], widths(table))
    for letter in "abcde":
        panels.sizes_axis(axes[letter], RANKS[::2])
        axes[letter].set_xlabel("ranks")
        panels.log_scale(axes[letter], "y", "{x:,.10g}")
    for letter in "bdf":
        axes[letter].legend(loc="upper right", fontsize=8)
    return fig


def _draw_times(ax, table, network, task):
    rows, words = where(table, part="time", network=network, task=task), []
    for speed, (link, dash) in SPEEDS.items():
        for road, color in ROADS.items():
            part = where(rows, road=road, link=link)
            if len(part):
                label = road if speed == "fast" else None
                ax.plot(part["ranks"], 1e3 * part["seconds"], dash, color=color, label=label, lw=1.5)
        found, times = crossing(table, network, task, link), by_road(table, network, task, link)["scan"]
        for ranks, marker in ((found["pays"], "v"), (found["best"], "^")):
            if ranks is not None:
                ax.plot(ranks, 1e3 * times[ranks], marker, color="black", ms=6, zorder=5)
        pays = f"pays from {found['pays']}" if found["pays"] else "never pays"
        words.append(f"{speed} link: {pays}; best {found['best']}, {found['speedup']:.2g}×")
    ax.text(0.02, 0.02, "\n".join(words), transform=ax.transAxes, size=8)
    ax.set_ylim(1e3 * rows["seconds"].min() / 4, 8e3 * rows["seconds"].max())  # with room for words and a legend
    ax.set_ylabel("milliseconds")


def _draw_memory(ax, rows):
    for network, road, dash, label in (
        ("RNN", "scan", "-", f"scan, {NAMES['RNN']}"),
        ("RNN", "GPipe", "-", f"GPipe, {NAMES['RNN']}"),
        ("wide", "scan", ":", f"scan, {NAMES['wide']}"),
        ("wide", "GPipe", ":", f"GPipe, {NAMES['wide']}"),
        ("RNN", "GPipe, nothing computed again", "--", "GPipe, nothing computed again, RNN"),
        ("RNN", "GPipe, the same 16 samples", "-.", "GPipe, the same 16 samples, RNN"),
    ):
        part, color = where(rows, network=network, road=road), ROADS[road.split(",")[0]]
        lw = 1.1 if "," in road else None
        ax.plot(part["ranks"], part["memory"] / 2**20, dash, color=color, lw=lw, label=label)
    ax.set_ylim(rows["memory"].min() / 2**20 / 2, 300 * rows["memory"].max() / 2**20)
    ax.set(ylabel="MiB per rank", title="(c) memory")
    ax.legend(loc="upper right", fontsize=7)


def _draw_widths(ax, rows):
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
    ax.set(xlabel="width of a state, H", title="(f) where the scan pays, RNNs", ylim=(0.3, 4e4))


FIGURE = Figure(
    origin="timed", backend="cpu",
    caption="""On the fast link, an uneven scan takes the RNN back {backward[middle]:.3g times as fast on _} ranks as
    rank after rank. Uneven: the segment at the loss, which needs no product, gets as many steps as pay. Modelled, not
    measured: steps and ⋄ take what one rank of this machine takes. Messages take 30 µs and 25 Gb/s (slow, dashed) or 2
    µs and 200 Gb/s (fast). RNN: 30,000 steps; residual networks: 4096 dense layers; 16 samples, float32. GPipe has the
    best number of micro-batches; MGRIT two V-cycles, FCF, blocks of 4 layers, approximate gradients. Triangles down:
    from how many ranks on the scan is faster than rank after rank. Triangles up: where it is fastest, with its speedup
    over the best of rank after rank. (c) What a rank holds, parameters aside; GPipe, a micro-batch of 16 samples per
    rank.""",
    alt="""Six plots on logarithmic axes, five over 1 to 1024 ranks, a line for each method and link. (a) The RNN's
    backward pass. The scan: {scans[RNN, backward]:each link;}. (b) Its step. The scan: {scans[RNN, step]:each link;}.
    (c) MiB per rank: the scan falls, GPipe falls, then rises. (d), (e) Steps of residual networks of 8 and of 128
    units. The narrow one's scan: {scans[narrow, step]:each link;}. The wide one's: {scans[wide, step]:each link;}. (f)
    Over an RNN's width, where the scan pays, on how many ranks it is fastest, and its speedup there,
    {widths:each best;}.""",
    phrases={
        "link": "over the {_} link it is {leads}, and {speedup:.2g} times as fast at its best, on {best}",
        "best": "{width:g}: {best:g} and {speedup:.2g}",
        "network": "{_}: {seconds:.3g ms (_)}",
        "held": "{name}: {when} ({one:×} on one)",
        "width": "H = {width:g}: {leads}, {speedup:×} at best",
    },
    claims=[
        *(Claim(f"§2.2, {how}", "BPPSA becomes more advantageous as the number of devices increases.",
                "no number printed",
                f"modelled from measured costs: {{{task}[scan]:× on _}} ranks; {{{task}[leads]}}; with a longer run at "
                f"the loss {{{task}[uneven]:× on _}}; fastest on {{{task}[best]}}, {{{task}[speedup]:×}} the best of "
                "the other", lambda f: NEEDS_RANKS)
          for task, how in (("backward", "backward pass"), ("step", "whole step"))),
        Claim("§2.2, other roads", "Pipelines meet diminishing returns: their bubble grows with their length.",
              "no number printed", "modelled, best of up to 1024 ranks: {best:each network;}", lambda f: NEEDS_RANKS),
        Claim("§2.2, Appendix B", "A pipeline's space limits how many devices it can have, BPPSA's does not.",
              "Θ(L/K + K)",
              "counted, RNN: the pipeline's least is {least:.2g} MiB on {at} ranks, {last[GPipe]:.2g} on {ranks}; the "
              "scan's falls to {last[scan]:.2g}. A pipeline whose batch stays as it is holds "
              "{last[GPipe, the same 16 samples]:.2g} there, but is not full",
              lambda f: f["at"] < f["ranks"] and f["held"]["scan"].is_monotonic_decreasing, "printed"),
        # Jacobians of shared weights cost no more than a few states, and dense ones do.
        Claim("§3.6, M_Jacob", "Jacobians take little space only because most of their entries need none.",
              "M_Jacob ≪ O(M_x²)", "counted, less than a full pipeline holds: {sparse:each held;}",
              lambda f: f["sparse"]["RNN"]["one"] <= 2 < f["sparse"]["wide"]["one"], "printed"),
        Claim("§3.6, width", "BPPSA is faster where n / log n exceeds the dimension of x.",
              "n / log n = 102 for 1024 devices",
              "modelled, backward pass of RNNs on up to {ranks} ranks: {widths:each width;}", lambda f: NEEDS_RANKS),
    ],
)
