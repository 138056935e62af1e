import pandas
import pytest

from bppsa_nb.papers.claims import variants
from bppsa_nb.papers.claims.claim import ARTICLE, BETTER, MISSED, NEEDS_GPU, REPRODUCED
from bppsa_nb.papers.gru import gru_graphs, gru_variants
from bppsa_nb.papers.report import hold


def claim(says):
    (found,) = [each for each in variants.claims() if each.says.startswith(says)]
    assert found.paper == ARTICLE
    return found


def judge(says, table):
    return claim(says).check(table)


def products(shares, H=2048, threads="one"):
    """Give products that reach these shares of the roof, where 50 GB/s and 100 GFLOP/s are the limits."""
    rows = []
    for B, share in shares.items():
        operations, moved = 2 * B * H * 3 * H, 4 * (3 * H * H + 4 * B * H)
        seconds = max(operations / 100e9, moved / 50e9) / share
        rows.append({"threads": threads, "H": H, "B": B, "seconds": seconds, "peak": 100.0, "bandwidth": 50.0})
    return pandas.DataFrame(rows)


@pytest.mark.parametrize("share, verdict", [(0.45, REPRODUCED), (0.55, MISSED)])
def test_small_products_stay_below_half_the_peak(share, verdict):
    table = pandas.concat([products({16: 0.2, 32: share, 64: 0.9}), products({32: 0.99}, threads="all")])
    assert judge("The products of single", table) == (f"20% to {share:.0%} of the peak at B ≤ 32", verdict)


@pytest.mark.parametrize("share, verdict", [(0.85, REPRODUCED), (0.17, MISSED)])
def test_products_limited_by_memory_come_near_its_limit(share, verdict):
    # Smaller weights may be cached, products on all cores have another limit, and from B = 8 on there is the peak.
    others = [products({1: 0.1}, H=128), products({1: 0.1}, threads="all"), products({8: 0.1, 16: 0.1})]
    ours, found = judge("They do because", pandas.concat([products({1: 0.95, 2: share}), *others]))
    said = f"of what memory allows, 95% at B = 1, {share:.0%} at B = 2 (H = 2048); from B = 8 on, the processor allows"
    assert ours.startswith(said) and found == verdict


def test_products_of_the_gru_s_graphs_read_what_the_article_says():
    table = gru_graphs.measure("quick", 0, None)
    assert judge("A product behind", table) == ("before: h, h, rh; after: h, h, h", REPRODUCED)
    for graph, ours in (
        ("original", "before: h, h, rh; after: h, h, rh"),
        ("moved", "before: h, h, h; after: h, h, h"),
    ):
        rows = table[table["graph"] == graph]
        both = pandas.concat([rows.assign(graph=name) for name in ("original", "moved")])
        assert judge("A product behind", both) == (ours, MISSED)


def test_counts_of_the_variants_that_run():
    step = pandas.DataFrame({"variant": name} | gru_variants.count_step(name) for name in gru_variants.variants.NAMES)
    table = pandas.concat([step.assign(H=128), step.assign(H=256)])
    ours = "in series 4 per step, then 2; in all 9, then 2 by variant 4, a forward and a backward one"
    assert judge("With the reset gate moved", table) == (ours, REPRODUCED)
    ours = "2 instead of 3 products per step, 5 instead of 4 B H numbers kept: W x must stay"
    assert judge("Other saved activations", table) == (ours, MISSED)


def counted(products=(9, 3, 2), serial=(4, 2, 2), kept=(4.0, 4.0, 4.0)):
    names = ["original", "moved", "saved"]
    return pandas.DataFrame({"variant": names, "products": products, "serial": serial, "kept": kept})


@pytest.mark.parametrize(
    "table, verdict",
    [
        (counted(), REPRODUCED),
        (counted(serial=(4, 3, 2)), MISSED),  # one waits for another still
        (counted(products=(9, 3, 3)), MISSED),  # they are not one
    ],
)
def test_independent_products_are_concatenated(table, verdict):
    assert judge("With the reset gate moved", table)[1] == verdict


@pytest.mark.parametrize(
    "table, ours, verdict",
    [
        (counted(), "2 instead of 3 products per step, 4 instead of 4 B H numbers kept", REPRODUCED),
        (counted(products=(9, 3, 3)), "3 instead of 3 products per step, 4 instead of 4 B H numbers kept", MISSED),
    ],
)
def test_a_product_must_be_spared_and_no_memory_taken(table, ours, verdict):
    assert judge("Other saved activations", table) == (ours, verdict)


def throughputs(saved):
    """Time both variants; 64 samples take a second at a mini-batch of 128, and the original twice that at one of 64."""
    rows = [{"variant": name, "B": B, "seconds": 2.0} for name in ("original", "saved") for B in (64, 128)]
    table = pandas.DataFrame(rows).merge(pandas.DataFrame({"H": [128, 2048]}), how="cross")
    table.loc[(table["variant"] == "saved") & (table["B"] == 64), "seconds"] = [1 / speed for speed in saved]
    return table.assign(T=4, seconds_low=1.0, seconds_high=1.0)


@pytest.mark.parametrize("worst, verdict", [(0.95, REPRODUCED), (0.85, MISSED), (1.15, BETTER)])
def test_half_the_mini_batch_is_as_good_at_every_size(worst, verdict):
    ours = f"{worst:.3g}× to 1.2× the original's throughput, H from 128 to 2048"
    assert judge("Variant 4 at a mini-batch of 64", throughputs([1.2, worst])) == (ours, verdict)


def timed(concatenated=(1.0, 1.0, 1.0), moved=(1.0, 1.0, 1.0), saved=(1.0, 1.0, 1.0), sizes=(128, 512, 2048)):
    """Give variants' speeds, the original's being 1, at three hidden sizes."""
    speeds = {"original": (1.0, 1.0, 1.0), "concatenated": concatenated, "moved": moved, "saved": saved}
    rows = [
        {"variant": name, "H": H, "relative": 1 / speed}
        for name, each in speeds.items()
        for H, speed in zip(sizes, each, strict=True)
    ]
    return pandas.DataFrame(rows)


@pytest.mark.parametrize(
    "saved, verdict",
    [
        ((1.4, 1.3, 1.2), REPRODUCED),
        ((1.4, 1.3, 1.1), MISSED),  # less at the least than claimed
        ((1.3, 1.3, 1.2), MISSED),  # less at the most
        ((0.9, 1.3, 1.4), MISSED),
        ((1.5, 1.3, 1.25), BETTER),
    ],
)
def test_the_total_improvement_has_two_ends(saved, verdict):
    ours, found = judge("All three optimizations", timed(saved=saved))
    assert found == verdict and ours.endswith("×, H from 128 to 2048")


@pytest.mark.parametrize("large, verdict", [(1.2, REPRODUCED), (1.35, MISSED)])
def test_very_large_sizes_gain_less_than_the_others_do(large, verdict):
    ours = f"{large:.3g}× at H = 2048, median 1.3× at smaller sizes"
    assert judge("At very large sizes", timed(saved=(1.4, 1.2, large))) == (ours, verdict)


@pytest.mark.parametrize("sizes", [(128, 256, 512), (2048, 4096, 8192)])
def test_a_table_must_have_very_large_sizes_and_others(sizes):
    with pytest.raises(LookupError):
        judge("At very large sizes", timed(sizes=sizes))


@pytest.mark.parametrize("large, verdict", [(1.5, REPRODUCED), (1.3, MISSED)])
def test_the_last_optimization_gains_more_than_at_the_smallest_size(large, verdict):
    table = timed(moved=(1.0, 1.0, 1.25), saved=(1.1, 1.2, large))
    assert judge("The last optimization", table) == (f"1.1× to {large / 1.25:.3g}×, H from 128 to 2048", verdict)


@pytest.mark.parametrize("usual, verdict", [(1.1, REPRODUCED), (1.05, MISSED), (0.97, MISSED), (1.2, BETTER)])
def test_the_median_gain_of_the_moved_gate_decides(usual, verdict):
    table = timed(concatenated=(1.0, 2.0, 1.0), moved=(usual, 2.6, 0.9))
    words = f"{usual:.3g}×" if usual >= 1 else f"{usual:.2g}×"
    ours = f"0.9× to 1.3×, median {words}, H from 128 to 2048"
    assert judge("The reset gate after", table) == (ours, verdict)


@pytest.mark.parametrize("power, again, verdict", [(2, 0, REPRODUCED), (1, 0, MISSED), (3, 0, MISSED), (2, 1, MISSED)])
def test_without_saving_the_work_is_quadratic_and_with_it_linear(power, again, verdict):
    T = pandas.Series([4.0, 16.0, 64.0])
    chain = [pandas.DataFrame({"T": T, "name": "nothing", "steps": 0.5 * T**power})]
    chain.append(pandas.DataFrame({"T": T, "name": "everything", "steps": T + again}))
    table = pandas.concat([each.assign(part="chain") for each in chain])
    subset = pandas.DataFrame({"part": ["subset"], "name": ["nothing"]})
    ours, found = judge("Without saved activations", pandas.concat([table, subset]))
    assert found == verdict and ours.endswith("times T; T from 4 to 64")


def test_on_this_machine_speeds_wait_for_a_gpu_and_counts_do_not(monkeypatch):
    for each in variants.claims():
        assert each.gpu == ("TitanX" in each.number)
    table = timed(saved=(1.4, 1.3, 1.2))
    table.attrs["provenance"] = {"gpu": None, "backend": "numpy", "reference": True}
    monkeypatch.setattr("bppsa_nb.papers.experiments.recordings", lambda name: [("cpu", "paper")])
    monkeypatch.setattr("bppsa_nb.papers.experiments.table", lambda *args: table)
    assert hold(claim("All three optimizations"))[::2] == ("1.2× to 1.4×, H from 128 to 2048", NEEDS_GPU)
