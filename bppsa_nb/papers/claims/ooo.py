"""Claims about out-of-order backprop (Sections 3, 5, 7.3 and 7.4), and about PipeDream's staleness (Appendix C).

Speedups of clusters are shown beside simulations from stated costs, which decide nothing: `ours` says so.
"""

from functools import partial

from bppsa_nb.papers.bppsa import figure_12_staleness as staleness
from bppsa_nb.papers.claims.claim import OOO, PAPER, Claim, compare, require, rows_of, verdict
from bppsa_nb.papers.claims.tolerance import TRAINED
from bppsa_nb.papers.ooo import figures_10_11_data_parallel_throughput as data_parallel_throughput
from bppsa_nb.papers.ooo import figures_12_14_pipeline_throughput as pipeline_throughput

SIMULATED = "simulated from stated costs: "


def _memory_over_gpipe(system, limit, table):
    held = pipeline_throughput.memory(table)
    more, bare = held.loc[system] / held.loc["GPipe"] - 1
    both = ", ".join(f"{name} {held.loc[name, 'bytes'] / 2**30:.2f} GiB" for name in (system, "GPipe"))
    ours = f"counted from stated sizes, BERT-24 on 4 GPUs, the fullest: {both}"
    return f"{ours}; if layers kept nothing for their δO alone, {max(bare, 0):.0%} more", verdict(more <= limit)


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


def _stale(table):
    """Ask whether accuracy is lower in the end, of the longest training, at every learning rate."""
    gaps = staleness.gaps(table)
    gaps = rows_of(gaps, devices=4)
    texts = []
    for images, rows in gaps.groupby("images"):
        updates = images // staleness.BATCH * table.loc[table["images"] == images, "epoch"].max()
        points = [f"{100 * row.mean:.1f} ({100 * row.least:.1f} to {100 * row.most:.1f})" for row in rows.itertuples()]
        rates = ", ".join(f"{rate:g}" for rate in rows["lr"])
        texts.append(f"{', '.join(points)} points lower after {updates} updates with learning rates {rates}")
    longest = gaps[gaps["images"] == gaps["images"].max()]
    return "; ".join(texts), verdict((longest["mean"] > 0).all())


def claims():
    """List them, in the order of the report."""
    return [
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
        Claim(PAPER, "Appendix C, Figure 12", "PipeDream's stale weights cost accuracy with Adam.",
              "2.6 points top-1 (VGG-16, ImageNet, 4 devices)", "staleness", _stale, TRAINED),
    ]
