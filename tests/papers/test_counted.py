"""The experiments that count: what they say must follow from the runs, and be what was recorded."""

import numpy as np
import pandas
import pytest
from measuring import measure
from rings import more

from bppsa_nb.machine.checks import generator
from bppsa_nb.papers import experiments, tables
from bppsa_nb.papers.bppsa import crossover, figure_11, space, steps_and_work
from bppsa_nb.papers.progress import Progress
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import events as timeline

# What takes seconds, and neither times nor trains anything.
REPEATABLE = ["figure_01", "figure_02", "figure_03", "figure_04", "figure_11", "graph_rules", "gru_graphs"]
REPEATABLE += ["fast_forward", "reorder_gradients", "reverse_first_k", "micro_batches", "layer_blocks"]
REPEATABLE += [more("data_parallel_throughput"), more("pipeline_throughput")]
LONGER = ["steps_and_work", "crossover", "space", "table_3", "figure_10"]


@pytest.mark.parametrize("name", [*REPEATABLE, *(pytest.param(name, marks=pytest.mark.full) for name in LONGER)])
def test_what_was_recorded_is_measured_again(name, tmp_path):
    recorded = experiments.table(name, device="cpu")
    origin = recorded.attrs["provenance"]
    again = experiments.load(name).measure("quick", generator(origin["seed"], "seed"), Progress(show=False))
    tables.write(again, origin, tmp_path / "again.csv")
    pandas.testing.assert_frame_equal(tables.read(tmp_path / "again.csv"), recorded, rtol=1e-9, check_like=True)


@pytest.mark.parametrize("devices, batches", [(1, 1), (1, 5), (4, 1), (4, 4), (3, 8)])
def test_pipeline_takes_one_step_per_batch_and_one_per_device_more(devices, batches):
    events, needs = figure_11.pipeline(devices, batches)
    timeline.check(events, needs)
    assert timeline.makespan(events) == devices + batches - 1
    events, needs = figure_11.pipeline(devices, batches, backward=True)
    timeline.check(events, needs)
    assert timeline.makespan(events) == 2 * (devices + batches - 1)
    assert len(events) == 2 * devices * batches


def test_scan_space_is_a_share_and_one_that_arrives():
    run = trace(255, "blelloch")
    assert space.scan_space(run, 1) == (255, 256)  # nothing arrives
    assert space.scan_space(trace(255, "linear"), 8) == (32, 33)  # only the gradient travels
    for p in (2, 8, 64, 256):
        matrices, _ = space.scan_space(run, p)
        assert 256 // p <= matrices <= 256 // p + 1


def test_pipeline_space_is_a_share_and_a_pipeline_full():
    for layers, devices in ((8, 1), (64, 8), (256, 16), (64, 64)):
        assert space.pipeline_space(layers, devices) == layers // devices + devices


def test_convolution_of_section_3_3():
    found = space.convolution_bytes()
    assert found["dense"] / 2**20 == 768  # "occupies 768 MB of memory"
    assert round(found["sparse"] / 2**20, 1) == 6.5  # "down to only 6.5 MB"
    assert found["activation"] == 64 * 32 * 32 * 4


def test_crossover_says_where_bppsa_wins():
    table = measure(crossover, SCALES={"quick": (300,)}, WORKERS=(1, 16, 64), PAPER={"H": 20, "T": (10, 30, 100, 300)})
    alone = table[table["p"].isna()].set_index(["n", "H"])
    wins = alone["blelloch"] < alone["linear"]
    assert [bool(wins[n, 20]) for n in (10, 30, 100, 300)] == [False, False, False, True]
    assert not wins.xs(256, level="H").loc[:100].any()
    assert (alone["linear"] == [n * size**2 for n, size in alone.index]).all()
    shared = table[table["p"].notna()].set_index("p")
    speedup = shared["linear"] / shared["blelloch"]
    assert speedup.is_monotonic_increasing
    assert speedup[1] < 0.06 and speedup[16] < 1 < speedup[64]


def test_steps_and_work_follow_equations_6_and_7():
    table = measure(steps_and_work, SCALES={"quick": 256})
    alone = table[table["p"].isna()].set_index(["method", "n"])
    n = alone.loc["blelloch"].index
    assert (alone.loc["blelloch"]["steps"] <= 2 * np.log2(n) + 1).all()
    assert (alone.loc["blelloch"]["work"] <= 2 * n).all()
    assert (alone.loc["linear"]["steps"] == n).all()
    assert alone.loc["hillis_steele"]["work"][256] > 3 * alone.loc["blelloch"]["work"][256]
    shared = table[table["p"].notna()].set_index(["method", "p"])["steps"]
    assert shared["blelloch"][1] == alone.loc["blelloch"]["work"][256]
    assert (shared["linear"] == 256).all()
    assert shared["hillis_steele"][256] < shared["blelloch"][256] < 2 * 8
