"""Who did what in a watched launch: stores and products, by block and thread."""

import numpy as np
import pytest

from bppsa_nb.puzzles.stores import launch

pytest.importorskip("numba_cuda", reason="needs a CUDA compiler: the gpu extra")
from numba import cuda, float64

FOUR = """.version 8.0
.target sm_90
.address_size 64
.visible .entry four(.param .u64 out) {
.reg .b32 %r<2>; .reg .b64 %rd<3>;
mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 16; ld.param.u64 %rd1, [out]; add.s64 %rd1, %rd1, %rd2;
st.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1}; ret; }
"""


@cuda.jit
def scatter(places, out, more, how):
    block = cuda.blockIdx.x + cuda.gridDim.x * cuda.blockIdx.y
    t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    own, shared = cuda.local.array(2, float64), cuda.shared.array(1, float64)
    own[t % 2] = t
    if t == 0:
        shared[0] = own[0]
    for n in range(places.shape[1]):
        place = places[block * cuda.blockDim.x * cuda.blockDim.y + t, n]
        if place >= 0 and how == 0:
            out[place // out.shape[1], place % out.shape[1]] = 1.0
        elif place >= 0 and how == 1:
            cuda.atomic.add(out, (place // out.shape[1], place % out.shape[1]), 1.0)
        elif place >= 0:
            more[place] = 1 + 2j


LARGE = pytest.param((70, 2), (512, 1), marks=pytest.mark.outer)  # more than run at once


@pytest.mark.parametrize("how", range(3))
@pytest.mark.parametrize("grid, block", [((3, 2), (4, 5)), ((1, 1), (33, 1)), LARGE])
def test_stores_are_told_by_element_block_and_thread(how, grid, block):
    rng, (rows, columns) = np.random.default_rng(how), (7, 11)
    blocks, threads = np.prod(grid), np.prod(block)
    places = rng.integers(-20, rows * columns, (blocks * threads, 2))
    wanted = {(int(p), n // threads, n % threads) for n, each in enumerate(places) for p in each if p >= 0}
    out, more = np.zeros((rows, columns)), np.zeros(rows * columns, complex)
    made = launch(scatter, grid, block, (places, out, more, how)).stores
    assert list(map(tuple, made.pop("more" if how == 2 else "out").tolist())) == sorted(wanted)
    assert all(rows.shape == (0, 3) for rows in made.values()) and len(made) == 2


@cuda.jit
def powers(times, out):
    n, x = cuda.grid(1), 1.0
    for _ in range(times[n]):
        x *= 1.5
        x = x * 0.5 + out[n]
    out[n] = x


@pytest.mark.parametrize("blocks, threads", [(3, 32), (67, 1000)])  # of the last, more than run at once
def test_products_are_told_by_thread(blocks, threads):
    times = np.random.default_rng(0).integers(0, 9, blocks * threads)
    report = launch(powers, blocks, threads, [times, np.zeros(blocks * threads)])
    assert (report.work == 2 * times).all()
    assert (report.stores["out"] == np.stack([np.arange(len(times)), *divmod(np.arange(len(times)), threads)], 1)).all()


def test_stores_of_several_at_once_are_told_one_by_one():
    (rows,) = launch(FOUR, 1, 10, [np.zeros(40, "i4")]).stores.values()
    assert rows.tolist() == [[n, 0, n // 4] for n in range(40)]


def test_stores_outside_are_not_told_and_views_are_one():
    @cuda.jit
    def fill(x, out):
        out[cuda.grid(1)] = 1

    out = np.zeros(40, "i4")
    report = launch(fill, 1, 48, [out[8:], out[:32]])
    assert {finding.kind for finding in report.findings} == {"out of bounds"}
    assert report.stores["x and out"].tolist() == [[n, 0, n] for n in range(40)]


def test_what_has_no_array_stores_nothing():
    assert launch(cuda.jit(lambda n: None), 1, 64, [3]).stores == {}
