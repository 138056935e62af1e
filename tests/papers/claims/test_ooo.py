import numpy as np
import pandas
import pytest

from bppsa_nb.papers.claims import claims, ooo
from bppsa_nb.papers.claims.claim import BETTER, MISSED, OOO, REPRODUCED
from bppsa_nb.papers.ooo import (
    figure_04_reverse_first_k as reverse_first_k,
)
from bppsa_nb.papers.ooo import (
    figure_05_fast_forward as fast_forward,
)
from bppsa_nb.papers.ooo import (
    figure_13_micro_batches as micro_batches,
)
from bppsa_nb.papers.ooo import (
    figures_10_11_data_parallel_throughput as data_parallel_throughput,
)


def judge(where, table, says=""):
    (claim,) = [each for each in ooo.claims() if each.where == where and each.says.startswith(says)]
    return claim.check(table)


@pytest.fixture(scope="module")
def figure_5():
    return fast_forward.measure("quick", None, None)


@pytest.fixture(scope="module")
def figure_13():
    return micro_batches.measure("quick", None, None)


def test_all_are_in_the_report():
    assert {each.where for each in ooo.claims()} <= {each.where for each in claims()}
    assert sum(each.paper == OOO for each in claims()) == 17


@pytest.mark.parametrize("difference, verdict", [(0.0, REPRODUCED), (1e-9, MISSED)])
def test_gradients_are_the_same_to_the_last_bit(difference, verdict):
    table = pandas.DataFrame({"policy": ["fast_forward", "random", "random"], "difference": [np.nan, 0, difference]})
    ours, found = judge("§3, Figure 3", table)
    assert ours == f"{difference:g} at most, in 2 random orders on LeNet-5" and found == verdict


def test_figure_5(figure_5):
    assert judge("§5.2, Figure 5", figure_5, "Fast-forwarding") == ("23 and 19 units: 1.21×", REPRODUCED)
    assert judge("§5.2, Figure 5", figure_5, "With modulo") == ("16 units: 1.44×", REPRODUCED)
    assert judge("§5.2, Figure 5", figure_5, "Both GPUs") == ("88% and 100%, 94% together", MISSED)
    longer = figure_5.assign(makespan=figure_5["makespan"] + 1)
    assert judge("§5.2, Figure 5", longer, "Fast-forwarding") == ("24 and 20 units: 1.2×", MISSED)
    assert judge("§5.2, Figure 5", longer, "With modulo")[1] == MISSED
    busy = figure_5.assign(duration=figure_5["duration"].where(figure_5["lane"] == "GPU 2", 1.1))
    assert judge("§5.2, Figure 5", busy, "Both GPUs")[1] == REPRODUCED


def test_memory_of_modulo_allocation_alone(figure_5):
    ours, found = judge("§5.2", figure_5)
    assert ours.endswith(": 6; with fast-forwarding 8, with both 5") and found == REPRODUCED
    assert judge("§5.2", figure_5.assign(peak_memory=np.where(figure_5["policy"] == "modulo", 7, 6)))[1] == MISSED


def test_the_two_numbers_of_figure_13_are_truncated(figure_13):
    where = "§7.4, Figure 13"
    ours = "1.221× with a flush (83 / 68 units), 1.383× without"
    assert judge(where, figure_13, "Fast-forwarding") == (ours, REPRODUCED)
    ours = "1.627× without (83 / 51 units), 1.566× with a flush"
    assert judge(where, figure_13, "With modulo") == (ours, REPRODUCED)
    other = figure_13.assign(iteration=figure_13["iteration"].replace(83, 84))
    assert [judge(where, other, says)[1] for says in ("Fast-forwarding", "With modulo")] == [MISSED] * 2
    with pytest.raises(LookupError):
        judge(where, figure_13[figure_13["layers"] == 8], "Fast-forwarding")


@pytest.mark.parametrize(
    "says, system, held, found",
    [
        ("Fast-forwarding needs", "OOO-Pipe1", 1.10, REPRODUCED),
        ("Fast-forwarding needs", "OOO-Pipe1", 1.12, MISSED),
        ("With modulo", "OOO-Pipe2", 1.0, REPRODUCED),
        ("With modulo", "OOO-Pipe2", 1.01, MISSED),
    ],
)
def test_memory_of_pipelines(says, system, held, found):
    table = pipelines()
    table["bytes"] = 2**30 * np.where(table["system"] == system, held, 1)
    table["bytes_bare"] = 2**29 * np.where(table["system"] == system, 1.5, 1)
    ours, judged = judge("§7.4", table, says)
    assert judged == found
    assert f"the fullest: {system} {held:.2f} GiB, GPipe 1.00 GiB; " in ours and ours.endswith("alone, 50% more")


def test_the_first_k_are_optimal():
    table = reverse_first_k.measure("quick", None, None)
    ours, found = judge("§5.1, Figure 4", table)
    assert ours.endswith("19 units with k = 3, 19 with k = 4, optimum 19; 1.16× and 1.11×") and found == REPRODUCED
    assert (
        judge("§5.1, Figure 4", table.replace({"part": {"lower bound": "x"}, "makespan": {19: 19.5}}))[1] == REPRODUCED
    )
    better = table.assign(makespan=table["makespan"].where(table["part"] != "optimum", 18))
    assert judge("§5.1, Figure 4", better)[1] == MISSED


def data_parallel(priority, peaks):
    """Make a table in which reverse first-k takes one second and sending low layers first so many."""
    points = [{"part": "(a)", "gpus": gpus, "network": np.nan, "ratio": np.nan} for gpus in (8, 16, 48)]
    points.append({"part": "ratio", "gpus": np.nan, "network": "x", "ratio": 0.5})
    took = {"fifo": [2, 2, 2, 2], "priority": [9, *priority, 1.5], "reverse_first_k": [1] * 4}
    rows = [
        point | {"policy": policy, "makespan": seconds, "lower_bound": 1}
        for policy, column in took.items()
        for point, seconds in zip(points, column, strict=True)
    ]
    memory = [
        {"part": "memory", "network": network, "k": k, "bytes": most}
        for network, (_, delayed) in data_parallel_throughput.KEPT.items()
        for k, most in zip((0, delayed), peaks, strict=True)
    ]
    return pandas.DataFrame([*rows, *memory])


@pytest.mark.parametrize("priority, verdict", [((1.1, 1.27), REPRODUCED), ((1.0, 1.02), MISSED), ((1.3, 1.5), BETTER)])
def test_reverse_first_k_on_large_clusters(priority, verdict):
    ours, found = judge("§7.3, Figure 10", data_parallel(priority, (1, 1)))
    said = f"simulated from stated costs: {priority[0]:.2f}× to {priority[1]:.2f}× over sending low layers first"
    assert ours.startswith(said) and ours.endswith("up to 1.50× if low layers have most weights")
    assert found == verdict


@pytest.mark.parametrize("peak, verdict", [(1.005, REPRODUCED), (1.9, MISSED)])
@pytest.mark.parametrize("where, words", [("§7.3, Figure 11", "k = 55, ResNet-101"), ("§7.3", "k = 45, ResNet-50")])
def test_memory_of_reverse_first_k(where, words, peak, verdict):
    ours, found = judge(where, data_parallel((1, 1), (1, peak)))
    assert f": {peak - 1:.1%} more with {words}, " in ours and found == verdict


def pipelines(**speedups):
    """Make a table of throughputs, the same over all interconnects and numbers of GPUs."""
    points = [
        {"part": "interconnect", "interconnect": name}
        for name in ("NVLink, 50 GB/s", "PCIe, 16 GB/s", "Ethernet, 1 GB/s")
    ]
    points += [{"part": "gpus", "gpus": gpus} for gpus in (4, 32)]
    speedups = dict.fromkeys(("1F1B", "ZB-H1", "ZB-H2"), 2.0) | speedups
    speedups = {"GPipe": 2.0, "OOO-Pipe1": 2.4, "OOO-Pipe2": 3.4, "PipeDream": 2.0} | speedups
    return pandas.DataFrame([p | {"system": name, "speedup": s} for p in points for name, s in speedups.items()])


def test_pipelines():
    table = pipelines()
    said = "simulated from stated costs: "
    assert judge("§7.4, Figure 12a", table) == (f"{said}1.20×, 1.70×; 3.40× one GPU", REPRODUCED)
    assert judge("§7.4, Figure 12b", table) == (f"{said}1.70×, 1.70×, 1.70×", REPRODUCED)
    ours, found = judge("§7.4, Figures 12, 14", table)
    assert ours == f"{said}1.70× to 1.70× on 4 to 32 GPUs, 1.70× to 1.70× on 4 over three interconnects"
    assert found == MISSED  # 1.99 is not reached
    ours, found = judge("§7.4, Figure 14", table, "OOO-Pipe2 over PipeDream")
    assert ours.startswith(f"{said}1.70× to 1.70×") and found == REPRODUCED
    slow = pipelines(**{"OOO-Pipe2": 2.1})
    assert {judge(f"§7.4, Figure {number}", slow)[1] for number in ("12a", "12b")} == {MISSED}
    assert judge("§7.4, Figure 14", pipelines(PipeDream=3.4), "OOO-Pipe2 over PipeDream")[1] == MISSED


@pytest.mark.parametrize("stale, verdict", [((0.5, 0.6), REPRODUCED), ((0.5, 0.75), MISSED)])
def test_stale_weights_in_the_end(stale, verdict):
    rows = []
    for images, ends in ((40, (0.9, 0.9)), (400, stale)):
        for lr, end in zip((0.001, 0.003), ends, strict=True):
            for devices, accuracy in ((1, 0.7), (4, end), (8, 0.9)):
                run = {"images": images, "lr": lr, "devices": devices, "epoch": 3}
                rows += [run | {"seed": seed, "accuracy": accuracy + 0.01 * devices * seed} for seed in (0, 1)]
    ours, found = judge("Appendix C, Figure 12", pandas.DataFrame(rows))
    assert ours.startswith("-21.5 (-23.0 to -20.0), -21.5 (-23.0 to -20.0) points lower after 6 updates with learning ")
    assert "; 18.5 (17.0 to 20.0), " in ours and ours.endswith("after 60 updates with learning rates 0.001, 0.003")
    assert found == verdict
