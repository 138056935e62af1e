"""What each method does, counted: the operation counts of the cost model.

A method's predicted time is the sum of its counts times what one of them costs, in seconds (`bppsa_nb.chains.prices`).
The functions `linear`, `blelloch` and `chunked`, and of the forward pass `loop` and `repaired`, count:

============  ==========================================================================================
`launches`    times that workers are set to work and waited for: at least once a call, and once a level of the tree
`steps`       steps that wait for each other; in NumPy, operations that Python starts
`merges`      those that multiply matrices by matrices
`crossings`   those that go from one chunk to the next
`terms`       K per step of a structured chain: the summands of its transposed Jacobian
`products`    small products that are started one by one
`rows`        rows of matrices whose size is looked at, so that products stay in range
`matvec`      multiply-adds of matrices with single vectors
`matmul`      multiply-adds of matrices with matrices
`entries`     numbers that are written to be read again
============  ==========================================================================================

All are counted along the busiest worker. Where the work falls into independent pieces (samples, chunks, pairs of a
level), workers share them out: NumPy is one worker, the compiled CPU code has a thread per core, and a GPU runs about
a thousand blocks at once. Operations of NumPy take a whole batch, and of a structured chain all chunks side by side.
"""

import functools

from bppsa_nb.scan.levels import down_levels, num_pairs, up_levels

BLOCKS = 1024  # thread blocks that a large GPU runs at once
WARM_UP = 64  # steps of a time loop, at the most, whose end is the guess that its chunks start from
SHARED = 256  # hidden units, from which on the weights of a time loop are laid out by panels that two cores can share
CHECK_EVERY = 32  # steps of a repair before it is first looked whether it has met what was there


def linear(T, B, H, weights, backend):
    """Count what the linear scan does, along the busiest worker.

    The chain has T steps of B samples of size H, and `weights` is K of a structured chain, whose steps are sums over K
    shared weights; 0 for stored dense Jacobians. Returned are the table's counts, by name; those not there are 0.
    """
    samples = _samples(B, weights, backend)
    terms = max(weights, 1)
    return {
        "launches": 1,
        "steps": T,
        "terms": T * weights,
        "products": T * samples,
        "matvec": T * samples * H * H * terms,
        "entries": T * samples * H * terms,
    }


def blelloch(T, B, H, weights, backend):
    """Count what Algorithm 1 does. Parameters and result are those of `linear`.

    A structured chain's Jacobians are assembled first: T x B x H x H entries, of K multiply-adds each.
    """
    # Each level's first pair meets the gradient going up, and the identity going down; the gradient at x_0 is one more.
    up = [num_pairs(T, d) - 1 for d in range(up_levels(T))]
    down = [num_pairs(T, d) - 1 for d in range(down_levels(T))]
    firsts = up_levels(T) + (T > 0)
    at_once = B if backend == "numpy" else 1
    merges = sum(_share(pairs * B // at_once, backend) for pairs in up)
    steps = sum(_share(pairs * B // at_once, backend) for pairs in down) + firsts * _share(B // at_once, backend)
    matmuls, matvecs = merges * at_once, steps * at_once
    return {
        "launches": 1 + up_levels(T) + down_levels(T),
        "steps": steps,
        "merges": merges,
        "terms": weights,
        "products": matmuls + matvecs,
        "rows": matmuls * H,
        "matvec": matvecs * H * H,
        "matmul": matmuls * H**3,
        "entries": (matmuls + (1 + weights) * _share(T * B, backend)) * H * H,
    }


def chunked(T, B, H, weights, backend, length):
    """Count what the chunked scan does with chunks of `length` steps. Parameters and result are those of `linear`.

    The chunk at the loss, which may be shorter, is swept; those below it are multiplied into one matrix each, except
    the one at x_0; the gradient goes back over these products; every chunk below is replayed.
    """
    below = max(T - 1, 0) // length
    swept = T - below * length
    inner = max(below - 1, 0)
    reduced, terms = _multiplied(inner * B, weights, backend), max(weights, 1)
    replayed, samples = _share(below * B, backend), _share(B, backend)
    together = weights and backend != "cpu"  # all chunks side by side
    replays = replayed if backend == "cuda" else min(below, 1) if together else _share(below, backend)
    merges = min(inner, 1) if together else reduced if backend == "cuda" else _share(inner, backend)
    vectors = swept * samples + replayed * length
    across = inner * samples if weights else 0  # replays of stored Jacobians leave out the steps that led across
    return {
        "launches": 3,
        "steps": swept + replays * length,
        "merges": merges * length,
        "crossings": inner,
        "terms": (swept + (replays + merges) * length) * weights,
        "products": vectors + reduced * length + across,
        "rows": reduced * length * H,
        "matvec": (vectors * terms + across) * H * H,
        "matmul": reduced * length * H**3 * terms,
        "entries": (reduced * length * H + vectors) * H * terms,
    }


def product(T, B, H, weights, backend):
    """Count what multiplying all T Jacobians into one does. Parameters and result are those of `linear`."""
    reduced, terms = _multiplied(B, weights, backend), max(weights, 1)
    return {
        "launches": 1,
        "merges": T * reduced if backend == "cuda" and not weights else T,
        "terms": T * weights,
        "products": reduced * T,
        "rows": reduced * T * H,
        "matmul": reduced * T * H**3 * terms,
        "entries": reduced * T * H * H * terms,
    }


def loop(T, B, H, weights, backend):
    """Count what a time loop does: the forward pass of a cell whose step multiplies by K = `weights` matrices."""
    counts = solving(1, T, T * B, H, weights, backend)
    if backend == "cpu" and H >= SHARED and B <= _group():  # of a single group, two cores share each product
        counts["matvec"] /= min(2, workers(backend))
    return counts


def repaired(T, B, H, weights, backend, length):
    """Count what a time loop does in chunks of `length` steps, which meet what they had after `CHECK_EVERY` steps."""
    if length >= T:
        return loop(T, B, H, weights, backend)
    chunks, repairs, seed = -(-T // length), -(-CHECK_EVERY // length), min(WARM_UP, length)
    repair = repairs * min(CHECK_EVERY, length)
    lanes = (chunks * length + (chunks - 1) * repair + seed) * B
    return solving(2 + repairs, seed + length + repair, lanes, H, weights, backend)


def solving(passes, steps, lanes, H, weights, backend):
    """Count what a time loop does whose `steps` wait for each other, and take so many samples and chunks in all."""
    together = -(-lanes // max(steps, 1))
    each = lanes * _samples(together, 1, backend) / max(together, 1)
    operations = weights**2  # on a hidden unit: tanh of a sum, or of a GRU three functions and what goes between them
    return {
        "launches": passes,
        "steps": steps,
        "terms": steps * operations,
        "rows": each,
        "matvec": each * H * H * weights,
        "entries": each * H * operations,
    }


COUNTS = {"linear": linear, "blelloch": blelloch, "chunked": chunked}
KINDS = {"dense": COUNTS, "structured": COUNTS, "forward": {"linear": loop, "chunked": repaired}}


def price(counts, prices, width=1):
    """Add up what counts cost, in seconds.

    `prices` are seconds of one, for some or all of the counts; what has no price costs nothing. Numbers take `width`
    times four bytes: 1 in float32, 2 in float64.
    """
    widths = dict.fromkeys(("matvec", "matmul", "entries"), width)
    return sum(prices.get(name, 0) * count * widths.get(name, 1) for name, count in counts.items())


@functools.cache
def workers(backend):
    """Return how many pieces of work a backend does at once."""
    if backend == "numpy":
        return 1
    if backend == "cuda":
        return BLOCKS
    from bppsa_nb.machine.workers import THREADS

    return THREADS


def fills(B, backend):
    """Tell whether a batch alone has a whole group of samples for every core, so that chunks have nothing to fill."""
    return backend == "cpu" and B >= _group() * workers(backend)


def _share(pieces, backend):
    return -(-pieces // workers(backend))


def _multiplied(pieces, weights, backend):
    """Return how many chunks the busiest worker multiplies; rows of a structured chain's are for all of a GPU's."""
    return pieces / workers(backend) if backend == "cuda" and weights else _share(pieces, backend)


def _samples(B, weights, backend):
    if backend == "cpu" and weights:  # which go in groups
        return min(B, _group() * _share(-(-B // _group()), backend))
    return _share(B, backend)


def _group():
    from bppsa_nb.machine.tiles import GROUP

    return GROUP
