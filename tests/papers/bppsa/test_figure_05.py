import numpy as np
from measuring import measure

from bppsa_nb import sparse
from bppsa_nb.papers.bppsa import figure_05


def test_kinds_of_zeros_survive_the_table_and_are_drawn():
    table = measure(figure_05)
    found = {operator: figure_05.kinds(rows) for operator, rows in table.groupby("operator", sort=False)}
    fig, matrices = figure_05.plot(table), figure_05.matrices(np.random.default_rng(0))
    assert list(found) == list(matrices)
    for ax, kinds, (_, matrix) in zip(fig.axes, found.values(), matrices.values(), strict=True):
        np.testing.assert_array_equal(kinds, sparse.kinds_of_zeros(matrix))
        np.testing.assert_array_equal(ax.images[0].get_array(), kinds)
    # What the alt text says is there.
    assert [kinds.shape for kinds in found.values()] == [(32, 48), (32, 8), (32, 32)]
    assert set(np.unique(found["Convolution"])) == {0, 2}
    assert (np.count_nonzero(found["Max-pooling"] == 2, axis=0) == 1).all()
    assert (np.count_nonzero(found["Max-pooling"] == 1, axis=0) == 3).all()
    assert set(np.diag(found["ReLU"])) == {1, 2} and np.count_nonzero(found["ReLU"]) == 32
