"""Figures 3, 4, 5 and 13 of ooo backprop: numbers that must hold."""

import numpy as np
import pandas as pd
import pytest

from bppsa_nb import schedule
from bppsa_nb.papers import timelines
from bppsa_nb.papers.ooo import figure_03_reorder_gradients as reorder_gradients
from bppsa_nb.papers.ooo import figure_04_reverse_first_k as reverse_first_k
from bppsa_nb.papers.ooo import figure_05_fast_forward as fast_forward
from bppsa_nb.papers.ooo import figure_13_micro_batches as micro_batches
from bppsa_nb.schedule import draw


def measure(module):
    return module.measure("quick", np.random.default_rng(0), None)


@pytest.fixture(scope="module")
def batches():
    return measure(micro_batches)


def test_rows_are_the_schedule_and_fill_it_with_idle_time():
    timeline = schedule.data_parallel(reverse_first_k.example(), "fifo")
    rows = pd.DataFrame(timelines.rows(timeline, idle=True, name="x"))
    assert set(rows["name"]) == {"x"} and len(rows) > len(timeline.operations)
    gpu = rows[rows["worker"] == 0].sort_values("start")
    np.testing.assert_allclose(gpu["start"], np.append(0, gpu["duration"].cumsum()[:-1]))  # no gap is left
    assert gpu["duration"].sum() == timeline.makespan
    assert not (rows[rows["worker"] == 1]["kind"] == timelines.IDLE).any()
    assert rows.loc[rows["kind"] == "S[δW]", "lane"].unique() == ["link"]
    # Devices that end early are idle to the end.
    timeline = schedule.pipeline(schedule.Network.uniform(8), 2, policy="fast_forward")
    shared = pd.DataFrame(timelines.rows(timeline, idle=True))
    assert shared.groupby("lane")["duration"].sum().to_dict() == {"GPU 1": 19, "GPU 2": 19}


def test_rows_of_a_broken_schedule_are_refused():
    timeline = schedule.pipeline(schedule.Network.uniform(4), 2)
    broken = schedule.Timeline(timeline.operations, timeline.start * 0.5, "broken")
    with pytest.raises(ValueError, match="which it needs"):
        timelines.rows(broken)


def test_figure_5_takes_23_then_19_then_16_units():
    table = measure(fast_forward)
    assert table.groupby("policy")["makespan"].first().to_dict() == {
        "conventional": 23,
        "fast_forward": 19,
        "modulo": 16,
    }
    assert table.groupby("policy").size().tolist() == [3 * 8 - 1] * 3


def test_figure_3_hands_over_after_half_the_time():
    table = measure(reorder_gradients)
    table = table[table["policy"] != "random"]
    ends = (table["start"] + table["duration"])[table["kind"] == "δO"].groupby(table["policy"]).max()
    assert ends.to_dict() == {"conventional": 8, "fast_forward": 4}
    for _, rows in table.groupby("policy"):
        assert rows["kind"].value_counts().to_dict() == {"δO": 4, "δW": 4, "U": 4}
        assert sorted(rows["layer"].unique()) == [5, 6, 7, 8]
        at = rows.set_index(["kind", "layer"])["start"]
        assert (at["U"] == at["δW"] + 1).all()
        # What an arrow says: nothing starts before what it reads is there.
        for layer in (5, 6, 7):
            assert min(at["δO", layer], at["δW", layer]) >= at["δO", layer + 1] + 1


def test_random_orders_are_schedules_that_differ_and_give_the_same_gradients(monkeypatch):
    monkeypatch.setattr(reorder_gradients, "RUNS", 6)
    runs = measure(reorder_gradients).query("policy == 'random'")
    assert runs["order"].nunique() > 3 and (runs["difference"] == 0).all()
    timeline = schedule.pipeline(schedule.Network.uniform(5), 1, 2)
    orders = set()
    for seed in range(10):
        shuffled = reorder_gradients.shuffled(timeline, np.random.default_rng(seed))
        shuffled.check()
        orders.add(tuple(shuffled.order(0)))
    assert len(orders) == 10


def test_figure_4_takes_22_then_21_then_19_units_and_no_schedule_takes_less():
    table = measure(reverse_first_k)
    lengths = table.groupby("part")["makespan"].first()
    assert lengths[list(reverse_first_k.SCHEDULES)].tolist() == [22, 21, 19]
    assert table[table["part"] == "k"]["makespan"].tolist() == [21, 21, 20, 19, 19, 21]
    assert lengths["optimum"] == lengths["lower bound"] == 19
    idle = table[table["kind"] == timelines.IDLE].groupby("part")["duration"].sum()
    assert idle.to_dict() == {"(a) in layer order": 3, "(b) low layers sent first": 2}


def test_figure_13_s_two_numbers_take_two_policies(batches):
    found = micro_batches.speedups(batches)
    assert found.round(3).to_dict() == {
        "GPipe": 1,
        "1F1B": 1,
        "fast-forwarding": 1.221,  # the paper's 1.22
        "fast-forwarding, no flush": 1.383,
        "modulo": 1.566,
        "modulo, no flush": 1.627,  # the paper's 1.62
        "ZB-H1": 1.383,
        "ZB-H2": 1.383,
    }
    counts = batches[(batches["part"] == "count") & (batches["layers"] == 16)].set_index("schedule")["makespan"]
    names = ["GPipe", "fast-forwarding", "modulo", "modulo, no flush"]
    assert counts[names].tolist() == [83, 68, 53, 51]
    assert (batches["iteration"].dropna() >= batches["bound"].dropna()).all()


def test_drawings_of_schedules_know_every_kind_of_operation():
    kinds = {"F", "δO", "δW", "S[F]", "S[δO]", "S[δW]", timelines.IDLE}
    assert set(draw.OPERATION_COLORS) == set(draw.OPERATION_NAMES) == kinds
    assert len(set(draw.OPERATION_COLORS.values())) == len(kinds)
