"""Every reference is read, described and drawn.

What is drawn, and the numbers in words, are held against `<paper>/drawn.csv`: for each figure its axes, with the number
of marks and what range they take, and for its words the numbers by field. Where a change is meant,
`python tests/papers/test_drawn.py` writes them anew.
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from bppsa_nb.papers import experiment, experiments, figures, words

with experiments.references():
    REFERENCES = [(name, *each) for name in experiments.names() for each in experiments.recordings(name)]


def described(name, device, scale):
    """Return rows of what a reference's figure holds and its words say; each begins with its name, device and scale."""
    module, rows = experiments.load(name), []
    with experiments.references():
        table = experiments.table(name, scale, device)
    facts = experiment.facts(module, table)
    for what in ("caption", "alt"):
        said, numbers = words.fill(getattr(module.FIGURE, what), facts, module.FIGURE.phrases)
        assert len(said.split()) > 5 and not {"nan", "None"} & set(said.split()) and not set("{}") & set(said)
        rows += [(what, " ".join(map(str, field)), *map("{:.6g}".format, each)) for field, each in numbers.items()]
    with plt.rc_context():
        figures.style()
        fig = module.plot(table)
        drawn = [_held(ax) for ax in fig.axes]
        plt.close(fig)
    assert any(marks for _, marks, *_ in drawn)
    return module.__name__.split(".")[2], [(name, device, scale, *map(str, row)) for row in [*rows, *drawn]]


def _held(ax):
    """Return the title of axes, how many marks they have, and from where to where these go."""
    artists = [*ax.lines, *ax.patches, *ax.collections]
    points = [np.reshape(each, (-1, 2)) for artist in artists for each in _places(artist)]
    images = [artist.get_array() for artist in ax.images]
    placed = np.concatenate([*points, np.empty((0, 2))])
    placed = placed[np.isfinite(placed).all(axis=1)]
    ends = np.concatenate([placed.min(axis=0), placed.sum(axis=0), placed.max(axis=0)]) if len(placed) else []
    ends = [f"{value:.4g}" for value in [*ends, *(np.ma.filled(image, 0.0).sum() for image in images)]]
    title = " ".join(filter(None, (ax.get_title(where) for where in ("left", "center", "right"))))
    return " ".join(title.split()), len(placed) + len(images) + len(ax.texts), *ends


def _places(artist):
    """Yield where an artist has marks, in the data's coordinates."""
    if hasattr(artist, "get_xydata"):
        yield np.ma.filled(artist.get_xydata(), np.nan)
    elif hasattr(artist, "get_paths"):
        yield from (path.vertices for path in artist.get_paths())
        yield np.ma.filled(artist.get_offsets(), np.nan)
    else:
        yield artist.get_patch_transform().transform(artist.get_path().vertices)


def _recorded():
    """Return the rows that were recorded, by experiment, device and scale."""
    found = {}
    for path in Path(__file__).parent.glob("*/drawn.csv"):
        for row in csv.reader(path.read_text(encoding="utf-8").splitlines()):
            found.setdefault(tuple(row[:3]), []).append(tuple(row))
    return found


RECORDED, FIRST = _recorded(), {name: each for name, *each in reversed(REFERENCES)}


@pytest.mark.parametrize(
    "name, device, scale",
    [pytest.param(*each, marks=[] if FIRST[each[0]] == [*each[1:]] else pytest.mark.outer) for each in REFERENCES],
)
def test_every_reference_is_read_described_and_drawn(name, device, scale):
    _, rows = described(name, device, scale)
    assert rows == RECORDED[name, device, scale], "is it meant? python tests/papers/test_drawn.py"


def test_there_is_nothing_of_references_that_are_gone():
    assert set(RECORDED) == set(REFERENCES)


if __name__ == "__main__":
    by_paper = {}
    for reference in REFERENCES:
        paper, rows = described(*reference)
        by_paper.setdefault(paper, []).extend(rows)
    for paper, rows in by_paper.items():
        with Path(__file__).with_name(paper).joinpath("drawn.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
