from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color

from bppsa_nb import schedule
from bppsa_nb.papers import figures
from bppsa_nb.papers.figures import COLORS
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule import draw
from bppsa_nb.schedule.events import Event
from bppsa_nb.schedule.events import scan_schedule as list_schedule

METHODS = [("linear", None), ("blelloch", None), ("hillis_steele", None), ("truncated", 1)]


@pytest.fixture(autouse=True)
def _close():
    with plt.rc_context():
        figures.style()
        yield


def lines(ax):
    """All lines of a tree, as (color name, dashed)."""
    found = []
    for each in ax.collections:
        if isinstance(each, LineCollection):
            for color, (_, dashes) in zip(each.get_colors(), each.get_linestyles(), strict=True):
                role = next((role for role in ("matrix", "vector") if same_color(color, COLORS[role])), "move")
                found.append((role, dashes is not None))
    return found


def boxes(texts, ax):
    ax.figure.draw_without_rendering()
    return [text.get_window_extent() for text in texts if text.get_text()]


@pytest.mark.parametrize("method, k", METHODS)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 7, 8, 20])
def test_tree_draws_every_product_and_every_move(method, k, n):
    run = trace(n, method, k)
    found = lines(draw.tree(run))
    assert found.count(("matrix", False)) == 2 * run.mm
    assert found.count(("vector", False)) == 2 * run.mv
    assert found.count(("move", True)) == len(found) - 2 * run.work >= sum(len(level.moves) for level in run.levels)


def test_tree_says_what_stands_where():
    ax = draw.tree(trace(2, "blelloch"))
    assert [text.get_text() for text in ax.texts] == [
        *("0", "1", "2"),  # inputs
        *("0:1",),
        *("I",),  # put at the array's end
        *("I", "0:1", "0:2"),
        *("I", "0", "0:1", "0:2"),
        *("$I$", r"$\nabla x_{2}$", r"$\nabla x_{1}$", r"$\nabla x_{0}$"),
    ]
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["inputs", "1. up-sweep, $d=0$", "2. down-sweep, $d=1$", "3. down-sweep, $d=0$"]
    below = [label.get_text() for label in ax.child_axes[0].get_xticklabels()]
    assert below == [r"$\nabla x_{2}$", "$J_{2}^T$", "$J_{1}^T$"]


def test_highlighted_products_stand_out():
    run = trace(7, "blelloch")
    chain = run.critical_path()[1]
    ax = draw.tree(run, highlight=chain)
    widths = [width for each in ax.collections if isinstance(each, LineCollection) for width in each.get_linewidths()]
    assert sum(width > 3 for width in widths) == 2 * len(chain)
    assert [text.get_text() for text in ax.get_legend().get_texts()][-1] == "critical path"


@pytest.mark.parametrize("method, k", METHODS)
def test_tree_is_legible(method, k):
    ax = draw.tree(trace(7, method, k))
    assert min(text.get_fontsize() for text in ax.texts) >= 7
    written = boxes([*ax.texts, *ax.get_yticklabels(), *ax.child_axes[0].get_xticklabels()], ax)
    assert not any(a.overlaps(b) for a, b in combinations(written, 2))
    legend = ax.get_legend().get_window_extent()
    assert not any(legend.overlaps(box) for box in written)
    for box in [*written, legend]:
        assert ax.figure.bbox.x0 <= box.x0 and box.x1 <= ax.figure.bbox.x1
        assert ax.figure.bbox.y0 <= box.y0 and box.y1 <= ax.figure.bbox.y1


def bars(ax):
    """All bars of a timeline: left, top, right and bottom end in the units of the axes."""
    (collection,) = ax.collections
    corners = np.array([path.vertices[:4] for path in collection.get_paths()]).reshape(-1, 4, 2)
    return np.concatenate([corners.min(1), corners.max(1)], axis=1)


def fills(ax):
    return ax.collections[0].get_facecolors().tolist()


def fits(text, bar, ax):
    """Whether a text is within its bar, drawn."""
    box = text.get_window_extent()
    (x0, y0), (x1, y1) = ax.transData.transform(bar.reshape(2, 2))
    return x0 <= box.x0 and box.x1 <= x1 and min(y0, y1) <= box.y0 and box.y1 <= max(y0, y1)


def test_timeline_draws_one_bar_per_event():
    events = list_schedule(trace(20, "blelloch"), 4)
    ax = draw.timeline(events)
    wanted = [(event.start, event.worker - 0.4, event.end, event.worker + 0.4) for event in events]
    np.testing.assert_allclose(bars(ax), wanted)
    assert [same_color(fill, COLORS["matrix"]) for fill in fills(ax)] == [event.kind == "mm" for event in events]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["matrix × matrix", "matrix × vector"]
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"worker {i}" for i in range(4)]
    assert ax.yaxis_inverted()


def test_timeline_writes_only_what_fits():
    events = [Event(0, 0, 100, "long enough"), Event(0, 100, 1, "not long enough"), Event(1, 0, 50, "half of it")]
    ax = draw.timeline(events, unit="ms")
    assert [text.get_text() for text in ax.texts] == ["long enough", "half of it"]
    ax.figure.draw_without_rendering()
    assert all(fits(text, bar, ax) for text, bar in zip(ax.texts, bars(ax)[[0, 2]], strict=True))
    assert ax.get_legend() is None
    assert ax.get_xlabel() == "ms"


@pytest.mark.parametrize("layers, micro_batches, devices, width", [(8, 4, 4, 11), (12, 3, 4, 20), (2, 30, 1, 32)])
def test_labels_with_an_index_fit_their_bars(layers, micro_batches, devices, width):
    timeline = schedule.pipeline(schedule.Network.uniform(layers), devices, micro_batches, "gpipe")
    fig, ax = plt.subplots(figsize=(width, 2.6), layout="constrained")
    timeline.plot(ax)
    ax.figure.draw_without_rendering()
    assert len(ax.texts) == len(bars(ax)) == len(timeline.operations) == micro_batches * (3 * layers - 1)
    assert min(text.get_fontsize() for text in ax.texts) >= 6
    assert all(fits(text, bar, ax) for text, bar in zip(ax.texts, bars(ax), strict=True))


def test_labels_that_do_not_fit_are_left_out():
    def written(label, lanes=1, thin=(), size=(7.2, 1.6), until=None):
        ax = plt.subplots(figsize=size, layout="constrained")[1]
        events = [Event(lane, start, 1, label) for lane in range(lanes) for start in range(60)]
        return len(draw.timeline(events, ax, thin=thin, until=until).texts)

    # Of an index, only what is seen counts.
    assert written("$1_{A}$") == written("12") == 0 < written("1")
    assert written("$1_{A}$", size=(14, 1.6)) == 60 > written("123456", size=(14, 1.6)) == 0
    # Lanes may be too low.
    assert written("1", 6) == 360 and written("1", 12) == 0
    assert written("1", 6, thin=[5]) == 300
    # Time may go on after the last event.
    assert written("1", until=120) == 0


def test_timeline_of_many_events_is_one_collection():
    events = [Event(i % 64, i // 64, 1, str(i), "ab"[i % 2]) for i in range(20000)]
    ax = draw.timeline(events)
    assert len(bars(ax)) == 20000 and not ax.patches and not ax.texts
    assert max(ax.collections[0].get_linewidths()) < 0.3  # edges would hide them


def test_operations_are_labeled_as_in_the_paper_s_figure():
    assert draw.operation_label(3, 0, 1) == "3"
    assert draw.operation_label(16, 1, 4) == "$16_{B}$"
    assert draw.operation_label(2, 25, 26) == "$2_{Z}$"
    assert draw.operation_label(2, 25, 27) == "$2_{25}$"


def test_timeline_legend_covers_no_bar():
    ax = draw.timeline([Event(i, i, 1, str(i), kind) for i, kind in enumerate("abcdefgh")])
    ax.figure.draw_without_rendering()
    bottom = ax.get_legend().get_window_extent().y0
    assert ax.transData.transform(bars(ax).reshape(-1, 2))[:, 1].max() < bottom
    assert len({tuple(fill) for fill in fills(ax)}) == 8


def test_timeline_colors_and_names():
    events = [Event(0, 0, 1, "F1", "F"), Event(0, 1, 1, "W1", "dW")]
    ax = draw.timeline(events, colors={"dW": "#000000", "F": "#FFFFFF"}, names={"F": "forward"})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["dW", "forward"]
    assert [text.get_color() for text in ax.texts] == ["black", "white"]
    assert draw.timeline(events, legend=False).get_legend() is None


def test_timeline_with_named_lanes():
    events = [Event(0, 0, 2, "a"), Event(1, 1, 2, "b"), Event(2, 0, 1, "c")]
    ax = draw.timeline(events, worker=["GPU 1", "GPU 2", "link", "another link"], thin=[2, 3])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["GPU 1", "GPU 2", "link", "another link"]
    np.testing.assert_allclose(bars(ax)[:, [1, 3]], [[-0.4, 0.4], [0.6, 1.4], [1.55, 1.95]])
    np.testing.assert_allclose(ax.get_yticks(), [0, 1, 1.75, 2.25])
    assert ax.get_ylim() == pytest.approx((2.6, -0.6))


def test_timeline_with_many_workers_or_none():
    assert draw.timeline([Event(30, 0, 1, "a")]).get_ylabel() == "31 workers"
    named = draw.timeline([Event(0, 0, 1, "a")], worker=[f"GPU {i}" for i in range(17)])
    assert named.get_ylabel() == "GPU 0 to GPU 16"
    assert len(bars(draw.timeline([]))) == 0
    assert draw.timeline([Event(0, 0, 0, "takes no time")]).get_xlim() == (0, 1)
