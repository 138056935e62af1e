import pandas
import pytest

from bppsa_nb.papers.claims import sparse
from bppsa_nb.papers.claims.claim import BETTER, MISSED, PAPER, REPRODUCED


def judge(says, table):
    (found,) = [each for each in sparse.claims() if each.says.startswith(says)]
    assert found.paper == PAPER and not found.gpu
    return found.check(table)


@pytest.mark.parametrize("share, verdict", [(0.991574, REPRODUCED), (0.99156, MISSED)])
def test_sparsity_to_the_digits_printed(share, verdict):
    table = pandas.DataFrame({"operator": ["ReLU", "Convolution"], "sparsity": [0.5, share]})
    assert judge("Convolution, VGG-11's first", table) == (f"{share:.5f}", verdict)
    with pytest.raises(LookupError):
        judge("Max-pooling, VGG-11's first", table)


@pytest.mark.parametrize("values, verdict", [(6.47, REPRODUCED), (6.3, MISSED)])
def test_size_of_the_first_convolution(values, verdict):
    table = pandas.DataFrame({"operator": ["Convolution"], "dense_mib": [768.0], "values_mib": [values]})
    assert judge("The first convolution's Jacobian", table)[1] == verdict


@pytest.mark.parametrize("speedup, verdict", [(1.5e4, BETTER), (8.3e3, REPRODUCED), (7e3, MISSED)])
def test_generation(speedup, verdict):
    table = pandas.DataFrame({"operator": ["Convolution"], "speedup_values": [speedup], "speedup_pattern": [700.0]})
    ours, found = judge("Convolution: analytical", table)
    assert found == verdict and "7.0e2 with the pattern" in ours


def training(loss, gradient, scale="quick"):
    table = pandas.DataFrame(
        {
            "backend": "cpu",
            "B": 8,
            "iteration": [0, 1],
            "loss_ordinary": [2.0, 1.0],
            "loss_blelloch": [2.0, 1.0 + loss],
            "loss_disturbed": [2.0, 1.0],
            "loss_reversed": [2.0, 1.0],
            "difference_fc": [0.0, gradient],
        }
    )
    table.attrs["provenance"] = {"scale": scale}
    return table


@pytest.mark.parametrize("difference, verdict", [(9e-6, REPRODUCED), (2e-5, MISSED)])
def test_lenet(difference, verdict):
    assert judge("LeNet-5: at the same parameters", training(0, difference))[1] == verdict
    assert judge("LeNet-5: per iteration", training(difference, 0))[1] == verdict
    with pytest.raises(LookupError):
        judge("LeNet-5: per iteration", training(0, 0, "paper"))


@pytest.mark.parametrize("planned, verdict", [(0.9, REPRODUCED), (1.1, MISSED)])
def test_planned_products_beat_scipy_on_every_level(planned, verdict):
    columns = {"scipy": [4.0, 1.0], "scipy_nonzero": [2.0, 0.5], "planned": [1.0, planned], "symbolic": 1.0}
    table = pandas.DataFrame(
        {"part": "products", "kind": "mm", "level": [1, 2], "multiply_adds": 5, "error": 0.0} | columns
    )
    ours, found = judge("With patterns known", table)
    assert found == verdict and "level 1: 4× (2×)" in ours


@pytest.mark.parametrize("stored, verdict", [(60e6, REPRODUCED), (90e6, MISSED)])
def test_steps_like_the_baseline_s(stored, verdict):
    rows = {"storage": ["BP", "BP", "maxima", "planned"], "kind": ["BP", "BP", "mm", "mm"], "dense": [1, 1, 1e12, 1e12]}
    table = pandas.DataFrame(rows | {"multiply_adds": [40e6, 1e6, stored, 160e6]})
    assert judge("On a pruned VGG-11, steps", table)[1] == verdict
    assert judge("Sparse formats lower", table) == ("dearest product: 160 M multiply-adds, dense 1.0 T", REPRODUCED)
    with pytest.raises(LookupError):
        judge("On a pruned VGG-11, steps", table[:2])


@pytest.mark.parametrize("after, verdict", [(0.89, REPRODUCED), (0.87, MISSED)])
def test_retraining(after, verdict):
    rows = {"network": ["VGG11"] * 3 + ["LeNet5"], "stage": ["trained", "pruned", "retrained", "retrained"]}
    table = pandas.DataFrame(rows | {"rate": [0, 0.97, 0.97, 0.5], "accuracy": [0.9, 0.1, after, 0.2]})
    ours = f"90.0%, {after:.1%} after pruning 97% and as many iterations again"
    assert judge("VGG-11 is about", table) == (ours, verdict)
    ours = f"90.0%, {after:.1%} ({after - 0.01:.1%} to {after + 0.01:.1%} over seeds) after pruning 97% and as many "
    copies = [
        table.assign(accuracy=table["accuracy"] + shift * (table["stage"] == "retrained")) for shift in (-0.01, 0.01)
    ]
    assert judge("VGG-11 is about", pandas.concat(copies)) == (ours + "iterations again", verdict)
    with pytest.raises(LookupError):
        judge("VGG-11 is about", table[3:])
