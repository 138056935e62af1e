"""The two experiments on a chain over MPI ranks: rank_scaling and ranks_modelled."""

import numpy as np
import pandas as pd
import pytest

from bppsa_nb.papers import ranks as on_ranks
from bppsa_nb.papers.bppsa import rank_scaling, ranks_modelled
from bppsa_nb.papers.experiment import MISSED, REPRODUCED, judge
from bppsa_nb.papers.progress import Progress
from bppsa_nb.papers.ranks.model import Interconnect


@pytest.fixture(scope="module")
def measured(rank_session):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_scaling, "SCALES", {"quick": {"steps": (30, 300), "ranks": (1, 2), "rounds": 1}})
        patch.setattr(rank_scaling, "COUNTED", {"quick": ()})
        patch.setattr(rank_scaling.provenance, "cores", lambda: 2)
        patch.setattr(rank_scaling.on_ranks, "run", rank_session.measure)
        return rank_scaling.measure("quick", 0, Progress(show=False))


def test_ranks_are_measured_counted_and_predicted(measured):
    ranks = measured[measured["part"] == "rank"]
    key = ["ranks", "steps", "rank", "method"]
    wanted = [(p, T, r, m) for p in (1, 2) for T in (30, 300) for r in range(p) for m in ("chunked", "linear")]
    assert sorted(map(tuple, ranks[key].to_numpy())) == sorted(wanted)
    assert (ranks["low"] <= ranks["total"]).all() and (ranks["total"] <= ranks["high"]).all()
    assert (ranks["combined"] <= 2 * np.ceil(np.log2(ranks["ranks"]))).all()
    predicted = measured[measured["part"] == "predicted"]
    assert len(predicted) == 2 * 2 * 2 and (predicted["total"] > 0).all()
    one = predicted[(predicted["ranks"] == 1) & (predicted["method"] == "linear")].set_index("steps")["total"]
    alone = ranks[(ranks["ranks"] == 1) & (ranks["method"] == "linear")].set_index("steps")["total"]
    pd.testing.assert_series_equal(one, alone)  # what one rank takes is where predictions come from
    assert set(rank_scaling.ratios(measured).index.get_level_values("ranks")) == {1, 2}


def test_exscan_is_predicted_for_ranks_that_have_a_core_each(measured):
    predicted = measured[measured["part"] == "predicted exscan"]
    assert sorted(predicted["ranks"].unique()) == [1, 2]
    assert {row["ranks"] for row in rank_scaling.predicted(measured, cores=1) if "exscan" in row["part"]} == {1}
    for width in rank_scaling.WIDTHS:
        found, between = rank_scaling.operator_costs(measured, width), rank_scaling.link(measured)[0]
        row = predicted[(predicted["width"] == width) & (predicted["ranks"] == 2)].iloc[0]
        assert row["seconds"] == pytest.approx(found.start + between.seconds(found.size))


def test_ranks_beyond_cores_take_turns(measured):
    few, enough = (pd.DataFrame(rank_scaling.predicted(measured, cores)) for cores in (1, 2))
    few, enough = (each[each["part"] == "predicted"] for each in (few, enough))
    np.testing.assert_allclose(few["total"] / enough["total"], few["ranks"])


def test_the_fit_finds_latency_and_bandwidth_again():
    size = np.array([8, 512, 4096, 32768, 2**20])
    messages = pd.DataFrame({"part": "message", "ranks": 2, "bytes": size, "seconds": 3e-6 + size / 2e9})
    link, error = rank_scaling.link(messages)
    np.testing.assert_allclose(link, Interconnect(3e-6, 2e9))
    assert error == pytest.approx(0, abs=1e-9)
    wrong = messages.assign(seconds=messages["seconds"] * [1.1, 0.9, 1.1, 0.9, 1.1])
    assert 0.05 < rank_scaling.link(wrong)[1] < 0.15


@pytest.mark.parametrize(
    "short, long, told, verdict",
    [(2, 2, "2 on 2 ranks, whatever T is", REPRODUCED), (3, 3, "3 on 2", MISSED), (1, 2, "depending on T", MISSED)],
)
def test_calls_are_few_and_the_same_for_all_lengths(measured, short, long, told, verdict):
    two = (measured["part"] == "rank") & (measured["ranks"] == 2)
    calls = measured["combined"].mask(two, long).mask(two & (measured["steps"] == 30), short)
    found = rank_scaling.facts(measured.assign(combined=calls))
    said, _, decided = judge(rank_scaling.FIGURE.claims[0], rank_scaling, found)
    assert told in said and decided == verdict


COSTS = {"forward": 1e-6, "sweep": 1e-6, "gradients": 1e-6, "jacobian": 0.0, "product": 10e-6, "bytes": 1000}
COSTS |= {"merge": 1e-5, "apply": 1e-6, "start": 1e-6}


def made(product=10e-6):
    """Model networks whose steps take a microsecond, and products ten; wide ones more."""

    def run(cell, width, steps, batch, rounds):
        matrix = width**2 if cell == "residual" else width
        costs = COSTS | {"width": width, "matrix": matrix, "product": product * max(1, width / 20) ** 2}
        return [costs | {name: costs[name] * (batch / 16) for name in ("forward", "sweep", "gradients")}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_modelled.on_ranks, "alone", run)
        patch.setattr(ranks_modelled, "STEPS", {"RNN": 30000, "narrow": 512, "wide": 512})
        patch.setattr(ranks_modelled, "RANKS", (1, 2, 4, 8, 16, 32, 64, 128))
        return ranks_modelled.measure("quick", 0, Progress(show=False))


@pytest.fixture(scope="module")
def modelled():
    return made()


@pytest.mark.outer
def test_the_scan_pays_beyond_as_many_ranks_as_a_product_has_sweeps(modelled):
    found = ranks_modelled.crossing(modelled, "RNN")
    assert (found["pays"], found["best"]) == (16, 128)  # (10 + 1) / p, and ranks are powers of two
    assert found["speedup"] == pytest.approx(128 / 11, rel=0.1)
    assert ranks_modelled.crossing(modelled, "RNN of 60")["pays"] == 128  # 9 times as much to multiply
    never = ranks_modelled.crossing(made(product=1e-3), "RNN")
    assert never["pays"] is None and never["leads"].startswith("never")


def test_gpipe_takes_the_split_that_ends_first(modelled):
    rows = modelled[(modelled["road"] == "GPipe") & modelled["seconds"].notna()]
    many = rows[(rows["ranks"] == 64) & (rows["network"] == "RNN")]
    assert (many["micro_batches"] == 16).all()  # a sample costs a sixteenth, so more of them are better
    np.testing.assert_allclose(many["bubble"], 1 - 16 / (16 + 63), rtol=0.2)
    alone = rows[rows["ranks"] == 1]["seconds"] / rows[rows["ranks"] == 1]["network"].map(
        {"RNN": 30000, "narrow": 512, "wide": 512}
    )
    np.testing.assert_allclose(alone, 3e-6)  # forward, back, gradients


def test_memory_falls_with_ranks_and_a_pipeline_s_rises_again(modelled):
    rows = modelled[(modelled["part"] == "memory") & (modelled["network"] == "narrow")]
    held = rows.pivot(index="ranks", columns="road", values="memory")
    state = 4 * 16 * 8
    assert held["scan"][4] == 128 * (2 * state + 8 * state) + 3 * 1000
    assert held["GPipe"][4] == 128 * 2 * state + 4 * state
    assert held["GPipe, nothing computed again"][4] == 128 * 2 * state + 3 * 128 * state
    assert held["GPipe, the same 16 samples"][4] == 128 * 2 * state / 16 + state
    assert (held["scan"].diff().dropna() < 0).all() and held["GPipe"][128] > held["GPipe"][16]


def test_claims_about_space_are_held_against_what_is_counted(modelled):
    found, (pipeline, sparse) = ranks_modelled.facts(modelled), ranks_modelled.FIGURE.claims[3:5]
    for changed, verdict in (({"at": 64}, REPRODUCED), ({"at": 128}, MISSED), ({"held": found["held"][::-1]}, MISSED)):
        assert judge(pipeline, ranks_modelled, found | {"at": 64} | changed)[2] == verdict
    for one, verdict in ((2.0, REPRODUCED), (2.1, MISSED)):
        both = {network: row | ({"one": one} if network == "RNN" else {}) for network, row in found["sparse"].items()}
        assert judge(sparse, ranks_modelled, found | {"sparse": both})[2] == verdict


def test_cycles_are_scheduled_for_residual_networks_only(modelled):
    cycles = modelled[modelled["road"] == "MGRIT"]
    assert set(cycles["network"]) == {"narrow", "wide"} and set(cycles["ranks"]) == {1, 4, 16, 64}
    fast = cycles[(cycles["network"] == "narrow") & (cycles["link"] == ranks_modelled.FAST)]
    assert fast["seconds"].is_monotonic_decreasing


def test_costs_come_from_the_program():
    pytest.importorskip("mpi4py")
    (row,) = on_ranks.alone("residual", 3, 20, 16, 1)
    costs = on_ranks.costs(row, 16)
    assert costs.state == 4 * 16 * 3 and costs.operator.size == 16 * (8 * 3 + 4 * 3**2 + 4 * 3)
    assert min(costs[:5]) >= 0 < min(costs.forward, costs.sweep, costs.product, costs.jacobian)
    assert (row["width"], row["matrix"]) == (3, 9)
