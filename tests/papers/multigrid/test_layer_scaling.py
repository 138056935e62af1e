import itertools

import numpy as np
import pytest

from bppsa_nb.papers.multigrid import figures_06_07_layer_scaling as layer_scaling
from bppsa_nb.papers.multigrid.recording import record
from bppsa_nb.papers.progress import Progress
from bppsa_nb.papers.ranks import engines


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


def test_costs_are_found_again():
    costs, seconds = {"F": 3e-5, "δO": 4e-5, "δW": 1e-4}, {}
    for method, levels in (("multigrid", layer_scaling.LEVELS), ("serial", 1)):
        step = record(512, 1, layer_scaling.CYCLES, layer_scaling.COARSENING, levels)
        seconds |= {(method, "inference"): step.part("F").work(costs), (method, "training"): step.work(costs)}
    found = layer_scaling._costs(seconds, 512)
    assert found["multigrid"] == pytest.approx(costs) and found["serial"] == pytest.approx(costs)


def test_as_many_ranks_are_measured_as_have_a_core_and_a_coarsest_step_each(monkeypatch):
    def run(channels, depth, ranks, rounds, seed):
        row = {"part": "measured", "link": "shared memory", "seconds": 1.0, "compute": 0.75, "communication": 0.25}
        kinds = itertools.product(("multigrid", "serial"), ("inference", "training"))
        return [row | {"method": method, "task": task} for method, task in kinds]

    monkeypatch.setattr(layer_scaling, "_run", run)
    monkeypatch.setattr(layer_scaling.provenance, "cores", lambda: 5)
    monkeypatch.setattr(layer_scaling, "DEPTH", 512)
    monkeypatch.setattr(layer_scaling, "RANKS", (1, 2, 8))
    table = layer_scaling.measure("quick", 0, Progress(show=False))
    measured = table[table["part"] == "measured"]
    assert len(measured) == 4 * (3 + 2)  # 1, 2 and 4 ranks; of the small depth, only 2 have a coarsest step each
    assert (table["ranks"][table["part"] == "simulated"].max(), table["seconds"].gt(0).all()) == (8, True)


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
        layer_scaling._run(channels=1, depth=64, ranks=2, rounds={1: 1}, seed=0)
