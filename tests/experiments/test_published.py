import hashlib
import re

import pytest

from bppsa_nb import files
from bppsa_nb.experiments import published, tables_4_5

PAPER = files.root() / "data" / "paper"


def row(name, **key):
    table = tables_4_5.speedups(published.table(name))
    (found,) = [each for _, each in table.iterrows() if all(each[column] == value for column, value in key.items())]
    return found


@pytest.mark.parametrize(
    "name, key, overall, backward",
    [
        # Worked out from the printed page: (Baseline / BPPSA) and (Baseline - Forward) / (BPPSA - Forward).
        ("table_4", {"T": 1000}, 53.33 / 29.29, 27.47 / 3.43),
        ("table_4", {"T": 10}, 4.49 / 4.24, 2.92 / 2.67),
        ("table_4", {"T": 30000}, 1557.94 / 764.31, 808.95 / 15.32),
        ("table_5", {"B": 256}, 4.02 / 3.72, 1.89 / 1.59),
        ("table_5", {"B": 2}, 409.33 / 227.13, 208.68 / 26.48),
    ],
)
def test_ratios_are_those_of_the_printed_tables(name, key, overall, backward):
    found = row(name, **key)
    assert found["overall"] == pytest.approx(overall, rel=1e-12)
    assert found["backward"] == pytest.approx(backward, rel=1e-9)


def test_tables_4_and_5_share_a_row():
    shared = [row("table_4", T=1000), row("table_5", B=16)]
    assert shared[0].equals(shared[1])


@pytest.mark.parametrize("name", ["table_4", "table_5"])
def test_tables_are_complete_and_say_where_they_come_from(name):
    table = published.table(name)
    assert len(table) == 8 and not table.isna().any().any()
    assert (table["forward"] < table["bppsa"]).all() and (table["bppsa"] < table["baseline"]).all()
    assert table.attrs["gpu"] == "NVIDIA V100"
    assert table.attrs["table"] == int(name[-1])


def test_unknown_tables_are_errors():
    with pytest.raises(ValueError, match="one of table_4, table_5; got 'table_7'"):
        published.table("table_7")


def test_checksums_in_the_readme_are_those_of_the_files():
    readme = (PAPER.parent / "README.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"`paper/(\S+)` \| `([0-9a-f]{64})`", readme))
    assert said == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in PAPER.glob("*.csv")}
