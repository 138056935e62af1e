"""Puzzles about what threads do at the same time: where two of them meet, and what a warp asks of memory."""

import re
from functools import cache
from operator import index

import numpy as np
from numba import float32, float64

from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.puzzles import launches
from bppsa_nb.puzzles.arrays import compare
from bppsa_nb.puzzles.checker import Puzzles, Verdict, Wrong, call, returned

PUZZLES = Puzzles()


@cuda.jit
def suspect(values):
    """Sum 8 numbers by a tree in shared memory, for one block of 8 threads. It lacks a barrier."""
    t, half = cuda.threadIdx.x, 4
    sums = cuda.shared.array(8, float64)
    sums[t] = values[t]
    cuda.syncthreads()
    while half > 0:
        if t < half:
            sums[t] += sums[t + half]
        half //= 2
    if t == 0:
        values[0] = sums[0]


def detective():
    """Find two threads that meet: one writes a place of `sums`, the other reads it, and no barrier stands between."""
    return 2, 0, 2


def _meetings():
    """List (writer, reader, place) of all that meet in `suspect` after its only barrier."""
    reads, writes = set(), set()
    for half in (4, 2, 1):
        for t in range(half):
            reads |= {(t, t), (t, t + half)}
            writes.add((t, t))
    return {(one, other, place) for one, place in writes for other, there in reads if place == there and one != other}


@PUZZLES.rule_of(detective)
def _rule_detective(answer):
    found, met = call(answer, detective), _meetings()
    try:
        one, other, place = map(index, found)
    except Exception:
        what = "three whole numbers: writer, reader, place"
        raise Wrong(f"it returned {returned(found)} and should return {what}") from None
    said = f"thread {one} writes sums[{place}] and thread {other} reads it"
    if (one, other, place) in met:
        report, _ = launches.watch(suspect, 1, 8, np.ones(8))
        seen = (re.sub(" in line .*", "", f"thread {each.thread} {each.message}") for each in report.findings)
        return Verdict(True, f"Right: {said}, and no barrier stands between. Seen when it ran: {'; '.join(seen)}.")
    if (other, one, place) in met:
        raise Wrong(f"you say that {said}; it is the other way round")
    if one == other:
        raise Wrong(f"you say that {said}; a thread goes through its own lines in order, and meets nobody")
    if not {one, other, place} <= set(range(8)):
        raise Wrong(f"you say that {said}; threads and places are 0 to 7")
    if place == one and one - other == 4:
        raise Wrong(f"you say that {said}; sums[{place}] is written before the barrier, and read behind it")
    if place != one:
        raise Wrong(f"you say that {said}; a thread writes at its own place, and thread {one} only sums[{one}]")
    if one >= 4:
        raise Wrong(f"you say that {said}; threads 4 to 7 write before the barrier, and never behind it")
    if one == 0:
        raise Wrong(f"you say that {said}; thread 0 writes it, but nobody else ever reads it")
    raise Wrong(f"you say that {said}; thread {other} never reads sums[{place}] behind the barrier")


def race():
    """Write two kernels: one that has a race, and one that only seems to have one."""

    @cuda.jit
    def racing(values, total):
        total[0] += values[cuda.threadIdx.x]

    @cuda.jit
    def orderly(values, total):
        cuda.atomic.add(total, 0, values[cuda.threadIdx.x])

    return racing, orderly


@PUZZLES.rule_of(race)
def _rule_race(answer):
    kernels, values = call(answer, race), np.random.default_rng(0).standard_normal(32)
    if not isinstance(kernels, tuple | list) or len(kernels) != 2:
        raise Wrong(f"it returned {returned(kernels)} and should return two kernels: return racing, orderly")
    launches.check_kernels(*kernels)
    reports, told = [], []
    for kernel in kernels:
        report, given = launches.watch(kernel, 1, 32, values, np.zeros(1))
        launches.see_unchanged(report, list(given)[0])
        reports.append(report)
        told.append(launches.told_finding(report, kernel, given) if report.findings else "")
    total = list(given)[1]
    kinds = [{finding.kind for finding in report.findings} for report in reports]
    if not kinds[0] and kinds[1] == {"race"}:
        raise Wrong(f"the first has no race, and the second has one: {told[1]}. Is it the other way round?")
    if not kinds[0]:
        same = "threads write the same value, so nobody can tell who came last; " if reports[0].notes else ""
        raise Wrong(f"the first has no race: {same}let each thread read and write total[0] with a value of its own")
    if kinds[0] != {"race"}:
        raise Wrong(f"the first should have a race, and nothing else: {told[0]}")
    if kinds[1]:
        raise Wrong(f"the second has something wrong, too: {told[1]}")
    whole = np.array([values.sum()])
    mistakes = [
        (values[-1:], "that is the last value alone"),
        (values[:1], "that is the first value alone"),
        (whole - values[-1], "the last value is missing"),
        (2 * whole, "everything is in it twice"),
    ]
    compare("in the second, total", given[total], whole, mistakes)
    threads = set(reports[1].stores[total][:, 2].tolist())
    if len(threads) < 32:
        raise Wrong(f"the second is right, but only {len(threads)} of 32 threads store into total: that seems no race")
    costs = launches.costs(reports[1:], [_report_of_best()])
    return Verdict(True, f"Right. The race of the first: {told[0]}.", costs=costs, example="the second")


@cache
def _report_of_best():
    return launches.watch(race()[1], 1, 32, np.ones(32), np.zeros(1))[0]


WIDTH, ROWS = 32, 64


@cuda.jit
def coalesced(hidden, grads):
    """Multiply gradients by the slopes of tanh, with a quarter of the sectors."""
    i, first = cuda.threadIdx.x, 32 * cuda.blockIdx.x
    for t in range(first, first + 32):
        grads[t, i] *= 1 - hidden[t, i] ** 2


@cuda.jit
def _by_rows(hidden, grads):
    t = 32 * cuda.blockIdx.x + cuda.threadIdx.x
    for i in range(32):
        grads[t, i] *= 1 - hidden[t, i] ** 2


@PUZZLES.rule_of(coalesced)
def _rule_coalesced(answer):
    rng = np.random.default_rng(0)
    hidden, grads = rng.uniform(-1, 1, (ROWS, WIDTH)), rng.standard_normal((ROWS, WIDTH))
    launched, worst, best = (launches.launch(each, 2, 32, hidden, grads) for each in (answer, _by_rows, coalesced))
    slope = 1 - hidden**2
    mistakes = [
        (grads, "it is as it was"),
        (grads * (1 - hidden), "the slope is 1 - hidden ** 2"),
        (grads * (1 - 2 * hidden), "that is twice hidden; the square is hidden ** 2"),
        (grads * (1 - hidden) ** 2, "the square is that of hidden, and not of 1 - hidden"),
        (grads - hidden**2, "parentheses are missing: 1 - hidden ** 2 is one factor"),
        (slope, "the gradients are missing"),
        (-grads * slope, "it has the other sign"),
        (grads * slope**2, "it is multiplied twice"),
    ]
    compare("grads", launched.arrays[1], grads * slope, mistakes)
    launches.see_even(launched, 32)
    why = "what do threadIdx.x and threadIdx.x + 1 touch at the same time?"
    launches.see_sectors(answer, launched.report, best.report, 8, why)
    took, most = (int(each.report.sectors.sum()) for each in (launched, worst))
    costs = launches.costs([launched.report], [best.report])
    said = f"Right: {took} sectors, where the stub asks for {most}."
    return Verdict(True, said, costs=costs, example="64 rows of 32")


@cuda.jit
def padded(matrix, out):
    """Transpose a matrix by way of shared memory, without bank conflicts."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = 32 * cuda.blockIdx.x, 32 * cuda.blockIdx.y
    tile = cuda.shared.array((32, 33), float32)
    tile[y, x] = matrix[i + y, j + x]
    cuda.syncthreads()
    out[j + y, i + x] = tile[x, y]


@PUZZLES.rule_of(padded)
def _rule_padded(answer):
    matrix = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    given = (2, 2), (32, 32), matrix, np.zeros_like(matrix)
    launched, best = (launches.launch(each, *given) for each in (answer, padded))
    tiles = matrix.reshape(2, 32, 2, 32)
    mistakes = [
        (matrix, "that is the matrix itself; transpose it"),
        (tiles.transpose(0, 3, 2, 1).reshape(64, 64), "each tile is transposed, but stands where it stood"),
        (tiles.transpose(2, 1, 0, 3).reshape(64, 64), "the tiles stand right, but none of them is transposed"),
    ]
    compare("out", launched.arrays[1], matrix.T, mistakes)
    launches.see_even(launched, 1)
    why = "read and write along rows, and turn the tile in shared memory"
    launches.see_sectors(answer, launched.report, best.report, 4, why)
    if (passes := launched.report.counters["shared passes per request"]) > 1:
        raise Wrong(
            f"{launches.DONE} a request of shared memory takes {passes:.3g} passes on average, where 1 is enough: "
            "which bank is tile[x, y] in, for x = 0, 1, 2 ...? A word of a bank has 4 bytes"
        )
    costs = launches.costs([launched.report], [best.report])
    return Verdict(True, "Right: one pass for every request.", costs=costs, example="four tiles")


@cuda.jit
def warp_sum(values, total):
    """Sum the numbers of a warp, without shared memory: ``total[b]`` becomes the sum of ``values[b]``."""
    t, x, k = cuda.threadIdx.x, values[cuda.blockIdx.x, cuda.threadIdx.x], 16
    while k > 0:
        x += cuda.shfl_down_sync(0xFFFFFFFF, x, k)
        k //= 2
    if t == 0:
        total[cuda.blockIdx.x] = x


@PUZZLES.rule_of(warp_sum)
def _rule_warp_sum(answer):
    values = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    launched, best = (launches.launch(each, 4, 32, values, np.zeros(4, np.float32)) for each in (answer, warp_sum))
    mistakes = [
        (values[:, 0], "that is the number of thread 0 alone"),
        (values[:, 31], "that is the number of thread 31 alone"),
        (values[:, [0, 16]].sum(1), "that is one step of the tree; threads 0 and 16"),
        (values[:, ::2].sum(1), "the last step of the tree, by 1, is missing"),
        (values[:, :16].sum(1), "only threads 0 to 15 are in it"),
        (values[:, :31].sum(1), "thread 31 is missing"),
        (values[:, 1:].sum(1), "thread 0 is missing"),
        (values[:, [0, 1, 2, 4, 8, 16]].sum(1), "only threads 0, 1, 2, 4, 8 and 16 are in it: hand over sums"),
        (values.mean(1), "that is the mean"),
        (2 * values.sum(1), "everything is in it twice"),
        (32 * values[:, 0], "thread 0 has only doubled its own: there is none before it, to come up"),
        (32 * values[:, 31], "thread 31 has only doubled its own: there is none behind it, to come down"),
    ]
    compare("total", launched.arrays[1], values.sum(1), mistakes)
    launches.see_who(launched, 32, [[b] for b in range(4)], "sums")
    shuffles, least = (_shuffles(each.report) / 4 for each in (launched, best))
    if launched.report.shared_requests.any():
        raise Wrong(f"{launches.DONE} with shared memory: a warp's threads hand over their numbers by shuffles alone")
    if not shuffles:
        how = "by atomic operations, one after the other" if launched.report.atomics else "without a shuffle"
        raise Wrong(f"{launches.DONE} {how}: let threads hand over their numbers by cuda.shfl_down_sync")
    costs = [("shuffles of a warp", shuffles, least), *launches.costs([launched.report], [best.report])]
    return Verdict(True, "Right.", costs=costs, example="four warps")


def _shuffles(report):
    blocks = report.program.kernel.blocks
    return sum(warps * sum(i.kind == "shfl" for i in blocks[n].body) for n, warps in report.issued.items())
