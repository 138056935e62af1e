"""What the experiments on the GRU's variants make of times; the times themselves are not tested."""

from types import SimpleNamespace

import numpy as np
import pytest
from measuring import measure

from bppsa_nb.graphs import variants
from bppsa_nb.papers import experiments, timing
from bppsa_nb.papers.gru import gru_variants, small_products


@pytest.fixture
def tiny(monkeypatch):
    for name, value in {"SIZES": (8, 16), "STEPS": 2, "SECONDS": 0.0}.items():
        monkeypatch.setattr(gru_variants, name, {"quick": value})
    small = {"SIZES": (2, 4, 8, 16, 32), "BATCHES": (1, 2, 3, 4), "COMPARED": (2, 3, 4), "SECONDS": {"quick": 0.0}}
    for name, value in (small | {"LARGE": {"matrix": 16, "vector": 1000}}).items():
        monkeypatch.setattr(small_products, name, value)


def test_all_variants_are_timed_in_the_same_rounds():
    rows = gru_variants.time_point({"T": 2, "B": 3, "H": 4}, np.random.default_rng(0), variants.NAMES, 0)
    assert [row["variant"] for row in rows] == list(variants.NAMES)
    assert {row["rounds"] for row in rows} == {3}
    assert rows[0]["relative_low"] == rows[0]["relative"] == rows[0]["relative_high"] == 1
    for row in rows:
        assert row["forward"] > 0 and row["backward"] > 0
        for quantity in ("seconds", "relative"):
            assert row[f"{quantity}_low"] <= row[quantity] <= row[f"{quantity}_high"]


def test_relative_time_is_compared_within_a_round(monkeypatch):
    """A moment in which the machine is ten times slower meets all four, and changes no ratio."""
    takes = dict(zip(variants.NAMES, (8, 6, 4, 2), strict=True))
    now, calls = [0.0], []

    def spend(name):
        slow = 10 if (len(calls) - 1) // 4 == 2 else 1  # the third round, of which the first warms up
        now[0] += slow * takes[name] / 2

    def forward(name, *arguments):
        calls.append(name)
        spend(name)

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(variants, "forward", forward)
    monkeypatch.setattr(variants, "backward", lambda *arguments: spend(calls[-1]))
    rows = gru_variants.time_point({"T": 1, "B": 1, "H": 1}, np.random.default_rng(0), variants.NAMES, 0)
    assert [row["relative"] for row in rows] == [1, 0.75, 0.5, 0.25]
    assert [row["relative_high"] for row in rows] == [row["relative_low"] for row in rows] == [1, 0.75, 0.5, 0.25]
    assert [row["seconds"] for row in rows] == [8, 6, 4, 2]
    assert [row["forward"] for row in rows] == [row["backward"] for row in rows] == [4, 3, 2, 1]
    assert rows[0]["seconds_high"] > 40


STEPS = [("original", 9, 4, 44, 18, 4), ("concatenated", 4, 4, 30, 18, 4)]
STEPS += [("moved", 3, 2, 30, 19, 4), ("saved", 2, 2, 31, 18, 5)]


@pytest.mark.parametrize("variant, products, serial, launches, multiply_adds, kept", STEPS)
def test_what_a_step_takes(variant, products, serial, launches, multiply_adds, kept):
    expected = {"products": products, "serial": serial, "launches": launches}
    assert gru_variants.count_step(variant) == expected | {"multiply_adds": multiply_adds, "kept": kept}
    for number in expected.values():
        assert str(number) in experiments.said_of(experiments.table("gru_variants"))["alt"]


def test_all_sizes_and_variants_are_measured(tiny):
    timed = {32: ("original", "saved"), 64: ("original", "saved"), 128: variants.NAMES}
    expected = [[B, H, name] for B, names in timed.items() for H in (8, 16) for name in names]
    assert measure(gru_variants)[["B", "H", "variant"]].values.tolist() == expected


def test_small_products_has_limits_on_every_row(tiny):
    table = measure(small_products)
    assert table[["threads", "H", "B"]].values.tolist() == [
        *(["one", H, B] for H in (2, 4, 8, 16, 32) for B in (1, 2, 3, 4)),
        *(["all", H, B] for H in (2, 4, 8, 16, 32) for B in (2, 3, 4)),
    ]
    assert (table[["peak", "bandwidth", "launch", "seconds", "ratio"]] > 0).all(axis=None)
    assert (table[["peak", "bandwidth", "launch"]].nunique() == 1).all()


def test_calls_take_turns():
    calls = []
    times = timing.take_turns([lambda: calls.append("one"), lambda: calls.append("three")], 0, rounds=(5, 1000))
    assert times.shape == (5, 2) and (times >= 0).all()
    assert calls == ["one", "three"] * 6  # a round to warm up, then five
    assert len(timing.take_turns([lambda: None], 1000, rounds=(1, 4))) == 4


def test_what_small_products_makes_of_seconds(tiny, monkeypatch):
    took = np.array([[1, 3], [2, 4], [2, 8]])
    monkeypatch.setattr(small_products, "take_turns", lambda runs, *how: took[:, : len(runs)])
    found = small_products.time_product({"threads": "one", "H": 4, "B": 2}, np.random.default_rng(0), 0)
    assert found == {"seconds": 2, "ratio": 3, "ratio_low": 2.5, "ratio_high": 3.5}
    found = small_products.limits(np.random.default_rng(0))
    assert found == pytest.approx({"peak": 2 * 16**3 / 1e9, "bandwidth": 4 * 1000 / 1e9, "launch": 1})
