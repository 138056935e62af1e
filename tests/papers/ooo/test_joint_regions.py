import numpy as np
import pytest
from measuring import measure

from bppsa_nb import schedule
from bppsa_nb.papers import experiments
from bppsa_nb.papers.ooo import execution, joint_regions


@pytest.fixture
def network():
    rng = np.random.default_rng(0)
    memory = schedule.Memory(*rng.integers(1, 9, (3, 11)) * 10**6)
    return schedule.Network(*rng.uniform(1e-3, 9e-3, (3, 11)), memory=memory)


@pytest.fixture
def table(network, monkeypatch):
    monkeypatch.setattr(execution, "profile", lambda *_: network)
    return measure(joint_regions, TOP=(1.0, 1.5))


def test_the_table_of_speedups_is_the_papers_at_its_ends():
    corun = joint_regions.corun(joint_regions.OWN[0], joint_regions.MOST)
    assert corun.shape == (10, 10)
    # The last block's kernels beside their own block, and beside the first one's, as R2 and R5 of Figure 9.
    assert corun[-1, [0, 4, 5, 9]] == pytest.approx([1.06, 1.10, 1.10, 1.06])
    assert corun[0, [0, 4, 5, 9]] == pytest.approx([1.10, 1.06, 1.06, 1.10])
    assert (corun.min(), corun.max()) == pytest.approx((1.06, 1.10))
    assert joint_regions.corun(0.0, 2.0).min() == 1


def test_costs_can_be_read_from_the_table(network, table):
    again = joint_regions.recorded(table)
    for cost in ("forward", "output_grad", "weight_grad"):
        assert getattr(again, cost) == pytest.approx(1e3 * getattr(network, cost))
        assert cost == "forward" or getattr(again.memory, cost).tolist() == getattr(network.memory, cost).tolist()
    assert again.memory.activation.tolist() == network.memory.activation.tolist()


def test_every_schedule_has_a_row_per_table_and_none_passes_the_bound(table):
    rows = table[table["part"] == "speedup"]
    assert len(rows) == 2 * 2 * len(joint_regions.STYLES)
    assert (rows["speedup"] <= rows["bound"] * (1 + 1e-9)).all() and (rows["speedup"] >= 1 - 1e-9).all()
    assert rows[rows["top"] == 1]["speedup"].tolist() == pytest.approx([1] * 8)
    assert (rows[rows["top"] > 1]["bound"] > 1).all()
    assert (rows[rows["schedule"] == "limited"]["memory"] <= joint_regions.LIMIT * (1 + 1e-9)).all()


def waiting(timeline):
    """How long the main stream waits before it ends."""
    main = timeline.operations.worker == 0
    return timeline.end[main].max() - (timeline.end - timeline.start)[main].sum()


def test_the_reference_bears_out_what_the_notebook_says():
    table = experiments.table("joint_regions", device="cpu")
    rows = table[table["part"] == "speedup"]
    at = {name: part.set_index(["own", "top"]) for name, part in rows.groupby("schedule")}
    alike, order = ((own, 2.0) for own in joint_regions.OWN)
    # Most of the gain comes from the second stream in (e), all of it from the order in (f).
    gain = at["as_ready"]["speedup"] - 1
    assert gain[alike] > 0.75 * (at["as_ready"]["bound"][alike] - 1) and gain[order] < 0.005
    assert at["carried"]["speedup"][alike] > 0.98 * at["carried"]["bound"][alike]
    assert at["joint"]["speedup"][order] > at["limited"]["speedup"][order]
    drawn = joint_regions.schedules(
        joint_regions.recorded(table), joint_regions.corun(joint_regions.OWN[0], joint_regions.MOST)
    )
    assert waiting(drawn["joint"]) > 0.01 * drawn["joint"].makespan > waiting(drawn["carried"])
    peak = {name: result.peak_memory[0] / drawn["conventional"].peak_memory[0] for name, result in drawn.items()}
    assert peak["joint"] > joint_regions.LIMIT >= max(peak["carried"], peak["limited"])
    first = drawn["joint"].start[drawn["joint"].operations.worker == 1].min()
    assert first > 0.1 * drawn["joint"].makespan and drawn["limited"].k > 0
