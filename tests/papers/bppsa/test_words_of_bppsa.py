"""Times in captions: in the units that they are said to be in."""

import pytest

from bppsa_nb.chains import costs
from bppsa_nb.papers import experiments


@pytest.fixture(autouse=True)
def references():
    with experiments.references():
        yield


def said(table):
    return experiments.words(table)["caption"]


def test_milliseconds_of_an_iteration():
    table = experiments.table("figure_07")
    first = table[table["backend"] == table["backend"].iloc[0]]
    linear, blelloch = (first[f"seconds_{method}"].median() for method in ("linear", "blelloch"))
    assert f"takes {1e3 * linear:.2g} ms by BPTT and {1e3 * blelloch:.2g} ms by BPPSA." in said(table)


def test_microseconds_of_a_step_and_of_a_launch():
    table = experiments.table("predicted_gpu")
    forward = table[(table["source"] == "predicted") & (table["part"] == "forward")].sort_values("T").iloc[-1]
    step = 1e6 * forward["seconds"] / forward["T"]
    assert f"({step:.2g} µs a step forward)" in said(table)
    assert f"{1e6 * costs.LAUNCH:.0f} µs a launch" in said(table)
    times = table[(table["source"] == "predicted") & (table["table"] == "table_4") & (table["T"] >= 1000)]
    loop, chunks = (times.loc[times["part"] == part, "seconds"].to_numpy() for part in ("linear", "chunked"))
    assert f"{min(loop / chunks):.2g} to {max(loop / chunks):.2g} times as fast" in said(table)


def test_seconds_of_an_epoch():
    table = experiments.table("eighty_epochs")
    rows = table.groupby(["method", "seed"])["seconds"].median().groupby("method").median()
    epoch = [f"{rows[method] * 32000 / 16 / 1000:.3g} s by" for method in ("linear", "chunked", "blelloch")]
    assert "An epoch took {} BPTT, {} chunks and {} levels here".format(*epoch) in said(table)
    assert "on the paper's V100, 53.33 s by BPTT (cuDNN) and 29.29 s by BPPSA (Table 4)" in said(table)
    table = experiments.table("four_hundred_epochs")
    rows = table[table["features"] == "S"].groupby(["method", "seed"])["seconds"].median().groupby("method").median()
    assert f"An epoch took {rows['linear'] / 10:.2g} and {rows['chunked'] / 10:.2g} s on S, " in said(table)
    assert "3.71 and 2.94 s, 6.19 and 4.2 s and 11.43 and 6.91 s by BPTT (cuDNN)" in said(table)
