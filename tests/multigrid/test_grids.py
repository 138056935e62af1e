import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa_nb import multigrid
from bppsa_nb.multigrid.grids import check_levels, hierarchy


@given(st.integers(1, 300), st.integers(2, 7), st.integers(1, 5))
def test_levels_nest(depth, coarsening, levels):
    levels = min(levels, check_levels(depth, coarsening, None)[1])
    grids = hierarchy(depth, coarsening, levels)
    assert len(grids) == levels
    for grid in grids:
        assert grid.points[0] == 0 and grid.points[-1] == depth
        np.testing.assert_array_equal(grid.layers, grid.points[:-1])
        np.testing.assert_array_equal(grid.gaps, np.diff(grid.points))
        mirrored = grid.reversed()
        np.testing.assert_array_equal(mirrored.points, depth - grid.points[::-1])
        # A step back crosses the same layers as the step forward, and uses the same parameters.
        np.testing.assert_array_equal(mirrored.layers, depth - mirrored.points[1:])
        np.testing.assert_array_equal(mirrored.bounds, len(grid) - grid.bounds[::-1])
    for fine, coarse in zip(grids[:-1], grids[1:], strict=True):
        np.testing.assert_array_equal(fine.points[fine.bounds], coarse.points)
        assert (np.diff(fine.bounds)[:-1] == coarsening).all()
        assert 1 <= np.diff(fine.bounds)[-1] <= coarsening
    assert grids[-1].bounds.tolist() == [0, len(grids[-1])]


@given(st.integers(1, 10**6), st.integers(2, 50))
def test_chosen_levels_leave_at_most_c_steps(depth, coarsening):
    _, levels = check_levels(depth, coarsening, None)
    steps = depth
    for _ in range(levels - 1):
        assert steps > coarsening
        steps = -(-steps // coarsening)
    assert steps <= coarsening
    deeper = levels + (steps > 1)
    assert check_levels(depth, coarsening, deeper) == (coarsening, deeper)
    with pytest.raises(ValueError, match=f"levels must be at most {deeper} "):
        check_levels(depth, coarsening, deeper + 1)


@given(st.integers(1, 500), st.integers(1, 9), st.integers(2, 5), st.integers(1, 4))
def test_partition(depth, ranks, coarsening, levels):
    unit = coarsening ** (levels - 1)
    try:
        parts = multigrid.partition(depth, ranks, coarsening, levels)
    except ValueError:
        assert ranks > -(-depth // unit) or coarsening ** (levels - 2) >= depth
        return
    assert len(parts) == ranks
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == depth
    assert all(part.start % unit == 0 for part in parts)
    units = [-(-(part.stop - part.start) // unit) for part in parts]
    assert min(units) >= 1 and max(units) - min(units) <= 1
