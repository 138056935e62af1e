"""How claims are judged; what each of them says of the references is in test_verdicts.py."""

import re

import pandas
import pytest

from bppsa_nb.papers import experiments
from bppsa_nb.papers.claims import claims, distributed, forward, ooo
from bppsa_nb.papers.claims.claim import (
    ARTICLE,
    BETTER,
    FORWARD,
    MISSED,
    MULTIGRID,
    OOO,
    REPRODUCED,
    compare,
    require,
    times,
)


def judge(module, says, table):
    (claim,) = [each for each in module.claims() if each.says.startswith(says)]
    return claim.check(pandas.DataFrame(table))


def test_all_are_in_the_report():
    papers = [each.paper for each in claims()]
    assert [papers.count(paper) for paper in (ARTICLE, OOO, MULTIGRID, FORWARD)] == [11, 17, 11, 8]
    assert len(papers) == 106 and {each.experiment for each in claims()} <= set(experiments.names())
    for each in claims():
        assert each.gpu or not re.search(r"TitanX\)|V100\)|RTX", each.number) or each.where in ("§7.4", "§7.3")


def test_of_several_numbers_the_worst_decides():
    assert compare([2.0, 9.1], [1.0, 10.0]) == REPRODUCED
    assert compare([2.0, 8.9], [1.0, 10.0]) == MISSED
    assert compare([2.0, 12.0], [1.0, 10.0]) == BETTER
    assert [times(ratio) for ratio in (0.123, 0.9996, 1, 12.345)] == ["0.12×", "1×", "1×", "12.3×"]
    with pytest.raises(LookupError):
        require([])


def checks(share, corrections=3):
    """Give twenty checks at each rate, the first of a fresh network; a share of those at the largest rate failed."""
    rows = []
    for rate in (1e-5, 1e-3):
        for i in range(20):
            failed = rate == 1e-3 and i >= 20 - round(20 * share)
            rows.append({"rate": rate, "iteration": i, "corrections": 60 if failed else corrections, "met": not failed})
    return rows


@pytest.mark.parametrize("share, verdict", [(0, REPRODUCED), (0.1, REPRODUCED), (0.15, MISSED)])
def test_few_corrections_must_do_in_nine_of_ten_checks_at_any_rate(share, verdict):
    ours, found = judge(forward, "Three Newton", checks(share))
    assert found == verdict and f"100% at rate 1e-05, {1 - share:.0%} at rate 0.001" in ours
    assert judge(forward, "Three Newton", checks(0, corrections=4))[1] == MISSED


@pytest.mark.parametrize("share, verdict", [(0, MISSED), (0.5, REPRODUCED)])
def test_trained_networks_must_fail_sometimes_and_fresh_ones_never(share, verdict):
    assert judge(forward, "Untrained", checks(share))[1] == verdict
    assert judge(forward, "Untrained", [row | {"met": False} for row in checks(share)])[1] == MISSED


@pytest.mark.parametrize("combined, told, verdict", [(3, ", whatever", REPRODUCED), (4, ", depending on T", MISSED)])
def test_calls_are_few_and_the_same_for_all_lengths(combined, told, verdict):
    table = [
        {"part": "rank", "done_by": "chunked", "ranks": p, "steps": T, "rank": rank}
        | {"combined": 0 if p == 1 else combined if (rank, T) == (3, 30000) else 3}
        for T in (1000, 30000)
        for p in (1, 4)
        for rank in range(p)
    ]
    ours, found = judge(distributed, "Split over n devices", table)
    assert found == verdict and f"{combined} on 4 ranks{told}" in ours


@pytest.mark.parametrize("stale, verdict", [((0.5, 0.6), REPRODUCED), ((0.5, 0.75), MISSED)])
def test_stale_weights_must_cost_accuracy_at_every_rate_of_the_longest_training(stale, verdict):
    table = [
        {"images": images, "lr": lr, "devices": devices, "epoch": 3, "seed": 0, "accuracy": accuracy}
        for images, ends in ((40, (0.9, 0.9)), (400, stale))
        for lr, end in zip((0.001, 0.003), ends, strict=True)
        for devices, accuracy in ((1, 0.7), (4, end))
    ]
    assert judge(ooo, "PipeDream's stale weights", table)[1] == verdict
