"""Who did what: stores and products by block and thread, and masks of shuffles."""

import numpy as np
import pytest
from helpers import more

from warpwatch.launch import launch

pytest.importorskip("numba_cuda", reason="needs a CUDA compiler: the gpu extra")
from numba import cuda, float64


def who(kernel, grid, block, *arguments):
    """Launch, and return the report, whose rows of `stores` are tuples."""
    report = launch(kernel, grid, block, arguments, watch="stores")
    report.stores = {name: list(map(tuple, rows.tolist())) for name, rows in report.stores.items()}
    return report


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


@pytest.mark.parametrize("how", range(3))
@pytest.mark.parametrize("grid, block", [((3, 2), (4, 5)), ((1, 1), (33, 1)), more((70, 2), (512, 1))])
def test_stores_are_told_by_element_block_and_thread(how, grid, block):
    rng, (rows, columns) = np.random.default_rng(how), (7, 11)
    blocks, threads = np.prod(grid), np.prod(block)  # of the last, more than run at once
    places = rng.integers(-20, rows * columns, (blocks * threads, 2))
    wanted = {(int(p), n // threads, n % threads) for n, each in enumerate(places) for p in each if p >= 0}
    made = who(scatter, grid, block, places, np.zeros((rows, columns)), np.zeros(rows * columns, complex), how).stores
    assert made.pop("more" if how == 2 else "out") == sorted(wanted)
    assert all(rows == [] for rows in made.values()) and len(made) == 2


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
    report = launch(powers, blocks, threads, [times, np.zeros(blocks * threads)], watch="stores")
    assert (report.work == 2 * times).all()
    assert (report.stores["out"] == np.stack([np.arange(len(times)), *divmod(np.arange(len(times)), threads)], 1)).all()


DID = ["shuffles", "votes", "matches", "waits for others"]


@cuda.jit
def ask(how, mask, here, gone, out):
    t = cuda.threadIdx.x
    if gone >> t & 1:
        return
    if here >> t & 1:
        if how == 0:
            out[t] = cuda.shfl_sync(mask, out[t], t)
        elif how == 1:
            out[t] = cuda.ballot_sync(mask, t > 3)
        elif how == 2:
            out[t] = cuda.match_any_sync(mask, t)
        else:
            cuda.syncwarp(mask)
    out[t] += 1


@pytest.mark.parametrize("seed", range(12))
def test_masks_name_who_comes(seed):
    """All that come, and nobody who is busy elsewhere; who has ended may be named.

    A barrier waits for nobody who has ended in the meantime: that is a note, as Numba's own reductions do it.
    """
    rng = np.random.default_rng(seed)
    here, gone, ended, flip = (int(rng.integers(1, 1 << 32)) for _ in range(4))
    here &= ~gone
    mask = here | gone & ended if seed % 3 == 0 else here & ~flip if seed % 3 == 1 else here | flip
    out, did = np.zeros(32, "i4"), f"{DID[seed % 4]} with a mask, {mask:#x}, that"
    report = who(ask, 1, 32, np.int64(seed % 4), *(np.int64(each) for each in (mask, here, gone)), out)
    left_out, elsewhere = here & ~mask, mask & ~here & ~gone
    found, waits = report.findings, seed % 4 == 3
    assert [each.kind for each in found] == ["mask"] * bool(left_out | (0 if waits else elsewhere))
    assert [each.kind for each in report.notes] == ["mask"] * bool(waits and elsewhere)
    assert all("has passed by, and returned" in each.message for each in report.notes)
    if left_out:
        assert found[0].message == f"{did} leaves out its own lane"
        assert found[0].thread == (left_out & -left_out).bit_length() - 1 and found[0].count == left_out.bit_count()
    elif elsewhere and not waits:
        lane = (elsewhere & -elsewhere).bit_length() - 1
        assert found[0].message == f"{did} names lane {lane}, which is elsewhere"
        assert found[0].count == here.bit_count()


def test_a_lane_of_another_tile_is_not_there():
    @cuda.jit
    def across(x):
        t = cuda.threadIdx.x
        x[t] = cuda.shfl_xor_sync(0xFF << (t & ~7), x[t], 8)

    x = np.arange(32, dtype="i4")
    (told,) = (report := who(across, 1, 32, x)).notes  # for it may be thrown away
    assert report.findings == [] and x.tolist() == [t ^ 8 for t in range(32)]
    assert (told.kind, told.thread, told.other, told.count) == ("shuffle", 0, (0, 8), 32)
