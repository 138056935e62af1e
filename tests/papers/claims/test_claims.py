"""How claims are judged; what each of them says of the references is in test_verdicts.py."""

import re

import pandas
import pytest

from bppsa_nb.papers import experiments
from bppsa_nb.papers.claims import claims, sparse
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




def test_over_thousands_of_iterations_losses_of_lenet_decide_nothing():
    table = experiments.table("figure_06", "paper", "cpu")
    (claim,) = [each for each in sparse.claims() if each.says.startswith("LeNet-5: per iteration")]
    with pytest.raises(LookupError):
        claim.check(table)
