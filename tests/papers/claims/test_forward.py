import pandas as pd
import pytest

from bppsa_nb.papers.claims import claims, forward
from bppsa_nb.papers.claims.claim import BETTER, FORWARD, MISSED, REPRODUCED


def judge(where, table, says=""):
    (claim,) = [each for each in forward.claims() if each.where == where and each.says.startswith(says)]
    return claim.check(pd.DataFrame(table))


def test_all_are_in_the_report():
    assert {each.where for each in forward.claims()} <= {each.where for each in claims()}
    assert sum(each.paper == FORWARD for each in claims()) == 8


def looks(share, corrections=3):
    """Twenty looks at each rate, the first at a fresh network; a share of those at the largest rate failed."""
    rows = []
    for rate in (1e-5, 1e-3):
        for i in range(20):
            failed = rate == 1e-3 and i >= 20 - round(20 * share)
            rows.append({"rate": rate, "iteration": i, "corrections": 60 if failed else corrections, "met": not failed})
    return rows


@pytest.mark.parametrize("share, verdict", [(0, REPRODUCED), (0.1, REPRODUCED), (0.15, MISSED)])
def test_few_corrections_must_do_in_nine_of_ten_looks_at_any_rate(share, verdict):
    ours, found = judge("ParaRNN, code", looks(share))
    assert found == verdict
    shares = f"100% at rate 1e-05, {1 - share:.0%} at rate 0.001"
    assert ours == f"3 at most on fresh networks; along training, of all looks: {shares}"
    assert judge("ParaRNN, code", looks(0, corrections=4))[1] == MISSED


@pytest.mark.parametrize("share, verdict", [(0, MISSED), (0.5, REPRODUCED)])
def test_trained_networks_must_fail_sometimes(share, verdict):
    assert judge("DEER, the author's slides", looks(share), "Untrained")[1] == verdict
    never = pd.DataFrame(looks(share)).assign(met=False)
    assert judge("DEER, the author's slides", never, "Untrained")[1] == MISSED


@pytest.mark.parametrize("error, verdict", [(1e-7, BETTER), (4.5e-7, REPRODUCED), (6e-7, MISSED)])
def test_the_deviation_is_that_of_the_longest_sequence(error, verdict):
    table = [
        {"network": "example", "dtype": "float32", "T": T, "error": e, "corrections": 3}
        for T, e in ((100, 1e-3), (10000, error))
    ]
    ours, found = judge("DEER, README's example", table)
    assert found == verdict and ours.endswith("at T = 10,000, after 3 corrections at most")


@pytest.mark.parametrize("most, verdict", [(300, REPRODUCED), (301, MISSED)])
def test_no_more_iterations_than_steps(most, verdict):
    assert judge("DEER, proposition on convergence", [{"newton": 3}, {"newton": most}])[1] == verdict


@pytest.mark.parametrize("quasi, verdict", [(6, REPRODUCED), (7, MISSED)])
def test_the_diagonal_is_compared_with_the_whole_jacobian(quasi, verdict):
    table = [
        {"network": name, "dtype": dtype, "corrections": n, "T": 100}
        for name, n in (("rnn", 3), ("quasi", quasi))
        for dtype in ("float32", "float64")
    ]
    assert judge("quasi-DEER, abstract", table)[1] == verdict


@pytest.mark.parametrize("calm, wild, verdict", [(67, 100, REPRODUCED), (68, 100, MISSED), (67, 99, MISSED)])
def test_the_threshold_parts_few_iterations_from_many(calm, wild, verdict):
    rows = [("random weights", 0.5, -0.5, 2), ("random weights", 0.9, -0.2, calm), ("random weights", 1.3, 0.0, 50)]
    rows += [("random weights", 2, 0.2, wild), ("a latch: two basins", 0, -0.9, 72)]
    table = [dict(zip(("network", "radius", "exponent", "newton"), row, strict=True)) | {"repairs": 1} for row in rows]
    ours, found = judge("Predictability, abstract", table)
    assert found == verdict and ours.endswith("but a latch with two basins, at −0.90, takes 72")


@pytest.mark.parametrize("factor, verdict", [(1.5, MISSED), (800, REPRODUCED)])
def test_speeds_are_compared_length_by_length(factor, verdict):
    table = [
        {"network": "gru", "backend": backend, "method": method, "T": T, "ratio": factor}
        for backend in ("numpy", "cpu")
        for method in ("chunked", "newton")
        for T in (1000, 10000, 30000)
    ]
    ours, found = judge("DEER, abstract and report", table)
    assert found == verdict and "at 30,000" in ours
