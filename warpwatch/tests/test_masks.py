"""What lanes of a warp do together, with masks that name others: who is left out, elsewhere or gone."""

import numpy as np
import pytest

import warpwatch

pytest.importorskip("numba_cuda", reason="needs a CUDA compiler: the gpu extra")
from numba import cuda

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
    report = warpwatch.run(ask, 1, 32, np.int64(seed % 4), *(np.int64(each) for each in (mask, here, gone)), out)
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
    (told,) = (report := warpwatch.run(across, 1, 32, x)).notes  # for it may be thrown away
    assert report.findings == [] and x.tolist() == [t ^ 8 for t in range(32)]
    assert (told.kind, told.thread, told.other, told.count) == ("shuffle", 0, (0, 8), 32)
