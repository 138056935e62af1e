"""Gradients of a layer's parameters on a GPU: outer products, added up over all steps and samples.

Gradients at preactivations come in the order of `bppsa_nb.cells.cell.Cell`; launchers are as in `layer_cuda`.
"""

from functools import cache

import numpy as np

from bppsa_nb.machine.arrays_cuda import line
from bppsa_nb.machine.cuda import inline
from bppsa_nb.machine.cuda_compiler import cuda

U, W = np.uint32, np.uint64  # see `dot_of`
_BLOCK = 256  # of a block that computes weight gradients
PARTS = 264  # into how many sums these are split, at most: two blocks for each multiprocessor of a large GPU


def _multiply_of(high, wide, teams, real):
    """Make what adds up the products of some rows in shared memory, of which a team takes one after the other."""
    gates, width = 4 * high, 4 * high + 8 * wide

    @inline
    def multiply(shared, totals, r, left, i, j):
        factors = cuda.local.array(4, real)
        while r < left:
            base = U(r * U(width))
            for k in range(4):
                factors[k] = shared[base + i + U(k * high)]
            for m in range(8):
                factor = shared[base + j + U(gates + m * wide)]
                for k in range(4):
                    totals[8 * k + m] += factors[k] * factor
            r += U(teams)

    return multiply


def _add_up_of(high, wide, teams, real):
    """Make what adds up the totals that a block's teams found, and writes them to a part, half of them at a time."""
    per, zero = high * wide, real(0)

    @inline
    def add_up(shared, totals, first_gate, first_column, parts):
        tid, part, count, columns = U(cuda.threadIdx.x), U(cuda.blockIdx.x), U(parts.shape[1]), U(parts.shape[2])
        team, mine = U(tid // U(per)), U(tid % U(per))
        for half in range(2):
            cuda.syncthreads()
            if team < U(teams):
                for k in range(16):
                    shared[team * U(16 * per) + U(k * per) + mine] = totals[16 * half + k]
            cuda.syncthreads()
            q = tid
            while q < U(16 * per):
                c, r = U(q % U(8 * wide)), U(q // U(8 * wide))  # consecutive threads write consecutive columns
                gate, column = U(first_gate + r + U(2 * half * high)), U(first_column + c)
                if gate < count and column < columns:
                    slot, place = r // U(high) * U(8) + c // U(wide), r % U(high) * U(wide) + c % U(wide)
                    total, k = zero, U(slot * U(per) + place)
                    for _ in range(teams):
                        total += shared[k]
                        k += U(16 * per)
                    parts[part, gate, column] = total
                q += U(_BLOCK)

    return add_up


@cache
def outer_products_of(high, wide, real):
    """Make the kernel of a layer's weight gradients, for blocks of 4 `high` gates and 8 `wide` columns."""
    per, gates, width = high * wide, 4 * high, 4 * high + 8 * wide  # threads of a team; numbers of a row
    teams, rows, kept, zero = _BLOCK // per, _BLOCK // width, 16 * _BLOCK, real(0)  # a block's teams, rows it reads
    multiply, add_up = _multiply_of(high, wide, teams, real), _add_up_of(high, wide, teams, real)

    @cuda.jit
    def outer_products(at, x, hidden, size, inputs, parts):
        """Compute ``at.T @ [x, 1, hidden]`` over a share of the rows per block; the shares are the parts.

        Steps and samples are one axis here, of so many rows: `at` is [shape=(S, rows, H)], `x` [shape=(rows, I)] and
        `hidden` [shape=(rows, states)], all as one line; `parts` is [shape=(parts, S H, I + 1 + states)]. Of a tile of
        rows in shared memory, teams of threads take one after the other, a thread 4 by 8 numbers of the result.
        """
        shared = cuda.shared.array(kept, real)
        totals, values = cuda.local.array(32, real), cuda.local.array(16, real)
        tid, part, count, columns = U(cuda.threadIdx.x), U(cuda.blockIdx.x), U(parts.shape[1]), U(parts.shape[2])
        first_gate, first_column = U(cuda.blockIdx.y) * U(gates), U(cuda.blockIdx.z) * U(8 * wide)
        all_rows, shares = W(at.shape[0] // count), W(parts.shape[0])
        share = (all_rows + shares - W(1)) // shares
        start, end = W(part) * share, min(W(part + U(1)) * share, all_rows)
        # Which number of every row this thread reads, if any, and from which row on.
        place, ahead, one = U(tid % U(width)), U(tid // U(width)), zero
        gate, column = U(first_gate + place), U(first_column + place - U(gates))
        reads, source, step, here = ahead < U(rows), hidden, columns - U(inputs) - U(1), W(column - U(inputs) - U(1))
        if place < U(gates):
            reads = reads and gate < count
            source, step, here = at, U(size), W(gate // U(size)) * all_rows * W(size) + W(gate % U(size))
        elif column < U(inputs):
            source, step, here = x, U(inputs), W(column)
        elif column == U(inputs):
            reads, one = False, real(1)
        else:
            reads = reads and column < columns
        here += (start + W(ahead)) * W(step)
        step *= U(rows)
        if ahead < U(rows) and not reads:
            for k in range(16):
                shared[tid + U(k * rows * width)] = one
        for k in range(32):
            totals[k] = zero
        team, mine = U(tid // U(per)), U(tid % U(per))
        i, j = U(mine // U(wide)), U(mine % U(wide))
        while start < end:
            left = U(min(end - start, W(16 * rows)))
            cuda.syncthreads()
            if reads:
                for k in range(16):  # all of them before any is written, so that none waits for another
                    values[k] = source[here] if ahead + U(k * rows) < left else zero
                    here += W(step)
                for k in range(16):
                    shared[tid + U(k * rows * width)] = values[k]
            cuda.syncthreads()
            multiply(shared, totals, team if team < U(teams) else left, left, i, j)
            start += W(16 * rows)
        add_up(shared, totals, first_gate, first_column, parts)

    return outer_products


@cuda.jit
def sum_parts(parts, size, inputs, split, weight_ih, weight_hh, bias_ih, bias_hh):
    """Add the parts up in an order that is always the same, 32 threads a number."""
    shared, tid = cuda.shared.array(_BLOCK, parts.dtype), U(cuda.threadIdx.x)
    lane, q = tid // U(8), U(cuda.blockIdx.x) * U(8) + tid % U(8)
    count, rows, columns = U(parts.shape[0]), U(parts.shape[1]), U(parts.shape[2])
    row, column, part, zero = U(q // columns), U(q % columns), U(lane), parts.dtype.type(0)
    a, b, c, d = zero, zero, zero, zero
    if row < rows:
        while part + U(96) < count:  # four at a time, so that three need not wait for the first
            a += parts[part, row, column]
            b += parts[part + U(32), row, column]
            c += parts[part + U(64), row, column]
            d += parts[part + U(96), row, column]
            part += U(128)
        while part < count:
            a += parts[part, row, column]
            part += U(32)
    shared[tid] = (a + b) + (c + d)
    for half in (16, 8, 4, 2, 1):
        cuda.syncthreads()
        if lane < U(half):
            shared[tid] += shared[tid + U(8 * half)]
    if lane == U(0) and row < rows:
        total, gates = shared[tid], U(weight_hh.shape[0] // size)
        number, i = U(row // U(size)), U(row % U(size))
        of_x, of_hidden = U((number + gates - U(split)) % gates), U(number - U(split))
        if number < gates:  # one that inputs are added to
            if column < U(inputs):
                weight_ih[of_x * U(size) + i, column] = total
            elif column == U(inputs):
                bias_ih[of_x * U(size) + i] = total
        if number >= U(split):  # and states
            if column > U(inputs):
                weight_hh[of_hidden * U(size) + i, column - U(inputs) - U(1)] = total
            elif column == U(inputs):
                bias_hh[of_hidden * U(size) + i] = total


def launch_gradients(x, hidden, at, sizes, parts, grads, stream=0):
    """Launch the gradients of a layer's parameters, its δW, from those `at` its preactivations [shape=(P, T, B, H)].

    Of the `sizes`, the first is how many inputs `x` has, the second the cell's `split`. `parts`, of the shape that
    `parts_of` returns, is worked on; `grads` are those of weight_ih, weight_hh, bias_ih and bias_hh.
    """
    (_, gates, columns), (high, up), (wide, beside) = parts.shape, *map(_split, parts.shape[1:], (4, 8), (32, 8))
    kernel, size = outer_products_of(high, wide, parts.dtype.type), at.shape[-1]
    kernel[(len(parts), up, beside), _BLOCK, stream](line(at), line(x), line(hidden), size, sizes[0], parts)
    sum_parts[-(-gates * columns // 8), _BLOCK, stream](parts, size, *sizes, *grads)


def parts_of(rows, gates, columns):
    """Return the shape of the parts of a sum over rows, for so many gates and columns, those of the bias included."""
    blocks = _split(gates, 4, 32)[1] * _split(columns, 8, 8)[1]
    return max(1, min(PARTS // blocks, -(-rows // 64))), gates, columns


def _split(count, each, most):
    """Return how many threads, each for so many numbers, a block has for one axis of a matrix, and how many blocks."""
    blocks = -(-count // (each * most))
    return -(-count // (each * blocks)), blocks
