"""Barriers of a whole grid: they order all its blocks, and nothing else."""

import numpy as np
import pytest

import warpwatch

pytest.importorskip("numba_cuda", reason="needs a CUDA compiler")
from numba import cuda


@cuda.jit
def turn(x, y, steps, missing):
    grid, i = cuda.cg.this_grid(), cuda.grid(1)
    for _ in range(steps):
        y[i] = x[(i + 37) % x.size] + 1
        if missing != 1:
            grid.sync()
        x[i] = 2 * y[(i + 91) % x.size]
        if missing != 2:
            grid.sync()


@cuda.jit
def leave(x, most):
    grid, i = cuda.cg.this_grid(), cuda.grid(1)
    if i < most:
        x[i] = i
        grid.sync()
        x[most - 1 - i] += 1


def turned(size, steps):
    x = np.arange(float(size))
    for _ in range(steps):
        x = 2 * np.roll(np.roll(x, -37) + 1, -91)
    return x


@pytest.mark.parametrize(("blocks", "threads"), [(1, 64), (8, 32), (3, 100), (600, 128)])
def test_a_barrier_of_the_grid_orders_its_blocks(blocks, threads):
    x = np.arange(float(blocks * threads))  # of the last, more than run at once otherwise
    report = warpwatch.assert_clean(turn, blocks, threads, x, np.zeros_like(x), 3, 0)
    np.testing.assert_array_equal(x, turned(x.size, 3))
    assert report.counters["barriers"] == 6


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("blocks", [1, 8])
def test_without_one_of_them_there_are_races(blocks, missing):
    x = np.arange(64.0 * blocks)
    found = warpwatch.run(turn, blocks, 64, x, np.zeros_like(x), 3, missing).findings
    assert {each.kind for each in found} == {"race"} and {each.array for each in found} <= {"x", "y"}


def test_threads_may_return_but_no_whole_block():
    x = np.zeros(96)
    assert warpwatch.run(leave, 3, 32, x, 80).findings == [] and x[:80].tolist() == [n + 1.0 for n in range(80)]
    (found,) = warpwatch.run(leave, 3, 32, x, 60).findings
    assert found.kind == "barrier" and "for block 2, of which no thread comes" in found.message


def test_what_was_done_before_a_barrier_of_the_grid_still_races_with_other_streams():
    @cuda.jit
    def early(x):
        x[cuda.grid(1)] = 1
        cuda.cg.this_grid().sync()

    @cuda.jit
    def late(x, out):
        out[cuda.grid(1)] = x[cuda.grid(1)]

    with warpwatch.device(watch=True):
        x, (a, b) = cuda.to_device(np.zeros(64)), (cuda.stream(), cuda.stream())
        early[2, 32, a](x)
        with pytest.raises(AssertionError, match=r"reads x\[0\], which early on stream \d+ .* writes"):
            late[2, 32, b](x, cuda.device_array(64))
        late[2, 32, b](cuda.to_device(np.zeros(64)), x2 := cuda.device_array(64))
        with pytest.raises(AssertionError, match=r"writes x\[0\], which late on stream \d+ .* writes"):
            early[2, 32, a](x2)  # which knows, before and after its barrier, of whom it does not wait for
