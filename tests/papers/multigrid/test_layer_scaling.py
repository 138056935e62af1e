import numpy as np
import pandas as pd
import pytest

from bppsa_nb.distributed import engines
from bppsa_nb.papers.multigrid import figures_06_07_layer_scaling as layer_scaling
from bppsa_nb.papers.progress import Progress


def parameters(channels, convolutions, dense=0):
    """Count the parameters of a network of the paper: MNIST's images lose two pixels on each side in the first layer.

    Weights and biases of the opening convolution, of the residual ones, of dense layers between them, whose input and
    output have the size of a state, and of the last one with its 10 outputs.
    """
    state, kernel = channels * layer_scaling.IMAGE**2, layer_scaling.KERNEL**2
    opening, residual = (channels * (inputs * kernel + 1) for inputs in (1, channels))
    return opening + convolutions * residual + dense * state * (state + 1) + 10 * (state + 1)


def test_the_paper_s_parameters_are_those_of_4_and_of_20_channels():
    assert parameters(layer_scaling.FEW, 4093) == 3_248_534  # the caption of Figure 6
    assert parameters(layer_scaling.MANY, 4097, dense=15) == 2_071_328_150  # Section IV-E


def ran(costs):
    """Stand in for a run on ranks, which takes what the simulation says."""

    def run(channels, depth, ranks, rounds, seed):
        both = dict.fromkeys(("multigrid", "serial"), costs)
        rows = layer_scaling._simulated("measured", channels, depth, ranks, both, "shared memory")
        return [row | {"low": row["seconds"], "high": row["seconds"]} for row in rows]

    return run


@pytest.fixture
def five_cores(monkeypatch):
    monkeypatch.setattr(layer_scaling.provenance, "cores", lambda: 5)


@pytest.mark.outer
def test_costs_are_found_again_and_the_simulation_predicts_what_they_make(monkeypatch, five_cores):
    costs = {"F": 3e-5, "δO": 4e-5, "δW": 1e-4}
    monkeypatch.setattr(layer_scaling, "_run", ran(costs))
    monkeypatch.setattr(layer_scaling, "DEPTH", 512)
    monkeypatch.setattr(layer_scaling, "RANKS", (1, 2, 8))
    table = layer_scaling.measure("quick", 0, Progress(show=False))
    key = ["channels", "ranks", "method", "task"]
    parts = (table[table["part"] == part].set_index(key)["seconds"] for part in ("measured", "predicted"))
    measured, predicted = parts
    assert len(measured) == 4 * (3 + 2)  # 1, 2 and 4 ranks; of the small depth, only 2 have a coarsest step each
    pd.testing.assert_series_equal(measured.sort_index(), predicted.sort_index())
    assert (table["ranks"][table["part"] == "simulated"].max(), table["seconds"].gt(0).all()) == (8, True)
    facts = layer_scaling.facts(table)
    alone = table[(table["ranks"] == 1) & (table["part"] == "measured") & (table["task"] == "inference")]
    seconds = alone.set_index(["channels", "method"])["seconds"]
    assert facts["slower"] == pytest.approx(seconds[4, "multigrid"] / seconds[4, "serial"])
    assert facts["few"]["measured"].index.tolist() == [4] and facts["many"]["measured"].index.tolist() == [2]
    assert facts["few"]["simulated"][1] == pytest.approx(facts["training"]["simulated"][1])  # over the same there


def test_it_is_measured_on_ranks_and_drawn(monkeypatch, rank_session):
    monkeypatch.setattr(layer_scaling.on_ranks, "run", rank_session.measure)
    monkeypatch.setattr(layer_scaling, "DEPTHS", {"quick": {4: 64, 20: 64}})
    monkeypatch.setattr(layer_scaling, "ROUNDS", {"quick": {4: 1, 20: 1}})
    monkeypatch.setattr(layer_scaling, "DEPTH", 512)
    monkeypatch.setattr(layer_scaling, "RANKS", (1, 8))
    table = layer_scaling.measure("quick", 0, Progress(show=False))
    measured = table[table["part"] == "measured"]
    assert measured["ranks"].tolist() == [1] * 8
    assert (measured[["seconds", "low", "high", "compute", "communication"]] > 0).all().all()
    np.testing.assert_allclose(measured["compute"] + measured["communication"], measured["seconds"])
    assert len(layer_scaling.plot(table).axes) == 4


def test_without_mpi_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(engines.shutil, "which", lambda *name, **where: None)
    with pytest.raises(FileNotFoundError, match=r"^mpiexec is neither .*; `pip install 'bppsa-nb\[mpi\]'`"):
        layer_scaling.measure("quick", 0, Progress(show=False))


def test_a_run_that_fails_shows_why():
    pytest.importorskip("mpi4py")
    with pytest.raises(RuntimeError, match=r"(?s)2 ranks ended with 2:.*ranks must be at most the 1 steps"):
        layer_scaling._run(channels=1, depth=64, ranks=2, rounds=1, seed=0)
