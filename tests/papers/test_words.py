"""Every reference is read, described and drawn; what is said follows from its table wherever that was measured."""

import types

import matplotlib.pyplot as plt
import numpy as np
import pandas
import pytest

from bppsa_nb.papers import experiments, figures, text

with experiments.references():
    REFERENCES = [(name, *each) for name in experiments.names() for each in experiments.recordings(name)]
REFERENCES.remove(("roofline", "cpu", "paper"))  # a benchmark's, from which the figure's is collected


def composed(name):
    """List which of an experiment's words say something of the table."""
    module = experiments.load(name)
    return [what for what in ("caption", "alt") if hasattr(module, what) or "{" in text.entry(module)[what]]


@pytest.mark.parametrize("name, device, scale", REFERENCES)
def test_every_reference_is_read_described_and_drawn(name, device, scale):
    with experiments.references():
        table = experiments.table(name, scale, device)
    for said in experiments.words(table).values():
        assert len(said.split()) > 5 and not {"nan", "None"} & set(said.split()) and not set("{}") & set(said)
    with plt.rc_context():
        figures.style()
        fig = experiments.load(name).plot(table)
    assert fig.axes and any(ax.has_data() or ax.texts or ax.tables for ax in fig.axes)
    plt.close(fig)


@pytest.mark.parametrize("name", [name for name in experiments.names() if composed(name)])
def test_words_follow_the_table(name):
    table, changed = experiments.table(name), set()
    said, rng = experiments.words(table), np.random.default_rng(0)
    for column in table.select_dtypes("number"):
        other = table.assign(**{column: table[column] * rng.uniform(2, 5, len(table)) + (table[column] == 0)})
        try:
            now = experiments.words(other)
        except (LookupError, ValueError, TypeError):  # of columns that say which row is which
            continue
        changed |= {what for what in said if now[what] != said[what]}
        if changed == set(composed(name)):
            return
    assert changed == set(composed(name))


TOY = pandas.DataFrame(
    {"method": ["loop", "tree"] * 2, "T": [10, 10, 1000, 1000], "found": [True, True, True, False]}
    | {"seconds": [0.002, 0.001, 0.4, 0.1], "error": [0.0, 1e-3, 0.0, -2e-3]}
)
TOY.attrs = {"rate": 1e-5}


@pytest.mark.parametrize(
    "template, said",
    [
        ("{seconds}", "0.001 to 0.4"),
        ("{seconds:max .1f}, {seconds:last .0%}, {seconds:median .3f}", "0.4, 10%, 0.051"),
        ("{seconds[T=10]:list .0f ms}", "2 and 1 ms"),
        ("{seconds[T=max, method=tree]:.2f}", "0.10"),
        ("{seconds[T<=10]:sum .0f ms}; {seconds[method!=tree, T>10]}", "3 ms; 0.4"),
        ("{seconds[method=loop/tree]:.2g}", "2 to 4"),
        ("{1/seconds[T=10]:max .0f}, {error/seconds:max}", "1000, 1"),
        ("{error:min .1e}, {error[T=max]:min +.1f points}", "−2.0e-03, −0.2 points"),
        ("{T:values}, {T:nunique} of {T:max ,}; {method}", "10 and 1000, 2 of 1,000; loop and tree"),
        ("{method[found=False]:as LABELS} of {H:02d}, {rate:.0e}", "the tree of 08, 1e-05"),
        ("{loop by T:;} | {tree by T:and}", "2 ms; 400 ms | 1 ms on 10 and 100 ms on 1000"),
        ("{ends}, {slow.seconds:max .1f}, {slow by T, method of slow}", "3 to 4, 0.4, 1000 loop"),
        ("{twice[T=10]:max .3f}, {twice by T}, {names[loop]}", "0.004, 0.004, 0.800, a loop"),
        ("one\ntwo", "one two"),
    ],
)
def test_templates(template, said, monkeypatch):
    module = types.ModuleType("toy")
    module.LABELS, module.H = {"loop": "a loop", "tree": ("the tree", "blue")}, 8
    module.values = lambda table: {
        "ends": [3, 4],
        "twice": 2 * table["seconds"],
        "slow": table[(table["seconds"] > 0.3)],
        "names": {"loop": "a loop"},
    }
    groups = {"loop by T": "{seconds[method=loop]:.0f ms}", "tree by T": "{seconds[method=tree]:.0f ms} on {T}"}
    groups |= {"slow by T, method of slow": "{T} {method}", "twice by T": "{twice:max .3f}"}
    monkeypatch.setattr(text, "entry", lambda module: {"caption": template} | groups)
    assert text.fill(module, TOY, "caption") == said


def test_numbers_in_words():
    assert text.span(np.array([0.812, 0.5, 1.25]), "{:.1f}") == "0.5 to 1.2"
    assert text.span(pandas.Series([0.51, np.nan, 0.52]), "{:.1f}") == "0.5"
    assert [text.listed(list(words)) for words in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
