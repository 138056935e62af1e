"""Algorithm 1 over stored Jacobians on a GPU: one kernel launch per level (Section 4.1).

The arrays and the index arithmetic are those of :mod:`bppsa_nb.chains.levels_cpu`: position k of Equation 5's array is
``mats[T - k, b]``, ``exps[T - k, b]`` and ``vecs[T + 1 - k, b]``. Everything stays on the device between levels.

Kernels are made for one H, and a block has several teams of H threads with a ⋄ each: a matrix stands in shared memory,
and a row of it in a thread's registers. For matrices that do not fit, there are the linear and the chunked scan.
"""

import math
from functools import cache

import numpy as np

from bppsa_nb.chains.plan import LARGEST
from bppsa_nb.machine.cuda import SHARED_BYTES, dot_of, inline, row_of
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands.scaled_cuda import matvec_of, rescale, smaller
from bppsa_nb.scan import levels as _levels

_pair_left, _pair_right, _num_pairs = map(inline, (_levels.pair_left, _levels.pair_right, _levels.num_pairs))
_block_end, _num_blocks = map(inline, (_levels.block_end, _levels.num_blocks))
U = np.uint32  # see `machine.cuda.dot_of`
_TEAM_THREADS, _SPREAD = 160, 128  # of a block, at most; blocks that keep every multiprocessor busy


def check_size(size, dtype):
    """Raise ValueError if matrices of `size` rows are too large for the levels."""
    most = LARGEST[dtype.itemsize]
    if size > most:
        raise ValueError(
            f"method: on a GPU, levels multiply Jacobians of at most {most} x {most} in {dtype}, got H = {size}; use "
            "method='chunked' or 'linear', or backend='cpu'"
        )


def teams_of(size, numbers, dtype, count):
    """Return how many teams, of `size` threads and so many numbers in shared memory, a block has where `count` work.

    Several fill its warps; where few work, they are better off on multiprocessors of their own.
    """
    most = min(_TEAM_THREADS // size, SHARED_BYTES // (numbers * dtype.itemsize), -(-count // _SPREAD))
    return max(1, most)


@cache
def team_of(size):
    """Make what tells a thread whether its team is one of `count`, which of them, and numbers in the team and block.

    In the last block, teams beyond repeat the last one's work, barriers and all, but write nothing.
    """

    @inline
    def team(count):
        mine = U(cuda.threadIdx.x) // U(size)
        number = U(cuda.blockIdx.x) * (U(cuda.blockDim.x) // U(size)) + mine
        return number < U(count), min(number, U(count - 1)), U(cuda.threadIdx.x) % U(size), mine

    return team


@cache
def prepare_of(size, real):
    """Make `prepare` for one H: a team's thread reads a column before it writes it."""
    team_of_thread, zero, infinite = team_of(size), real(0), real(math.inf)

    @cuda.jit
    def prepare(jacobians_T, mats, exps, lost):
        shared, column = cuda.shared.array(0, mats.dtype), cuda.local.array(size, real)
        here, number, k, team = team_of_thread(exps.size)
        t, b = number // U(mats.shape[1]), number % U(mats.shape[1])
        read, matrix, high, low = jacobians_T[t, b], mats[t, b], zero, infinite
        for i in range(size):
            column[i] = read[U(i), k]
        if here:
            for i in range(size):
                matrix[U(i), k] = column[i]
                high, low = max(high, abs(column[i])), smaller(low, column[i])
        exponent = rescale(matrix, high, low, shared, k, team * U(size), U(size), lost)
        if here and k == U(0):
            exps[t, b] = exponent

    return prepare


@cache
def up_level_of(size, real):
    """Make an up-sweep level (Algorithm 1, lines 4-7) for one H, a team per pair and sample.

    A team's thread has a column of the left factor, and is for a row of the right one. With loss terms every pair moves
    its offset along; the first pair meets the gradient itself.
    """
    dot, matvec, team_of_thread, wide = dot_of(size, real), matvec_of(size, real), team_of(size), row_of(size)
    numbers, zero, infinite = (size + 1) * wide, real(0), real(math.inf)

    @cuda.jit
    def up_level(mats, exps, vecs, affine, d, lost):
        shared, column = cuda.shared.array(0, mats.dtype), cuda.local.array(size, real)
        row = cuda.local.array(size, real)
        T, batch = mats.shape[0], mats.shape[1]
        here, pair, k, team = team_of_thread(_num_pairs(T, d) * batch)
        j, b, at = int(pair // U(batch)), pair % U(batch), team * U(numbers)
        l, r = U(T - _pair_left(j, d)), U(T - _pair_right(j, d, T))  # where they stand in `mats`
        right, left, multiplies = mats[r, b], mats[l if j > 0 else r, b], here and j > 0
        for i in range(size):
            shared[at + U(i * wide) + k], column[i] = right[U(i), k], left[U(i), k]
        if affine or cuda.blockIdx.x * (cuda.blockDim.x // size) < batch:  # the same for all teams of a block
            moves, exponent, s = here and (j == 0 or affine), exps[r, b], b
            last = U(vecs.shape[1]) if batch == 1 else b + U(1)
            while s < last:
                value = matvec(vecs[l + U(1), s, k] if moves else zero, exponent, shared, at, k, row, lost)
                if moves:
                    vecs[r + U(1), s, k] = vecs[r + U(1), s, k] + value if affine else value
                cuda.syncthreads()
                s += U(1)
        else:
            cuda.syncthreads()
        high, low = zero, infinite
        if multiplies:
            for i in range(size):  # line 6: a[l] ⋄ a[r] = a[r] a[l]
                value = dot(zero, column, shared, at + U(i * wide))
                right[U(i), k] = value
                high, low = max(high, abs(value)), smaller(low, value)
        exponent = rescale(right, high, low, shared, k, team * U(size), U(size), lost)
        if multiplies and k == U(0):
            exps[r, b] += exps[l, b] + exponent

    return up_level


@cache
def across_blocks_of(size, real):
    """Make the linear scan over the blocks' products for one H: a team per sample, one of its threads per row.

    Over two blocks this is Algorithm 1's first down-sweep level, with the gradient at x_0.
    """
    matvec, team_of_thread, wide = matvec_of(size, real), team_of(size), row_of(size)
    numbers = (size + 1) * wide

    @cuda.jit
    def across_blocks(mats, exps, vecs, affine, levels, lost):
        shared, row = cuda.shared.array(0, mats.dtype), cuda.local.array(size, real)
        T = mats.shape[0]
        here, s, k, team = team_of_thread(vecs.shape[1])
        b, at = s % U(mats.shape[1]), team * U(numbers)
        grad = vecs[U(T + 1 - _block_end(0, levels, T)), s, k]
        for j in range(1, _num_blocks(T, levels)):
            end = U(T - _block_end(j, levels, T))
            matrix, offset = mats[end, b], vecs[end + U(1), s, k] if affine else real(0)
            for i in range(size):
                shared[at + U(i * wide) + k] = matrix[U(i), k]
            value = matvec(grad, exps[end, b], shared, at, k, row, lost)
            if here:
                vecs[end + U(1), s, k] = grad
            grad = value + offset
            cuda.syncthreads()
        if here:
            vecs[U(0), s, k] = grad

    return across_blocks


@cache
def down_level_of(size, real):
    """Make a down-sweep level (Algorithm 1, lines 11-16) for one H: a team per pair, one of its threads per row."""
    matvec, team_of_thread, wide = matvec_of(size, real), team_of(size), row_of(size)
    numbers = (size + 1) * wide

    @cuda.jit
    def down_level(mats, exps, vecs, affine, d, lost):
        shared, row = cuda.shared.array(0, mats.dtype), cuda.local.array(size, real)
        T, batch = mats.shape[0], U(vecs.shape[1])
        here, pair, k, team = team_of_thread(_num_pairs(T, d) * vecs.shape[1])
        j, s, at = int(pair // batch), pair % batch, team * U(numbers)
        l, r, b = U(T - _pair_left(j, d)), U(T - _pair_right(j, d, T)), s % U(mats.shape[1])
        left, right, link = vecs[l + U(1), s], vecs[r + U(1), s], l if j > 0 else r
        matrix = mats[link, b]
        grad, kept = right[k], left[k] if affine or j == 0 else real(0)
        for i in range(size):
            shared[at + U(i * wide) + k] = matrix[U(i), k]
        value = matvec(grad if j > 0 else real(0), exps[link, b], shared, at, k, row, lost)  # lines 13, 15
        if here:  # line 14; with j = 0: I ⋄ T = T
            left[k], right[k] = grad, value + kept if j > 0 else kept

    return down_level


def launch_scan(mats, exps, vecs, affine, levels, lost, stream=0):
    """Launch the levels of a prepared scan; returns at once, with vecs[t] the gradient at x_t.

    `mats`, `exps` and `vecs` are those of a `workspace`, and overwritten: transposed Jacobians with their exponents;
    and in row T + 1 the gradient at x_T, in rows 1 ... T, if `affine`, loss terms at x_0 ... x_{T-1}. ``lost[0]``
    becomes 1 where a product could not keep its entries in range.
    """
    T, batch = mats.shape[:2]
    samples, hidden = vecs.shape[1:]
    dtype, arrays = vecs.dtype, (mats, exps, vecs, affine)
    k = _levels.up_levels(T) if levels is None else min(levels, _levels.up_levels(T))
    numbers = (hidden + 1) * row_of(hidden)  # of a team: a matrix and a vector

    def block(count):
        teams = teams_of(hidden, numbers, dtype, count)
        return -(-count // teams), teams * hidden, stream, teams * numbers * dtype.itemsize

    up, across, down = (made(hidden, dtype.type) for made in (up_level_of, across_blocks_of, down_level_of))
    for d in range(k):
        up[block(_levels.num_pairs(T, d) * batch)](*arrays, d, lost)
    across[block(samples)](*arrays, k, lost)
    for d in reversed(range(k)):
        down[block(_levels.num_pairs(T, d) * samples)](*arrays, d, lost)


def workspace(T, batch, samples, hidden, dtype):
    """Allocate what `launch_scan` works on: mats, exps, vecs and lost, whose shapes are below."""
    lost = cuda.to_device(np.zeros(1, np.int32))
    mats = cuda.device_array((T, batch, hidden, hidden), dtype)
    return mats, cuda.device_array((T, batch), np.int32), cuda.device_array((T + 2, samples, hidden), dtype), lost
