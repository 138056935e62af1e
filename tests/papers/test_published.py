import hashlib
import re

import numpy as np
import pytest
from texts import beside

from bppsa_nb.machine import files
from bppsa_nb.papers import tables
from bppsa_nb.papers.bppsa import epochs

PAPER = files.root() / "data" / "paper"


@pytest.mark.parametrize("name, key, expected", beside(__file__)["ratios"])
def test_ratios_are_those_of_the_printed_tables(name, key, expected):
    table = epochs.breakdown(tables.published(name))
    row = table[np.all([table[column] == value for column, value in key.items()], axis=0)]
    found = row.filter(["overall", "backward", "overhead"]).to_numpy()
    assert found == pytest.approx(np.array([eval(expected)]), rel=1e-9)


def test_tables_say_where_they_come_from():
    about = {name: tables.published(name).attrs for name in ("table_1", "table_4", "table_5", "table_6")}
    assert about["table_1"]["cpu"] == "AMD Ryzen Threadripper 1950X"
    assert all(said["gpu"] == "NVIDIA V100" for name, said in about.items() if name != "table_1")
    assert all(said["table"] == int(name[-1]) for name, said in about.items())


def test_every_epoch_takes_longer_the_more_it_does():
    for name in ("table_4", "table_5", "table_6"):
        table = tables.published(name)
        steps = ["forward", *(["forward_overhead"] if name == "table_6" else []), "bppsa", "baseline"]
        assert (table[steps].diff(axis=1).iloc[:, 1:] > 0).all().all() and not table.isna().any().any()


def test_table_3_is_what_the_features_are_made_from():
    from bppsa_nb.training.datasets.audio import FEATURES

    for row in tables.published("table_3").to_dict("records"):
        features = FEATURES[row["features"]]
        for name in ("coefficients", "window", "hop", "frames", "size"):
            assert getattr(features, name) == row[name]


def test_checksums_in_the_readme_are_those_of_the_files():
    readme = (PAPER.parent / "README.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"`paper/(\S+)` \| `([0-9a-f]{64})`", readme))
    assert said == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in PAPER.glob("*.csv")}
