"""A cell's equations on a GPU: what runs its steps in a time loop, and the kernels that go back over all steps at once.

Its functions are those of `bppsa_nb.cells.cell`, with others in the place of `bppsa_nb.machine.pointwise`.
"""

import math
from functools import cache

import numpy as np

from bppsa_nb.chains.kernels_cuda import dot as dot_of_any
from bppsa_nb.machine import pointwise
from bppsa_nb.machine.arrays_cuda import EACH, mine
from bppsa_nb.machine.cuda import base_of, dot_of, inline, inline_early
from bppsa_nb.machine.cuda_compiler import cuda

U, W = np.uint32, np.uint64  # see `dot_of`


@cache
def _functions(real):
    """Make what stands for the functions of `pointwise`, by name."""
    one, zero = real(1), real(0)

    @inline
    def sigmoid(x):
        small = math.exp(-abs(x))  # which does not overflow
        return (small if x < zero else one) / (one + small)

    @inline
    def tanh(x):
        return math.tanh(x)

    @inline
    def relu(x):
        return zero if x < zero else x

    @inline
    def where(condition, x, y):
        return x if condition else y

    @inline
    def constant(value, like):
        return real(value)

    return {"sigmoid": sigmoid, "tanh": tanh, "relu": relu, "where": where, "constant": constant}


@cache
def compiled(function, real):
    """Return a cell's function for kernels."""
    own = {getattr(pointwise, name): made for name, made in _functions(real).items()}
    return own[function] if function in own else inline(pointwise.with_own(function, own))


@cache
def taken_of(count):
    """Make what reads so many numbers, from a place on and so far apart, as a tuple."""
    if count == 0:
        return inline(lambda array, start, apart: ())
    before, last = taken_of(count - 1), U(count - 1)

    @inline_early  # which leaves the loads apart: four instructions fewer where a GRU's Jacobians are assembled
    def taken(array, start, apart):
        return *before(array, start, apart), array[start + last * apart]

    return taken


@cache
def put_of(count):
    """Make what writes a tuple of so many numbers, to a place on and so far apart; see `taken_of`."""
    if count == 0:
        return inline(lambda array, start, apart, values: None)
    before, number, last = put_of(count - 1), count - 1, U(count - 1)

    @inline
    def put(array, start, apart, values):
        before(array, start, apart, values[:number])
        array[start + last * apart] = values[number]

    return put


@cache
def kept_of(count):
    """Make what writes a tuple of so many numbers of a step, sample and unit to an array [shape=(count, T, B, H)]."""
    if count == 0:
        return inline(lambda array, t, b, i, values: None)
    before, number, last = kept_of(count - 1), count - 1, U(count - 1)

    @inline
    def keep(array, t, b, i, values):
        before(array, t, b, i, values[:number])
        array[last, t, b, i] = values[number]

    return keep


@cache
def numbers_of(cell):
    """Count the numbers of shared memory of a hidden unit in a time loop: states, then preactivations, or h again."""
    return cell.states + cell.preacts


def check_vectors(cell):
    """Raise ValueError for a cell with vectors of its own, or no weights of h, which kernels do not know."""
    if cell.vectors or cell.elementwise:
        what = f"a cell with vectors of its own, {', '.join(cell.vectors)}" if cell.vectors else "an elementwise cell"
        raise ValueError(f"backend must be 'numpy' or 'cpu' for {what}, got 'cuda'")


@cache
def steps_of(cell, size, real):
    """Make what loads weights and runs steps, for one H: a thread per row of the weights, which are in registers.

    Of steps ``start`` to ``stop`` of sample b, ``shared[:S H]`` is where they begin, and where they end.
    """

    @inline_early
    def load(weight_hh_T, bias_hh):
        weights, g = cuda.local.array(size, real), U(cuda.threadIdx.x)
        for j in range(size):
            weights[j] = weight_hh_T[j, g]
        return weights, bias_hh[g]

    if cell.gates == 1:
        return load, _run_steps_of(_one_gate_of(cell, size, real), size, cell.states * size)
    return load, _run_steps_of(_gates_of(cell, size, real), cell.gates * size)


@cache
def any_steps_of(cell, real):
    """Make the same for any H, where weights are left where they are."""
    return inline(lambda weight_hh_T, bias_hh: (weight_hh_T, bias_hh)), _run_steps_of(_any_gates_of(cell, real), 1)


def _run_steps_of(step, threads, aside=0):
    """Make the loop over steps, for so many threads; where h is put `aside` by every other step, that is no 0."""

    @inline
    def run_steps(products, weights, shared, states, kept, b, start, stop):
        g, t, end, last = U(cuda.threadIdx.x), U(start), U(stop), U(stop - 1)
        even, odd = base_of(threads), base_of(threads) + U(aside)  # where h_t stands
        # Read four steps ahead, so that none waits for memory. Steps are written out, each with a number of its own:
        # to move one that is on its way would be to wait for it.
        x0, x1 = products[t, b, g], products[min(t + U(1), last), b, g]
        x2, x3 = products[min(t + U(2), last), b, g], products[min(t + U(3), last), b, g]
        cuda.syncthreads()
        while t < end:
            step(x0, products, weights, shared, even, odd, states, kept, t, b)
            x0 = products[min(t + U(4), last), b, g]
            cuda.syncthreads()
            if t + U(1) < end:
                step(x1, products, weights, shared, odd, even, states, kept, t + U(1), b)
                x1 = products[min(t + U(5), last), b, g]
                cuda.syncthreads()
            if t + U(2) < end:
                step(x2, products, weights, shared, even, odd, states, kept, t + U(2), b)
                x2 = products[min(t + U(6), last), b, g]
                cuda.syncthreads()
            if t + U(3) < end:
                step(x3, products, weights, shared, odd, even, states, kept, t + U(3), b)
                x3 = products[min(t + U(7), last), b, g]
                cuda.syncthreads()
            t += U(4)
        if aside and U(stop - start) & U(1):
            shared[g] = shared[odd + g]

    return run_steps


def _activate_of(cell, real):
    """Make the function that applies a gate's activation to its preactivation, by the place among all units'."""

    def take(functions, end):
        if not functions:
            return inline(lambda g, size, total: total)
        *others, last = functions
        before, function, start = take(others, end - 1), compiled(last, real), U(end - 1)

        @inline
        def activate(g, size, total):
            return before(g, size, total) if g < start * size else function(total)

        return activate

    return take(cell.activations, len(cell.activations))


def _one_gate_of(cell, size, real):
    """Make the steps of a cell with one gate: a thread per hidden unit, one barrier a step."""
    dot, whole, n, unit = dot_of(size, real), not cell.split, U(size), _unit_of(cell, real)
    activate = _activate_of(cell, real)

    @inline
    def step(added, products, weights, shared, before, after, states, kept, t, b):
        (row, bias), i = weights, U(cuda.threadIdx.x)
        total = dot(added + bias if whole else bias, row, shared, before)
        preacts = (activate(i, n, total),) if whole else (added, total)
        unit(preacts, shared, n, before, after, states, kept, t, b, i)

    return step


def _gates_of(cell, size, real):
    """Make the steps of a cell with several gates: a thread for each sum of states, two barriers a step."""
    dot, n, S = dot_of(size, real), U(size), U(cell.states * size)
    put_sum, unit, take = _put_sum_of(cell, real), _unit_of(cell, real), taken_of(cell.preacts)

    @inline
    def step(added, products, weights, shared, before, after, states, kept, t, b):
        (row, bias), g = weights, U(cuda.threadIdx.x)
        put_sum(shared, n, g, added, dot(bias, row, shared, before))
        cuda.syncthreads()
        if g < n:
            unit(take(shared, S + g, n), shared, n, U(0), U(0), states, kept, t, b, g)

    return step


def _any_gates_of(cell, real):
    """Make the same for any H, where a thread has some of the sums, and some of the units."""
    put_sum, unit, take, S = _put_sum_of(cell, real), _unit_of(cell, real), taken_of(cell.preacts), U(cell.states)

    @inline
    def step(added, products, weights, shared, before, after, states, kept, t, b):
        (weight_hh_T, bias_hh), size = weights, U(states.shape[3])
        for g in range(cuda.threadIdx.x, products.shape[2], cuda.blockDim.x):
            term = added if g == cuda.threadIdx.x else products[t, b, g]
            put_sum(shared, size, U(g), term, bias_hh[g] + dot_of_any(weight_hh_T, g, shared, 0))
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, states.shape[3], cuda.blockDim.x):
            unit(take(shared, S * size + U(i), size), shared, size, U(0), U(0), states, kept, t, b, U(i))

    return step


def _put_sum_of(cell, real):
    """Make what turns a sum of states, and what inputs add, into preactivations, after the states in shared memory."""
    activate, S, split, whole = _activate_of(cell, real), U(cell.states), U(cell.split), U(cell.gates - cell.split)

    @inline
    def put_sum(shared, size, g, added, total):
        if g < whole * size:
            total = activate(g, size, added + total)
        else:
            shared[S * size + g - whole * size] = added
        shared[(S + split) * size + g] = total

    return put_sum


def _unit_of(cell, real):
    """Make the step of a unit from its preactivations; it writes the results, h to where it stands `after`."""
    take, others, put_others = compiled(cell.step, real), taken_of(cell.states - 1), put_of(cell.states - 1)
    keep_states, keep = kept_of(cell.states), kept_of(cell.kept)

    @inline
    def unit(preacts, shared, size, before, after, states, kept, t, b, i):
        found, values = take(preacts, (shared[before + i], *others(shared, size + i, size)))
        shared[after + i] = found[0]
        put_others(shared, size + i, size, found[1:])
        keep_states(states, t + U(1), b, i, found)
        keep(kept, t, b, i, values)

    return unit


def _read_of(cell, real):
    """Make what reads the states on both sides and what is kept for a thread's numbers, all before it writes any.

    So none waits for another. The second function returns those of one of these numbers, three tuples.
    """
    states_of, kept_of, S, one = taken_of(cell.states), taken_of(cell.kept), cell.states, U(1)
    each = 2 * S + cell.kept
    put, most = put_of(each), EACH * each

    @inline_early
    def read(states, kept, q, threads, count, step):
        values, apart = cuda.local.array(most, real), count + step
        for k in range(EACH):
            if q < count:
                before, after = states_of(states, q, apart), states_of(states, q + step, apart)
                put(values, U(k * each), one, (*before, *after, *kept_of(kept, q, count)))
            q += threads
        return values

    @inline
    def read_one(values, k):
        at = U(k * each)
        return states_of(values, at, one), states_of(values, at + U(S), one), kept_of(values, at + U(2 * S), one)

    return read, read_one


@cache
def derive_of(cell, state, real):
    """Make the kernel that goes back from unit gradients at one of the states, for all steps, samples and units.

    Of a layer's states and what is kept it makes slopes [shape=(G, T, B, S, H)], and a carry [shape=(S, T, B, S, H)],
    if any, for `bppsa_nb.chains.chain.StructuredChain`. All arrays are one line; a step has so many numbers.
    """
    unit, (read, read_one) = tuple(real(s == state) for s in range(cell.states)), _read_of(cell, real)
    back, put_slopes, put_carry = compiled(cell.back, real), put_of(cell.gates), put_of(cell.carries)
    S, here, first, split = W(cell.states), W(state), W(cell.states - cell.carries), cell.split

    @cuda.jit
    def derive(states, kept, size, step, slopes, carry):
        (q, threads), count = mine(), W(states.shape[0]) // S - W(step)
        values = read(states, kept, q, threads, count, W(step))
        for k in range(EACH):
            if q < count:
                before, after, found = read_one(values, k)
                grad_preacts, past = back(unit, before, after, found)
                there = q if S == W(1) else (q // W(size) * S + here) * W(size) + q % W(size)
                put_slopes(slopes, there, S * count, grad_preacts[split:])
                put_carry(carry, there + first * S * count, S * count, past)
            q += threads

    return derive


@cache
def preact_gradients_of(cell, real):
    """Make the kernel of gradients at preactivations, from those at states [shape=(T, B, S, H)]; see `derive_of`."""
    back, (read, read_one), put = compiled(cell.back, real), _read_of(cell, real), put_of(cell.preacts)
    take, S = taken_of(cell.states), W(cell.states)

    @cuda.jit
    def preact_gradients(states, kept, grads, size, step, grad_preacts):
        (q, threads), count = mine(), W(states.shape[0]) // S - W(step)
        values = read(states, kept, q, threads, count, W(step))
        for k in range(EACH):
            if q < count:
                before, after, found = read_one(values, k)
                there = q if S == W(1) else q // W(size) * S * W(size) + q % W(size)
                at, past = back(take(grads, there, W(size)), before, after, found)
                put(grad_preacts, q, count, at)
            q += threads

    return preact_gradients
