"""Figures 3, 4, 5 and 13 of ooo backprop: numbers that must hold."""

import numpy as np
import pandas as pd
import pytest
from measuring import measure

from bppsa_nb import schedule
from bppsa_nb.papers import timelines
from bppsa_nb.papers.ooo import figure_03_reorder_gradients as reorder_gradients
from bppsa_nb.papers.ooo import figure_04_reverse_first_k as reverse_first_k
from bppsa_nb.schedule import draw


def test_rows_are_the_schedule_and_fill_it_with_idle_time():
    timeline = schedule.data_parallel(reverse_first_k.EXAMPLE, "fifo")
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


def test_random_orders_respect_what_gradients_need_and_give_the_same():
    runs = measure(reorder_gradients, RUNS=6).query("policy == 'random'")
    assert runs["order"].nunique() > 3 and (runs["difference"] == 0).all()
    for order in runs["order"].str.split():
        assert sorted(order) == sorted([*(f"δO{i}" for i in range(2, 6)), *(f"δW{i}" for i in range(1, 6))])
        assert all(order.index(f"δO{int(each[2]) + 1}") < order.index(each) for each in order if each[2] < "5")


def test_drawings_of_schedules_know_every_kind_of_operation():
    kinds = {"F", "δO", "δW", "S[F]", "S[δO]", "S[δW]", timelines.IDLE}
    assert set(draw.OPERATION_COLORS) == set(draw.OPERATION_NAMES) == kinds
    assert len(set(draw.OPERATION_COLORS.values())) == len(kinds)
