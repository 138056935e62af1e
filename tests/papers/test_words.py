"""Every reference is read, described and drawn; what its words say is read from its table.

What is drawn, and the numbers in words, are held against digests in `<paper>/drawn.csv`. Where a change is meant,
`python tests/papers/test_words.py` writes them anew.
"""

import csv
import hashlib
import re
import types
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas
import pytest

from bppsa_nb.papers import experiments, figures, text

with experiments.references():
    REFERENCES = [(name, *each) for name in experiments.names() for each in experiments.recordings(name)]


def digests(name, device, scale):
    """Return the paper of a reference, and digests of all that its figure holds, and of the numbers in its words."""
    module = experiments.load(name)
    with experiments.references():
        table = experiments.table(name, scale, device)
    words = experiments.words(table)
    for said in words.values():
        assert len(said.split()) > 5 and not {"nan", "None"} & set(said.split()) and not set("{}") & set(said)
    with plt.rc_context():
        figures.style()
        fig = module.plot(table)
        held = [part for ax in fig.axes for part in _held(ax)]
        plt.close(fig)
    assert fig.axes and held
    numbers = [re.findall(r"\d[\d.,]*", said) for said in words.values()]
    found = (hashlib.sha256(repr(each).encode()).hexdigest()[:12] for each in (held, numbers))
    return module.__name__.split(".")[2], *found


def _held(ax):
    """Yield what is drawn into axes, rounded, in the data's coordinates."""
    yield [ax.get_title(where) for where in ("left", "center", "right")], ax.get_xlabel(), ax.get_ylabel()
    yield from (text.get_text() for text in ax.texts)
    for artist in [*ax.lines, *ax.patches, *ax.collections, *ax.images]:
        if hasattr(artist, "get_xydata"):
            arrays = [artist.get_xydata()]
        elif hasattr(artist, "get_array") and artist.get_array() is not None:
            arrays = [artist.get_array()]
        elif hasattr(artist, "get_paths"):
            arrays = [path.vertices for path in artist.get_paths()] + [artist.get_offsets()]
        else:
            arrays = [artist.get_path().vertices, artist.get_patch_transform().get_matrix()]
        yield type(artist).__name__, [f"{number:.4g}" for array in arrays for number in np.ma.filled(array, 0.0).flat]


def _recorded():
    """Return the digests that were recorded, by experiment, device and scale."""
    paths = Path(__file__).parent.glob("*/drawn.csv")
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return {tuple(row[:3]): tuple(row[3:]) for row in csv.reader(lines)}


FIRST = {name: each for name, *each in reversed(REFERENCES)}


@pytest.mark.parametrize(
    "name, device, scale",
    [pytest.param(*each, marks=[] if FIRST[each[0]] == [*each[1:]] else pytest.mark.outer) for each in REFERENCES],
)
def test_every_reference_is_read_described_and_drawn(name, device, scale):
    _, drawn, numbers = digests(name, device, scale)
    assert (drawn, numbers) == _recorded()[name, device, scale], "is it meant? python tests/papers/test_words.py"


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
        ("{seconds[T=10]:list .0f ms}", "2 and 1 ms"), ("{seconds[T=max, method=tree]:.2f}", "0.10"),
        ("{seconds[T<=10]:sum .0f ms}; {seconds[method!=tree, T>10]}", "3 ms; 0.4"),
        ("{seconds[method=loop/tree]:.2g}", "2 to 4"), ("{1/seconds[T=10]:max .0f}, {error/seconds:max}", "1000, 1"),
        ("{error:min .1e}, {error[T=max]:min +.1f points}", "−2.0e-03, −0.2 points"),
        ("{T:values}, {T:nunique} of {T:max ,}; {method}", "10 and 1000, 2 of 1,000; loop and tree"),
        ("{method[found=False]:as LABELS} of {H:02d}, {rate:.0e}", "the tree of 08, 1e-05"),
        ("{loop by T:;} | {tree by T:and}", "2 ms; 400 ms | 1 ms on 10 and 100 ms on 1000"),
        ("{ends}, {slow.seconds:max .1f}, {slow by T, method of slow}", "3 to 4, 0.4, 1000 loop"),
        ("{twice[T=10]:max .3f}, {twice by T}, {names[loop]}", "0.004, 0.004, 0.800, a loop"),
        ("{tree.seconds:count} of {seconds:count}, {rest by T of tree:and}", "2 of 4, 0.001 and 0.1"),
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
    module.tree = lambda table: table[table["method"] == "tree"]
    groups |= {"rest by T of tree": "{seconds}", "twice by T": "{twice:max .3f}"}
    groups["slow by T, method of slow"] = "{T} {method}"
    monkeypatch.setattr(text, "entry", lambda module: {"caption": template} | groups)
    assert text.fill(module, TOY, "caption") == said


def test_numbers_in_words():
    assert text.span(np.array([0.812, 0.5, 1.25]), "{:.1f}") == "0.5 to 1.2"
    assert text.span(pandas.Series([0.51, np.nan, 0.52]), "{:.1f}") == "0.5"
    assert [text.listed(list(words)) for words in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]


if __name__ == "__main__":
    rows = {}
    for each in REFERENCES:
        paper, *found = digests(*each)
        rows.setdefault(paper, []).append([*each, *found])
    for paper, lines in rows.items():
        with (Path(__file__).parent / paper / "drawn.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
