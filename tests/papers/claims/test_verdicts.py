"""What claims say of the references, and of tables that are like them but for one column.

For every claim and its last reference, each column of numbers is scaled row by row and as a whole. `verdicts.csv` has,
for each claim, the verdict; a digest of what is said of tables that are scaled a little; one of the others; and, for
each column that decides, by which factor it must be smaller or larger for another verdict. Where a change is meant,
`python tests/papers/claims/test_verdicts.py` writes it anew.
"""

import csv
import hashlib
from pathlib import Path

import numpy as np
import pytest

from bppsa_nb.papers import experiments
from bppsa_nb.papers.claims import claims

RECORDED = Path(__file__).with_name("verdicts.csv")
CLAIMS = claims()


class Same(dict):
    """A dictionary that pandas does not copy with a table at every step."""

    def __deepcopy__(self, memo):
        return self


def outcome(claim):
    """Return what `verdicts.csv` has of a claim."""
    with experiments.references():
        recorded = reversed(experiments.recordings(claim.experiment))
        tables = (experiments.table(claim.experiment, scale, device) for device, scale in recorded)
        table = next(each for each in tables if judged(claim, each)[0])
    table.attrs["provenance"] = Same(table.attrs["provenance"])
    rng, little, much, turns = np.random.default_rng(0), [judged(claim, table)], [], []
    verdict = little[0][1]
    for column in table.select_dtypes("number"):

        def scaled(factor, column=column):
            return judged(claim, table.assign(**{column: factor * table[column]}))

        near, far = 10 ** rng.uniform([[-0.3], [-2]], [[0.3], [2]], (2, len(table)))
        little.append(scaled(near))
        much += [scaled(factor) for factor in (0.5, 2, far)]
        for far in (-4.0, 4.0):  # decades
            near, end = 0.0, scaled(10**far)[1]
            if end not in ("-", verdict):
                for _ in range(10):
                    middle = (near + far) / 2
                    near, far = (near, middle) if scaled(10**middle)[1] == end else (middle, far)
                turns.append(f"{column} {10**far:.2g} {end}")
    return claim.says[:60], verdict, digest(little), digest(much), "; ".join(turns)


def digest(said):
    return hashlib.sha256(repr(said).encode()).hexdigest()[:12]


def judged(claim, table):
    try:
        return claim.check(table)
    except (LookupError, ValueError, ZeroDivisionError):  # of columns that say which row is which
        return "", "-"


@pytest.mark.outer
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.where}: {claim.says[:40]}")
def test_claims_say_of_tables_like_the_references_what_they_said(claim):
    with RECORDED.open(encoding="utf-8", newline="") as file:
        recorded = [tuple(row[1:]) for row in csv.reader(file) if row[0] == claim.where]
    assert outcome(claim) in recorded, "is it meant? python tests/papers/claims/test_verdicts.py"


if __name__ == "__main__":
    with RECORDED.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows((claim.where, *outcome(claim)) for claim in CLAIMS)
