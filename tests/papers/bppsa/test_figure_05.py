import numpy as np

from bppsa_nb.papers.bppsa import figure_05
from bppsa_nb.papers.progress import Progress


def measure():
    return figure_05.measure("quick", np.random.default_rng(0), Progress(show=False))


def by_operator(table):
    return {operator: figure_05.kinds(rows) for operator, rows in table.groupby("operator", sort=False)}


def test_kinds_of_zeros_survive_the_table():
    from bppsa_nb import sparse

    found = by_operator(measure())
    assert tuple(found) == figure_05.OPERATORS
    for kinds, (_, matrix) in zip(found.values(), figure_05.matrices(np.random.default_rng(0)), strict=True):
        np.testing.assert_array_equal(kinds, sparse.kinds_of_zeros(matrix))


def test_what_the_alt_text_says_is_there():
    found = by_operator(measure())
    assert [kinds.shape for kinds in found.values()] == [(32, 48), (32, 8), (32, 32)]
    assert set(np.unique(found["Convolution"])) == {0, 2}
    assert (np.count_nonzero(found["Max-pooling"] == 2, axis=0) == 1).all()
    assert (np.count_nonzero(found["Max-pooling"] == 1, axis=0) == 3).all()
    diagonal = np.diag(found["ReLU"])
    assert set(diagonal) == {1, 2} and np.count_nonzero(found["ReLU"]) == 32


def test_every_kind_has_its_color():
    from matplotlib.colors import to_rgb

    table = measure()
    fig = figure_05.plot(table)
    for ax, kinds in zip(fig.axes, by_operator(table).values(), strict=True):
        (image,) = ax.images
        np.testing.assert_array_equal(image.get_array(), kinds)
        drawn = image.to_rgba(kinds)[..., :3]
        for kind, (color, _) in figure_05.KINDS.items():
            np.testing.assert_allclose(drawn[kinds == kind], np.broadcast_to(to_rgb(color), drawn[kinds == kind].shape))
    assert [text.get_text() for text in fig.legends[0].get_texts()] == [label for _, label in figure_05.KINDS.values()]
