"""Claims of the article on differentiable graphs: products, what they read and keep, and the variants of the GRU.

The article has no numbered sections, so `where` names the part. Its percentages are of speed: 20 % is 1.2×.
"""

from bppsa_nb.papers.claims.claim import ARTICLE, Claim, compare, require, rows_of, times, verdict
from bppsa_nb.papers.claims.tolerance import PRINTED, TIMED
from bppsa_nb.papers.gru import gru_throughput, small_products
from bppsa_nb.papers.tables import where
from bppsa_nb.papers.text import span

LARGE = 2048  # the hidden size that the article calls very large
FEW = 32  # rows, the smallest mini-batch whose throughput is compared


def _share_of_peak(table):
    rows = _one_core(table)
    share = rows["gflops"] / rows["peak"]
    few = require(share[rows["B"] <= FEW])
    return f"{span(few, '{:.0%}')} of the peak at B ≤ {FEW}", verdict(few.max() < 0.5)


def _bandwidth_bound(table):
    """Ask for at least 80 % of memory's limit where that is below the processor's, with weights too large to cache."""
    rows = _one_core(table)
    rows = rows[rows["H"] == rows["H"].max()]
    limited = rows_of(rows, bound="memory")
    share = limited["gflops"] / limited["roof"]
    shares = ", ".join(f"{each:.0%} at B = {B}" for B, each in zip(limited["B"], share, strict=True))
    free = require(rows.loc[rows["bound"] == "processor", "B"]).min()
    ours = f"of what memory allows, {shares} (H = {rows['H'].iloc[0]}); from B = {free} on, the processor allows less"
    return ours, verdict(share.min() >= 0.8)


def _one_core(table):
    return require(small_products.roofline(table[table["threads"] == "one"]))


def _inputs(table):
    """Compare what the recurrent products read, weights aside."""
    rows = where(table, direction="forward", op="matmul")
    inputs = rows["reads"].str.split(", ").str[0]
    original, moved = (require(inputs[rows["graph"] == graph]).tolist() for graph in ("original", "moved"))
    ours = f"before: {', '.join(original)}; after: {', '.join(moved)}"
    return ours, verdict(len(set(original)) == 2 and len(set(moved)) == 1)


def _concatenated(table):
    step = _step(table)
    products, serial = step.loc[["original", "saved"], "products"], step.loc[["original", "moved"], "serial"]
    ours = f"in series {serial.iloc[0]} per step, then {serial.iloc[1]}; in all {products.iloc[0]}, "
    ours += f"then {products.iloc[1]} by variant 4, a forward and a backward one"
    return ours, verdict(serial["moved"] == 2 and products["saved"] == 2)


def _no_more_memory(table):
    step = _step(table).loc[["moved", "saved"]]
    (product, no_product), (before, after) = step["products"], step["kept"]
    ours = f"{no_product} instead of {product} products per step, {after:g} instead of {before:g} B H numbers kept"
    ours += ": W x must stay" if after > before else ""
    return ours, verdict(no_product < product and after <= before)


def _step(table):
    return table.drop_duplicates("variant").set_index("variant")


def _half_the_batch(table):
    gflops = gru_throughput.throughput(table).pivot(index="H", columns=["variant", "B"], values="gflops")
    ratio = gflops["saved", 64] / gflops["original", 128]
    return f"{_range(ratio)} the original's throughput, {_sizes(ratio)}", compare(ratio, 1)


def _total(table):
    speed = _faster(table, "saved", "original")
    gain = speed - 1
    return f"{_range(speed)}, {_sizes(speed)}", compare([gain.min(), gain.max()], [0.2, 0.4])


def _moved(table):
    speed = _faster(table, "moved", "concatenated")
    return f"{_range(speed)}, median {times(speed.median())}, {_sizes(speed)}", compare(speed.median() - 1, 0.1)


def _large(table):
    speed = _faster(table, "saved", "original")
    large, usual = speed[LARGE], require(speed[speed.index < LARGE]).median()
    return f"{times(large)} at H = {LARGE}, median {times(usual)} at smaller sizes", verdict(large < usual)


def _last_gains(table):
    speed = _faster(table, "saved", "moved")
    first, last = speed.iloc[0], speed.iloc[-1]
    return f"{times(first)} to {times(last)}, {_sizes(speed)}", verdict(last > first)


def _faster(table, variant, other):
    """Divide one variant's speed by another's, for every hidden size."""
    relative = table.pivot(index="H", columns="variant", values="relative")
    return require(relative[other] / relative[variant])


def _range(ratios):
    return f"{times(ratios.min())} to {times(ratios.max())}"


def _sizes(by_size):
    return f"H from {by_size.index.min()} to {by_size.index.max()}"


def _growth(table):
    steps = rows_of(table, part="chain").pivot(index="T", columns="name", values="steps")
    nothing, everything = steps["nothing"] / steps.index**2, steps["everything"] / steps.index
    ours = f"{span(nothing, '{:.2f}')} times T² steps, with all saved {everything.max():g} times T; "
    ours += f"T from {steps.index.min():g} to {steps.index.max():g}"
    return ours, verdict(nothing.max() <= 3 * nothing.min() and (everything == 1).all())


def claims():
    """List them, in the order of the report."""
    return [
        Claim(ARTICLE, "principles", "The products of single time steps run far below the processor's potential.",
              "“substantially slower” (here: half)", "small_products", _share_of_peak, TIMED),
        Claim(ARTICLE, "principles", "They do because they wait for memory.",
              "“bandwidth bound” (here: to 80 %)", "small_products", _bandwidth_bound, TIMED),
        Claim(ARTICLE, "variants", "A product behind the reset gate needs an activation of its own; one before, none.",
              "all products share h", "gru_graphs", _inputs),
        Claim(ARTICLE, "variants", "With the reset gate moved, no recurrent product of a step waits for another.",
              "“they can then all be concatenated”", "gru_variants", _concatenated, PRINTED),
        Claim(ARTICLE, "variants", "Other saved activations spare variant 3 the product that it computes twice.",
              "“without additional memory consumption”", "gru_variants", _no_more_memory, PRINTED),
        Claim(ARTICLE, "timings", "Variant 4 at a mini-batch of 64 is about as good as the original at 128.",
              "≈ 1× (TitanX)", "gru_throughput", _half_the_batch, TIMED, gpu=True),
        Claim(ARTICLE, "timings", "All three optimizations together, at a mini-batch of 128.",
              "20 to 40 % (TitanX)", "gru_variants", _total, TIMED, gpu=True),
        Claim(ARTICLE, "timings", "At very large sizes, the optimizations help less.",
              f"less at {LARGE} (TitanX)", "gru_variants", _large, TIMED, gpu=True),
        Claim(ARTICLE, "timings", "The last optimization, variant 4 over 3, gives more at larger sizes.",
              "rises (TitanX)", "gru_variants", _last_gains, TIMED, gpu=True),
        Claim(ARTICLE, "takeaways", "The reset gate after the recurrent product, variant 3 over 2.",
              "≈ 10 % (TitanX)", "gru_variants", _moved, TIMED, gpu=True),
        Claim(ARTICLE, "appendix", "Without saved activations, work grows polynomially with depth; with all, linearly.",
              "polynomially; linearly", "save_or_recompute", _growth, PRINTED),
    ]
