import pandas
import pytest

from bppsa_nb.papers.claims import claims, multigrid
from bppsa_nb.papers.claims.claim import MISSED, MULTIGRID, REPRODUCED
from bppsa_nb.papers.multigrid import figures_06_07_layer_scaling as layer_scaling


def judge(where, table, says=""):
    (claim,) = [each for each in multigrid.claims() if each.where == where and each.says.startswith(says)]
    return claim.check(table)


def histories(cycles, error=1e-11):
    rows = [
        {"weights": weights, "activation": "tanh", "N": N, "solved": solved, "cycle": 1, "cycles": count}
        for weights, counts in cycles.items()
        for N, count in zip((64, 256), counts, strict=True)
        for solved in ("states", "gradients")
    ]
    return pandas.DataFrame(rows).assign(factor=0.02, error=error)


def test_all_are_in_the_report():
    assert {each.where for each in multigrid.claims()} <= {each.where for each in claims()}
    assert sum(each.paper == MULTIGRID for each in claims()) == 11


@pytest.mark.parametrize("counts, apart, verdict", [((5, 6), 1, REPRODUCED), ((5, 7), 2, MISSED)])
def test_cycles_are_compared_within_a_kind_of_weights(counts, apart, verdict):
    ours, found = judge("§IV-A, Figure 4", histories({"smooth": counts, "independent": (9, 9)}))
    assert found == verdict
    assert ours.startswith("5 to 9 V-cycles to 1e-9; from 64 to 256 layers, their number differs by")
    assert f"by {apart} at most" in ours and ours.endswith("2.0% to 2.0% of the residual")


@pytest.mark.parametrize("error, verdict", [(2e-10, REPRODUCED), (2e-8, MISSED)])
def test_states_are_serial_ones(error, verdict):
    ours, found = judge("§IV-A", histories({"smooth": (5, 5)}, error), "As the residual")
    assert ours == f"states differ from serial ones by {error:.0e} at most" and found == verdict


def trainings(gains, T=4, adaptive=0.002, cycles=3):
    """Two seeds with accuracies 0.90 and 0.92 serially, and what two cycles gain after each of two epochs.

    As many cycles as it takes are `cycles`, one more backward, and gain `adaptive`.
    """
    rows = []
    for epoch, gain in enumerate([0, *gains]):
        for seed, accuracy in ((1, 0.9), (2, 0.92)):
            rows.append({"T": T, "seed": seed, "method": "serial", "epoch": epoch, "accuracy": accuracy})
            rows.append(rows[-1] | {"method": "multigrid", "accuracy": accuracy + gain})
            taken = {"forward": cycles, "backward": cycles + 1}
            rows.append(rows[-1] | {"method": "adaptive", "accuracy": accuracy + adaptive} | taken)
    return pandas.DataFrame(rows)


@pytest.mark.parametrize(
    "gains, verdict", [((0.001, -0.004), REPRODUCED), ((-0.006, 0.0), MISSED), ((0, 0.02), MISSED)]
)
def test_two_cycles_must_be_close_after_every_epoch_for_small_times(gains, verdict):
    ours, found = judge("§IV-A", trainings(gains), "Two cycles")
    assert found == verdict and ours.startswith("T = 4: ")
    assert f"their deviation is 1.4), {100 * max(map(abs, gains)):.1f} at most after any epoch; by as many" in ours


def test_two_cycles_may_fail_for_large_times_which_is_told():
    table = pandas.concat([trainings((0, 0.001)), trainings((-0.1, -0.7), T=64, adaptive=-0.02, cycles=5)])
    ours, found = judge("§IV-A", table, "Two cycles")
    assert found == REPRODUCED and "; T = 64: −70.0; by as many" in ours and "T = 4: +0.1 points in the end" in ours
    assert ours.endswith("0.1 takes, +0.2 for T = 4 (3.5 in the end), −2.0 for T = 64 (5.5 in the end)")
    with pytest.raises(LookupError):
        judge("§IV-A", trainings((0, 0), T=16), "Two cycles")


@pytest.mark.parametrize("steps, verdict", [((108, 156), MISSED), ((108, 108), REPRODUCED)])
def test_time_over_depth(steps, verdict):
    table = pandas.DataFrame({"road": "multigrid 2", "start": "layers", "depth": [64, 256], "steps": steps})
    ours, found = judge("§I, §IV-A", table)
    assert f"steps in a row: 108 at 64, {steps[1]} at 256 layers" in ours and found == verdict


def test_blocks_at_once():
    run = {"part": "run", "method": "cycle", "threads": 8, "most_at_once": 5, "at_once": 3.2}
    ours, found = judge("§IV-B, Figure 5", pandas.DataFrame([run, run | {"method": "loop", "most_at_once": 1}]))
    assert ours == "on 8 CPU threads: 5 blocks at once at most, 3.2 on average" and found == REPRODUCED


def scaling(slower=4.0, speedup=None):
    """Serial propagation takes 1 s on any ranks; multigrid `slower` s on one, or its inverse `speedup` on others."""
    speedup = speedup or {1: 0.25, 4: 1.25, 24: 4, 64: 3.5}
    rows = []
    for channels in (layer_scaling.FEW, layer_scaling.MANY):
        for task in ("inference", "training"):
            for part, ranks in (("measured", (1, 2)), ("simulated", (1, 4, 24, 64))):
                for count in ranks:
                    row = {"channels": channels, "task": task, "part": part, "ranks": count, "alone": 1.0}
                    row |= {"link": multigrid.ETHERNET if part == "simulated" else "shared memory"}
                    rows.append(row | {"method": "serial", "seconds": 2.0})
                    seconds = slower if part == "measured" else 1 / speedup[count]
                    rows.append(row | {"method": "multigrid", "seconds": seconds})
                    if part == "simulated":  # another link, which must not be taken for it
                        rows.append(rows[-1] | {"link": "200 Gb/s InfiniBand", "seconds": 1e-3})
    return pandas.DataFrame(rows).assign(compute=0.03, communication=0.97)


@pytest.mark.parametrize("slower, verdict", [(4.1, REPRODUCED), (5.0, MISSED)])
def test_one_device(slower, verdict):
    ours, found = judge("§IV-C, Figure 6a", scaling(slower), "On one device")
    assert ours == f"{slower:.1f}× slower on one CPU rank, {layer_scaling.CYCLES} cycles" and found == verdict


def test_speedups_over_serial_propagation():
    ours, found = judge("§IV-C, Figure 6a", scaling(), "Inference")
    assert ours == "simulated from stated costs: 1.25× on 4, 4× on 24; measured on 2 CPU ranks: 0.25×"
    assert found == REPRODUCED
    assert judge("§IV-D, Figure 6b", scaling(), "Training over serial")[1] == REPRODUCED
    slow = scaling(speedup={1: 0.2, 4: 1.25, 24: 3, 64: 2})
    assert judge("§IV-C, Figure 6a", slow, "Inference")[1] == MISSED
    assert judge("§IV-D, Figure 6b", slow, "Training over serial")[1] == MISSED


def test_speedups_over_a_partitioned_model():
    ours, found = judge("§IV-D, Figure 6b", scaling(), "Training over a")
    assert ours == "simulated from stated costs: 7× on 64; measured on 2 CPU ranks: 0.5×" and found != MISSED
    ours, found = judge("§IV-E, Figure 7", scaling())
    assert ours.startswith("simulated from stated costs: 2.5× on 4, 7× on 64") and found == MISSED


def test_waiting():
    ours, found = judge("§IV-D, Figure 6c", scaling())
    assert ours == "simulated from stated costs: 97% of a rank's time over 25 Gb/s Ethernet" and found == REPRODUCED
    assert judge("§IV-D, Figure 6c", scaling().assign(compute=1.0))[1] == MISSED


def test_tables_without_the_rows_are_refused():
    for where in ("§IV-D, Figure 6c", "§IV-E, Figure 7"):
        with pytest.raises(LookupError):
            judge(where, scaling().query("part == 'measured'"))
