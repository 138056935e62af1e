"""Claims about layer-parallel training by multigrid (Sections I and IV).

Speedups of GPUs are shown beside what CPU ranks gave, and beside simulations from stated costs: neither decides.
"""

from functools import partial

from bppsa_nb.papers.claims.claim import MULTIGRID, Claim, compare, require, rows_of, times, verdict
from bppsa_nb.papers.claims.tolerance import PRINTED, ROUNDING, TIMED, TRAINED
from bppsa_nb.papers.multigrid import figures_06_07_layer_scaling as layer_scaling
from bppsa_nb.papers.multigrid import layer_parallel_training

ETHERNET = "25 Gb/s Ethernet"
_SUFFICES = 4  # T = N h up to which two cycles are held to suffice; the paper does not say what its T is


def _depths(table):
    rows = rows_of(table, solved="states")
    return rows.groupby(["weights", "activation", "N"])[["cycles", "factor", "error"]].first().reset_index()


def _same_cycles(table):
    runs = _depths(table)
    by_panel = runs.groupby(["weights", "activation"])["cycles"].agg(["min", "max"])
    apart = (by_panel["max"] - by_panel["min"]).max()
    ours = f"{runs['cycles'].min()} to {runs['cycles'].max()} V-cycles to 1e-9; from {runs['N'].min()} to "
    ours += f"{runs['N'].max()} layers, their number differs by {apart} at most; a cycle leaves "
    ours += f"{runs['factor'].min():.1%} to {runs['factor'].max():.1%} of the residual"
    return ours, verdict(apart <= 1)


def _same_states(table):
    largest = _depths(table)["error"].max()
    return f"states differ from serial ones by {largest:.0e} at most", verdict(largest < 1e-8)


def _two_cycles(table):
    """Ask how far mean accuracies are apart after any epoch, for networks whose T is small; tell of the others."""
    gaps = []
    for epoch in sorted(table["epoch"].unique())[1:]:
        gaps.append(layer_parallel_training.gaps(table[table["epoch"] <= epoch]))
    small = [rows[rows["T"] <= _SUFFICES] for rows in gaps]
    last = require(small[-1]).iloc[-1]
    most = max(rows["mean"].abs().max() for rows in small)
    ours = f"T = {last['T']:g}: {100 * last['mean']:+.1f} points in the end ({100 * last['least']:+.1f} to "
    ours += f"{100 * last['most']:+.1f} over seeds; their deviation is {100 * last['spread']:.1f})"
    ours += f", {100 * most:.1f} at most after any epoch"
    large = gaps[-1][gaps[-1]["T"] > _SUFFICES]
    ours += "".join(f"; T = {row['T']:g}: {100 * row['mean']:+.1f}" for _, row in large.iterrows())
    adaptive, taken = layer_parallel_training.gaps(table, "adaptive"), layer_parallel_training.counts(table)
    ours += f"; by as many cycles as an estimated error of {layer_parallel_training.ADAPTIVE['error']:g} takes, "
    ours += ", ".join(
        f"{100 * row['mean']:+.1f} for T = {row['T']:g} ({taken.loc[row['T']].iloc[-1]:.2g} in the end)"
        for _, row in adaptive.iterrows()
    )
    holds = most <= 0.005 and (small[-1]["mean"].abs() <= small[-1]["spread"]).all()
    return ours.replace("-", "−"), verdict(holds)


def _constant_time(table):
    steps = rows_of(table, road="multigrid 2", start="layers").groupby("depth")["steps"].first()
    texts = ", ".join(f"{count:g} at {depth}" for depth, count in steps.items())
    ours = f"two cycles forward and backward, steps in a row: {texts} layers; it grows with the logarithm of depth"
    return ours, verdict(steps.nunique() == 1)


def _concurrent(table):
    run = rows_of(table, part="run", method="cycle").median(numeric_only=True)
    ours = f"on {run['threads']:.0f} CPU threads: {run['most_at_once']:.0f} blocks at once at most, "
    return ours + f"{run['at_once']:.1f} on average", compare(run["most_at_once"], 5)


def _scaling(table, channels, task, part, method="multigrid"):
    link = {"link": ETHERNET} if part == "simulated" else {}
    return rows_of(table, channels=channels, task=task, part=part, method=method, **link).set_index("ranks")


def _one_device(table):
    row = _scaling(table, layer_scaling.FEW, "inference", "measured").loc[1]
    slower = row["seconds"] / row["alone"]
    ours = f"{slower:.1f}× slower on one CPU rank, {layer_scaling.CYCLES} cycles"
    return ours, compare(1 / slower, 1 / 4)


def _over_serial(task, theirs, table):
    """Compare with serial propagation on one rank."""
    few = layer_scaling.FEW
    measured, simulated = (_scaling(table, few, task, part) for part in ("measured", "simulated"))
    speedups = simulated["alone"] / simulated["seconds"]
    texts = ", ".join(f"{times(speedups[ranks])} on {ranks}" for ranks in theirs)
    many = measured[measured.index == measured.index.max()].iloc[0]
    ours = f"simulated from stated costs: {texts}; measured on {measured.index.max()} CPU ranks: "
    return ours + times(many["alone"] / many["seconds"]), compare(speedups[list(theirs)], list(theirs.values()))


def _over_partitioning(channels, theirs, table):
    ratios = {}
    for part in ("measured", "simulated"):
        both = [_scaling(table, channels, "training", part, method)["seconds"] for method in ("serial", "multigrid")]
        ratios[part] = both[0] / both[1]
    texts = ", ".join(f"{times(ratios['simulated'][ranks])} on {ranks}" for ranks in theirs)
    most = ratios["measured"].index.max()
    ours = f"simulated from stated costs: {texts}; measured on {most} CPU ranks: {times(ratios['measured'][most])}"
    return ours, compare(ratios["simulated"][list(theirs)], list(theirs.values()))


def _waiting(table):
    row = _scaling(table, layer_scaling.FEW, "training", "simulated").loc[64]
    share = row["communication"] / (row["compute"] + row["communication"])
    return f"simulated from stated costs: {share:.0%} of a rank's time over {ETHERNET}", verdict(share >= 0.9)


def claims():
    """List them, in the order of the report."""
    few, many = layer_scaling.FEW, layer_scaling.MANY
    return [
        Claim(MULTIGRID, "§IV-A, Figure 4", "Residuals fall alike for all depths, down to 1e-9.",
              "independent of depth (no numbers printed)", "depth_independence", _same_cycles, PRINTED),
        Claim(MULTIGRID, "§IV-A", "As the residual goes to zero, states go to those of sequential propagation.",
              "the same solution (here: to 1e-8)", "depth_independence", _same_states, ROUNDING),
        Claim(MULTIGRID, "§IV-A", "Two cycles suffice for the same Top-1 error after each epoch.",
              "“approximately the same” (MNIST; here: mean within 0.5 points for T up to 4)",
              "layer_parallel_training", _two_cycles, TRAINED),
        Claim(MULTIGRID, "§I, §IV-A", "Given enough resources, time does not depend on the number of layers.",
              "“constant asymptotic execution time”", "roads_over_depth", _constant_time, PRINTED),
        Claim(MULTIGRID, "§IV-B, Figure 5", "Blocks of layers run at once on one GPU; registers allow no more.",
              "5 kernels at once (V100)", "concurrent_blocks", _concurrent, TIMED, gpu=True),
        Claim(MULTIGRID, "§IV-C, Figure 6a", "On one device, multigrid is slower than serial propagation.",
              "about 4× slower (V100; how many cycles is not said)", "layer_scaling", _one_device, TIMED),
        Claim(MULTIGRID, "§IV-C, Figure 6a", "Inference over serial propagation on one GPU.",
              "1.25× on 4 GPUs, 4× on 24 (V100)", "layer_scaling",
              partial(_over_serial, "inference", {4: 1.25, 24: 4}), TIMED, gpu=True),
        Claim(MULTIGRID, "§IV-D, Figure 6b", "Training over serial propagation on one GPU, 3 million parameters.",
              "up to 3.5× (V100)", "layer_scaling", partial(_over_serial, "training", {64: 3.5}), TIMED,
              gpu=True),
        Claim(MULTIGRID, "§IV-D, Figure 6b", "Training over a partitioned model on as many GPUs.",
              "up to 5× (V100)", "layer_scaling", partial(_over_partitioning, few, {64: 5}), TIMED, gpu=True),
        Claim(MULTIGRID, "§IV-D, Figure 6c", "On 64 GPUs, communication is nearly all of the time.",
              "97 % (V100)", "layer_scaling", _waiting, TIMED, gpu=True),
        Claim(MULTIGRID, "§IV-E, Figure 7", "Training over a partitioned model, 2 billion parameters.",
              "1.3× on 4 GPUs, 10.2× on 64 (V100)", "layer_scaling",
              partial(_over_partitioning, many, {4: 1.3, 64: 10.2}), TIMED, gpu=True),
    ]
