"""The dictionary of columns describes every table there is, and nothing else."""

import csv
import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from bppsa_nb.papers import dictionary

DATA = Path(__file__).parents[2] / "data"
PATHS = sorted([*DATA.glob("results/*/*.csv"), *DATA.glob("paper/*.csv")])
UNRECORDED = {"kernel_issue"}  # of a benchmark, whose reference needs a GPU


def columns_of(path):
    """Return the name that a table has in the dictionary, and its columns."""
    with path.open(encoding="utf-8", newline="") as file:
        columns = next(csv.reader(file))
    return ("paper/" if path.parent.name == "paper" else "") + path.name.split(".")[0], columns


TABLES = {path: columns_of(path) for path in PATHS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_column_is_described(path):
    name, columns = TABLES[path]
    described = dictionary.fields(name, dict.fromkeys(columns, "str"))
    units = {each["name"]: each["unit"] for each in described}
    assert [*units] == columns and set(units.values()) - {None} <= set(dictionary.read()["units"])
    assert [each for each in described if len(each["means"].split()) < 2] == []
    for column, unit in units.items():
        for ending in dictionary.read()["endings"]:
            whole = column.removesuffix(ending)
            assert whole == column or whole not in units or units[whole] == unit, column


def test_text_and_truth_have_no_unit():
    for path in DATA.glob("results/*/*.json"):
        columns = json.loads(path.read_text(encoding="utf-8"))["columns"]
        described = dictionary.fields(TABLES[path.with_suffix(".csv")][0], columns)
        assert [each for each in described if each["type"] in ("str", "bool") and each["unit"]] == []


def test_nothing_is_described_that_is_not_there():
    written = dictionary.read()
    tables = {}
    for name, columns in TABLES.values():
        tables.setdefault(name, set()).update(columns)
    for title, entries in written["columns"].items():
        names = [*tables] if title == "every table" else title.split()
        known = set().union(*(tables.get(name, ()) for name in names))
        if title != "every table" and not UNRECORDED.intersection(names):
            assert set(names) <= set(tables), title
        if not UNRECORDED.intersection(names):
            assert [key for key in entries if not any(fnmatchcase(column, key) for column in known)] == [], title
    units = [entry["unit"] for entries in written["columns"].values() for entry in entries.values() if "unit" in entry]
    assert set(units) == set(written["units"])


def test_what_several_tables_say_alike_is_said_once():
    """An entry of a table that repeats the one of every table would go its own way one day."""
    sections = dictionary.read()["columns"]
    usual = sections["every table"]
    repeated = [key for title in sections for key in sections[title] if sections[title][key] == usual.get(key)]
    assert repeated == [*usual]


def test_what_is_not_described_is_named():
    with pytest.raises(LookupError, match=r"in \[columns.figure_08\] what 'weight' is"):
        dictionary.fields("figure_08", {"T": "int64", "weight": "float64"})
    with pytest.raises(LookupError, match=r"in \[columns.figure_80\] what 'forward' is"):
        dictionary.fields("figure_80", {"T": "int64", "forward": "float64"})


def test_a_table_s_own_entry_comes_first_and_endings_follow_it():
    low, high = dictionary.fields("table_1", {"speedup_values_low": "float64", "speedup_values_high": "float64"})
    assert low["means"].startswith("the smallest") and high["means"].startswith("the largest")
    whole, low = dictionary.fields("mfcc", {"seconds": "float64", "seconds_low": "float64"})
    assert "clip" in whole["means"] and low["means"] == "lower quartile, over rounds, of `seconds`"
    assert low["unit"] == whole["unit"] == "s" and low["type"] == "float64"
