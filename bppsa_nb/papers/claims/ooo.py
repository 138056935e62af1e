"""Claims about out-of-order backprop (Sections 3, 5, 7.3 and 7.4).

Speedups of clusters are shown beside simulations from stated costs, which decide nothing: `ours` says so.
"""

from functools import partial

import numpy as np

from bppsa_nb.papers.claims.claim import OOO, Claim, compare, require, rows_of, times, verdict
from bppsa_nb.papers.ooo import figure_13_micro_batches as micro_batches
from bppsa_nb.papers.ooo import figures_10_11_data_parallel_throughput as data_parallel_throughput
from bppsa_nb.papers.ooo import figures_12_14_pipeline_throughput as pipeline_throughput

SIMULATED = "simulated from stated costs: "


def _same_gradients(table):
    runs = rows_of(table, policy="random")
    largest = runs["difference"].max()
    return f"{largest:g} at most, in {len(runs)} random orders on LeNet-5", verdict(largest == 0)


def _fast_forward(table):
    units = table.groupby("policy")["makespan"].first()
    before, after = units[["conventional", "fast_forward"]]
    return f"{before:g} and {after:g} units: {times(before / after)}", verdict((before, after) == (23, 19))


def _modulo(table):
    units = table.groupby("policy")["makespan"].first()
    before, after = units[["conventional", "modulo"]]
    return f"{after:g} units: {times(before / after)}", verdict((before, after) == (23, 16))


def _busy(table):
    rows = rows_of(table, policy="modulo")
    gradients = rows[rows["kind"] != "F"]
    backward = rows["makespan"].iloc[0] - gradients["start"].min()
    shares = (gradients.groupby("lane")["duration"].sum() / backward).tolist()
    ours = " and ".join(f"{share:.0%}" for share in shares)
    return f"{ours}, {np.mean(shares):.0%} together", verdict(min(shares) > 0.9)


def _memory_alone(table):
    peaks = table.groupby("policy")["peak_memory"].first()
    usual, forwarded, dealt = peaks[["conventional", "fast_forward", "modulo"]]
    ours = f"inputs and output gradients at a time: {usual:g}; with fast-forwarding {forwarded:g}, with both {dealt:g}"
    return ours, verdict(dealt <= usual)


def _sixteen_layers(name, other, theirs, words, table):
    found = micro_batches.speedups(table)
    units = rows_of(table, part="count", layers=micro_batches.COUNTED).set_index("schedule")["makespan"]
    ours = f"{found[name]:.3f}× {words[0]} ({units['GPipe']:g} / {units[name]:g} units), {found[other]:.3f}× {words[1]}"
    return ours, verdict(np.floor(100 * found[name] + 1e-9) / 100 == theirs)


def _memory_over_gpipe(system, limit, table):
    held = pipeline_throughput.memory(table)
    more, bare = held.loc[system] / held.loc["GPipe"] - 1
    both = ", ".join(f"{name} {held.loc[name, 'bytes'] / 2**30:.2f} GiB" for name in (system, "GPipe"))
    ours = f"counted from stated sizes, BERT-24 on 4 GPUs, the fullest: {both}"
    return f"{ours}; if layers kept nothing for their δO alone, {max(bare, 0):.0%} more", verdict(more <= limit)


def _first_k(table):
    lengths = rows_of(table, part="k").set_index("k")["makespan"]
    best = rows_of(table, part="optimum")["makespan"].iloc[0]
    order, sent = (require(table[table["part"].str.startswith(mark)])["makespan"].iloc[0] for mark in ("(a)", "(b)"))
    ours = f"in an example of our own: {lengths[3]:g} units with k = 3, {lengths[4]:g} with k = 4, optimum {best:g}; "
    ours += f"{times(order / lengths[3])} and {times(sent / lengths[3])}"
    return ours, verdict(lengths[3] == lengths[4] == best)


def _first_k_faster(table):
    gains = data_parallel_throughput.gains(table)
    large = require(gains[gains["gpus"] >= 16])["over_priority"]
    other = rows_of(gains, part="ratio")["over_priority"].max()
    ends = [large.min(), large.max()]
    ours = f"{SIMULATED}{ends[0]:.2f}× to {ends[1]:.2f}× over sending low layers first, ResNet-50 on 16 to 48 GPUs"
    return f"{ours}; up to {other:.2f}× if low layers have most weights", compare(ends, [1.1, 1.27])


def _first_k_memory(network, table):
    images, k = data_parallel_throughput.KEPT[network]
    more = data_parallel_throughput.more_memory(table, network)
    ours = f"counted from stated sizes: {more:.1%} more with k = {k}, {network}, {images} images"
    return ours, verdict(more < 0.01)


def _over_gpipe(table, part="interconnect"):
    rows = rows_of(table, part=part)
    by = "interconnect" if part == "interconnect" else "gpus"
    speedup = rows.pivot(index="system", columns=by, values="speedup")
    return speedup, speedup / speedup.loc["GPipe"]


def _four_gpus(table):
    speedup, over = _over_gpipe(table)
    name = "NVLink, 50 GB/s"
    ours = [over.loc["OOO-Pipe1", name], over.loc["OOO-Pipe2", name], speedup.loc["OOO-Pipe2", name]]
    words = f"{ours[0]:.2f}×, {ours[1]:.2f}×; {ours[2]:.2f}× one GPU"
    return f"{SIMULATED}{words}", compare(ours, [1.15, 1.59, 3.2])


def _interconnects(table):
    over = _over_gpipe(table)[1].loc["OOO-Pipe2"]
    ours = over[["NVLink, 50 GB/s", "PCIe, 16 GB/s", "Ethernet, 1 GB/s"]]
    return SIMULATED + ", ".join(f"{ratio:.2f}×" for ratio in ours), compare(ours, [1.70, 1.58, 1.48])


def _many_gpus(table):
    four, many = (_over_gpipe(table, part)[1].loc["OOO-Pipe2"] for part in ("interconnect", "gpus"))
    ours = f"{SIMULATED}{many.min():.2f}× to {many.max():.2f}× on {many.index.min():g} to {many.index.max():g} GPUs"
    ours += f", {four.min():.2f}× to {four.max():.2f}× on 4 over three interconnects"
    return ours, compare([min(many.min(), four.min()), max(many.max(), four.max())], [1.41, 1.99])


def _over_pipedream(table):
    ratios = []
    for part in ("interconnect", "gpus"):
        speedup = _over_gpipe(table, part)[0]
        ratios += (speedup.loc["OOO-Pipe2"] / speedup.loc["PipeDream"]).tolist()
    ends = [min(ratios), max(ratios)]
    ours = f"{SIMULATED}{ends[0]:.2f}× to {ends[1]:.2f}× over its steady pace, with weights stashed at no cost"
    return ours, compare(ends, [1.14, 1.63])


def claims():
    """List them, in the order of the report."""
    flushed, free = "with a flush", "without"
    return [
        Claim(OOO, "§3, Figure 3", "Weight gradients are used by no other gradient, so reordering them changes none.",
              "no change in semantics", "reorder_gradients", _same_gradients),
        Claim(OOO, "§5.1, Figure 4", "Reversing δW of the first 3 or 4 layers is optimal in the example.",
              "1.16× over layer order, 1.12× over sending low layers first", "reverse_first_k", _first_k),
        Claim(OOO, "§5.2, Figure 5", "Fast-forwarding speeds up 8 layers on 2 GPUs.",
              "23 to 19 unit times, 21 %", "fast_forward", _fast_forward),
        Claim(OOO, "§5.2, Figure 5", "With modulo allocation besides.",
              "16 unit times, 1.44×", "fast_forward", _modulo),
        Claim(OOO, "§5.2, Figure 5", "Both GPUs are then utilized in nearly all of the backward pass.",
              "more than 90 %", "fast_forward", _busy),
        Claim(OOO, "§5.2", "Modulo allocation removes the additional memory of fast-forwarding.",
              "one output gradient at a time", "fast_forward", _memory_alone),
        Claim(OOO, "§7.4, Figure 13", "Fast-forwarding over GPipe, 16 layers of equal costs.", "1.22×", "micro_batches",
              partial(_sixteen_layers, "fast-forwarding", "fast-forwarding, no flush", 1.22, (flushed, free))),
        Claim(OOO, "§7.4, Figure 13", "With modulo allocation besides.", "1.62×",
              "micro_batches", partial(_sixteen_layers, "modulo, no flush", "modulo", 1.62, (free, flushed))),
        Claim(OOO, "§7.4", "Fast-forwarding needs little more memory than GPipe.", "11 % at most (4 × V100)",
              "pipeline_throughput", partial(_memory_over_gpipe, "OOO-Pipe1", 0.11)),
        Claim(OOO, "§7.4", "With modulo allocation, as much memory as GPipe.", "the same (4 × V100)",
              "pipeline_throughput", partial(_memory_over_gpipe, "OOO-Pipe2", 0.0)),
        Claim(OOO, "§7.3, Figure 10", "Reverse first-k over BytePS, which sends low layers first.",
              "1.10× to 1.27× on 16 to 48 GPUs (P100, V100)", "data_parallel_throughput", _first_k_faster, gpu=True),
        Claim(OOO, "§7.3, Figure 11", "Reverse first-k does not usually need more memory, as on ResNet-101.",
              "“remains similar” (here: less than 1 % more)", "data_parallel_throughput",
              partial(_first_k_memory, "ResNet-101")),
        Claim(OOO, "§7.3", "In all experiments with CNNs it needs hardly more; here, with the k named for ResNet-50.",
              "less than 1 % more (V100, P100, Titan XP)", "data_parallel_throughput",
              partial(_first_k_memory, "ResNet-50")),
        Claim(OOO, "§7.4, Figure 12a", "OOO-Pipe1 and OOO-Pipe2 over GPipe, BERT-24; OOO-Pipe2 over one GPU.",
              "1.15×, 1.59×; 3.2× (4 × V100)", "pipeline_throughput", _four_gpus, gpu=True),
        Claim(OOO, "§7.4, Figure 12b", "OOO-Pipe2 over GPipe with NVLink, PCIe 3.0 and 10 Gb Ethernet, BERT-24.",
              "1.70×, 1.58×, 1.48× (4 × V100)", "pipeline_throughput", _interconnects, gpu=True),
        Claim(OOO, "§7.4, Figures 12, 14", "OOO-Pipe2 over GPipe.", "1.41× to 1.99× on 4 to 36 GPUs (V100)",
              "pipeline_throughput", _many_gpus, gpu=True),
        Claim(OOO, "§7.4, Figure 14", "OOO-Pipe2 over PipeDream.", "1.14× to 1.63× (V100)", "pipeline_throughput",
              _over_pipedream, gpu=True),
    ]
