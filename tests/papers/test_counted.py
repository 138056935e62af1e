"""The experiments that count: what they say must follow from the runs, and be what was recorded."""

import pandas
import pytest
from measuring import measure

from bppsa_nb.machine.checks import generator
from bppsa_nb.papers import experiments, tables, timelines
from bppsa_nb.papers.bppsa import steps_and_work
from bppsa_nb.papers.experiment import MISSED, REPRODUCED, judge, where
from bppsa_nb.papers.progress import Progress
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import events as timeline

COUNTED = [name for name in experiments.names() if experiments.load(name).FIGURE.origin == "counted"]
LONGER = {"steps_and_work": pytest.mark.full}
LONGER |= dict.fromkeys(("data_parallel_throughput", "pipeline_throughput"), pytest.mark.outer)
ROUNDED = {"table_3": 3.5e-3}  # units of the last decimal: 16-bit samples flip with the order in which BLAS adds


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONGER.get(name, ())) for name in COUNTED])
def test_what_was_recorded_is_measured_again(name, tmp_path):
    recorded = experiments.table(name, device="cpu")
    origin = recorded.attrs["provenance"]
    again = experiments.load(name).measure("quick", generator(origin["seed"], "seed"), Progress(show=False))
    tables.write(again, origin, tmp_path / "again.csv")
    close = {"rtol": 1e-9, "atol": ROUNDED.get(name, 1e-8), "check_like": True}
    pandas.testing.assert_frame_equal(tables.read(tmp_path / "again.csv"), recorded, **close)


@pytest.mark.parametrize("devices, batches", [(1, 1), (1, 5), (4, 1), (4, 4), (3, 8)])
def test_pipeline_takes_one_step_per_batch_and_one_per_device_more(devices, batches):
    events, needs = timelines.gpipe(devices, batches)
    timeline.check(events, needs)
    assert timeline.makespan(events) == devices + batches - 1
    events, needs = timelines.gpipe(devices, batches, backward=True)
    timeline.check(events, needs)
    assert timeline.makespan(events) == 2 * (devices + batches - 1)
    assert len(events) == 2 * devices * batches


def test_scan_space_is_a_share_and_one_that_arrives():
    run = trace(255, "blelloch")
    assert steps_and_work.scan_space(run, 1) == (255, 256)  # nothing arrives
    assert steps_and_work.scan_space(trace(255, "linear"), 8) == (32, 33)  # only the gradient travels
    for p in (2, 8, 64, 256):
        matrices, _ = steps_and_work.scan_space(run, p)
        assert 256 // p <= matrices <= 256 // p + 1


def test_pipeline_space_is_a_share_and_a_pipeline_full():
    for layers, devices in ((8, 1), (64, 8), (256, 16), (64, 64)):
        assert steps_and_work.pipeline_space(layers, devices) == layers // devices + devices


@pytest.fixture(scope="module")
def counted():
    """What Section 3.6 says, counted for short chains."""
    sizes = {"links": 256, "shared": (300,), "layers": 16}
    return measure(steps_and_work, SCALES={"quick": sizes}, LENGTHS=(10, 30, 100, 300, 1000, 3000))


def test_time_says_where_bppsa_wins(counted):
    time = where(counted, part="time")
    alone = time[time["p"].isna()].set_index(["n", "H"])
    wins = alone["blelloch"] < alone["linear"]
    assert [bool(wins[n, 20]) for n in (10, 30, 100, 300)] == [False, False, False, True]
    assert not wins.xs(256, level="H").loc[:100].any()
    assert (alone["linear"] == [n * size**2 for n, size in alone.index]).all()
    shared = time.dropna(subset="p").set_index("p")
    speedup = shared["linear"] / shared["blelloch"]
    assert speedup.is_monotonic_increasing
    assert speedup[1] < 0.06 and speedup[16] < 1 < speedup[64]


def test_steps_and_work_follow_equations_6_and_7(counted):
    steps = where(counted, part="steps")
    alone = steps[steps["p"].isna()].set_index(["method", "n"])
    assert alone.loc["hillis_steele"]["work"][256] > 3 * alone.loc["blelloch"]["work"][256]
    shared = steps.dropna(subset="p").set_index(["method", "p"])["steps"]
    assert shared["blelloch"][1] == alone.loc["blelloch"]["work"][256]
    assert (shared["linear"] == 256).all()
    assert shared["hillis_steele"][256] < shared["blelloch"][256] < 2 * 8


@pytest.mark.parametrize("column, missed", [
    ("fewer", []), ("steps", [0, 1, 3]), ("work", [2]), ("mm", [2]), ("blelloch", [4]), ("matrices", [5]),
    ("activations", [6]),
])  # fmt: skip
def test_claims_hold_for_scans_that_run_and_are_missed_where_counts_are_larger(counted, column, missed):
    found = steps_and_work.facts(counted.assign(**{column: counted["p"].fillna(2) * counted[column]}))
    verdicts = [judge(claim, steps_and_work, found)[2] for claim in steps_and_work.FIGURE.claims]
    assert verdicts == [MISSED if i in missed else REPRODUCED for i in range(7)]
