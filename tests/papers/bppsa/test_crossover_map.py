import numpy as np
import pandas
import pytest
from matplotlib.colors import to_rgb
from measuring import measure

from bppsa_nb import explain
from bppsa_nb.machine import backends
from bppsa_nb.papers.bppsa import crossover_map, iterations
from bppsa_nb.papers.figures import COLORS


@pytest.fixture
def table(monkeypatch):
    """Measure tiny sizes, a single round each, on backends that are everywhere."""
    monkeypatch.setattr(backends, "resolve", lambda backend: "cpu" if backend == "auto" else backend)
    grid, most = ((3, 8), (1, 2), (4,)), 4 * 8 * 1 * 4 * 4
    return measure(crossover_map, GRID={"quick": grid}, STORED={"quick": most}, SECONDS={"quick": 0.0})


def test_every_method_is_timed_where_it_fits(table):
    assert set(table["backend"]) == {"numpy", "cpu"} and (table["seconds"] > 0).all()
    methods = table.groupby(["T", "B"])["method"].unique()
    assert all(list(methods[point]) == ["linear", "chunked", "blelloch"] for point in ((3, 1), (3, 2), (8, 1)))
    assert list(methods[8, 2]) == ["linear", "chunked"]


def test_what_auto_takes_is_what_explain_says(table):
    for (backend, T, B), rows in table.groupby(["backend", "T", "B"]):
        assert rows.loc[rows["taken"], "method"].tolist() == [explain(T, B, 4, backend=backend, weights=1).method]


def made(**points):
    """Make a table of one backend and state size from times in the order of METHODS, the one that is taken marked."""
    rows = []
    for name, (times, taken) in points.items():
        T, B = map(int, name[1:].split("_"))
        for method, seconds in zip(crossover_map.METHODS, times, strict=False):
            place = {"backend": "cpu", "H": 4, "T": T, "B": B, "method": method}
            rows.append(place | {"seconds": seconds, "taken": method == taken})
    return pandas.DataFrame(rows)


def example():
    return made(
        p3_1=((1.0, 3.0, 2.0), "linear"), p3_2=((5.0, 4.8, 9.0), "linear"),
        p8_1=((4.0, 2.0), "linear"), p8_2=((7.0, 6.0, 1.0), "chunked"),
    )


def test_winners_lead_the_runner_up():
    won = crossover_map.winners(example()).set_index(["T", "B"])
    assert won["winner"].tolist() == ["linear", "chunked", "chunked", "blelloch"]
    np.testing.assert_allclose(won["lead"], [2, 5 / 4.8, 2, 6])
    np.testing.assert_allclose(won["regret"], [1, 5 / 4.8, 2, 6])


def test_a_method_that_did_not_compete_was_no_good_choice():
    won = crossover_map.winners(made(p3_1=((1.0, 3.0), "blelloch")))
    assert won["regret"].tolist() == [np.inf]


def test_the_map_shows_winner_lead_draw_and_regret():
    fig = crossover_map.plot(example())
    (ax,) = fig.axes
    texts = {text.get_position(): text.get_text() for text in ax.texts}
    assert texts == {(0, 0): "2", (0, 1): "1.04", (1, 0): "2", (1, 1): "6"}
    cells = {patch.get_xy(): patch for patch in ax.patches if patch.get_width() == 1}
    shown = {(x + 0.5, y + 0.5): patch for (x, y), patch in cells.items()}
    for place, method in {(0, 0): "linear", (0, 1): "chunked", (1, 0): "chunked", (1, 1): "blelloch"}.items():
        assert shown[place].get_facecolor()[:3] == to_rgb(COLORS[method])
    assert shown[0, 1].get_facecolor()[3] < 0.5 < shown[1, 0].get_facecolor()[3]  # a draw is pale
    frames = [patch.get_center() for patch in ax.patches if patch.get_width() < 1]
    np.testing.assert_allclose(sorted(map(tuple, frames)), [(1, 0), (1, 1)], atol=1e-9)


def test_the_chain_is_that_of_a_network():
    chain = iterations.rnn_chain(5, 2, 3, np.random.default_rng(0))
    assert chain.shape == (5, 2, 3) and chain.carry is None
    assert chain.dtype == np.float32 and ((chain.slopes > 0) & (chain.slopes <= 1)).all()
