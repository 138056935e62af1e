"""What each method does, counted: the cost model by which ``method="auto"`` chooses.

Whatever a method does is made of products, and products are of few kinds:

==================  ================================================================================
`stored`            a gradient by a stored Jacobian
`stored products`   stored Jacobians by each other, along a chunk
`weights`           a gradient by a structured chain's sum over K weights and diagonals
`weights products`  the same by a matrix, along a chunk
`tree`              two operands of Algorithm 1, or a gradient that crosses a chunk
`forward`           a state by a cell's weights, and the functions of the cell
`forward chunks`    the same in chunks, which are repaired until they meet
==================  ================================================================================

The functions below count `Work` by kind, along the busiest worker. Where it falls into independent pieces (samples,
chunks, pairs of a level), workers share them out: NumPy is one worker, the compiled CPU code has a thread per core, and
a GPU runs about a thousand blocks at once. What it costs, `bppsa_nb.chains.prices` says.
"""

import functools
from typing import NamedTuple

from bppsa_nb.scan.levels import down_levels, num_pairs, up_levels

BLOCKS = 1024  # thread blocks that a large GPU runs at once
WARM_UP = 64  # steps of a time loop, at the most, whose end is the guess that its chunks start from
SHARED = 256  # hidden units, from which on the weights of a time loop are laid out by panels that two cores can share
CHECK_EVERY = 32  # steps of a repair before it is first looked whether it has met what was there
WRITTEN = 64  # multiply-adds that take as long as writing a number
ROW = 32  # numbers that take as long to write as it takes to look at the sizes in a product's row, and to scale it
KINDS = ("stored", "stored products", "weights", "weights products", "tree", "forward", "forward chunks")


class Work(NamedTuple):
    """What is done of one kind: the four numbers whose costs add up to its time."""

    starts: float  # times that workers are set to work and waited for
    steps: float  # products that wait for each other; those of NumPy take a whole batch
    written: float  # numbers
    multiply_adds: float


def linear(T, B, H, weights, backend):
    """Count what the linear scan does: a dict of `Work` by kind.

    The chain has T steps of B samples of size H, and `weights` is K of a structured chain, whose steps are sums over K
    shared weights; 0 for stored dense Jacobians.
    """
    steps, samples = _batch(B, weights, backend)
    return {"weights" if weights else "stored": _vectors(1, T * steps, T * samples, H, weights)}


def blelloch(T, B, H, weights, backend):
    """Count what Algorithm 1 does. Parameters and result are those of `linear`.

    A structured chain's Jacobians are assembled first: T x B x H x H numbers, of K multiply-adds each.
    """
    # Each level's first pair meets the gradient going up, and the identity going down; the gradient at x_0 is one more.
    up = [num_pairs(T, d) - 1 for d in range(up_levels(T))]
    down = [num_pairs(T, d) - 1 for d in range(down_levels(T))]
    at_once = B if backend == "numpy" else 1
    merges = sum(_share(pairs * B // at_once, backend) for pairs in up)
    others = [*down, *[1] * (len(up) + (T > 0))]
    steps = sum(_share(pairs * B // at_once, backend) for pairs in others)
    matrices = _matrices(0, merges, merges * at_once, H)
    vectors = _vectors(1 + len(up) + len(down), steps, steps * at_once, H)
    done = {"tree": Work(*map(sum, zip(matrices, vectors, strict=True)))}
    assembled = _share(T * B, backend) * H * H
    return done | ({"weights": Work(0, 0, assembled, assembled * weights)} if weights else {})


def chunked(T, B, H, weights, backend, length):
    """Count what the chunked scan does with chunks of `length` steps. Parameters and result are those of `linear`.

    The chunk at the loss, which may be shorter, is swept; those below it are multiplied into one matrix each, except
    the one at x_0; the gradient goes back over these products; every chunk below is replayed.
    """
    below = max(T - 1, 0) // length
    swept = T - below * length
    inner = max(below - 1, 0)
    kind = "weights" if weights else "stored"
    steps, samples = _batch(B, weights, backend)
    replays, replayed = _chunks(below, B, weights, backend)
    merges, merged = _chunks(inner, B, weights, backend, matrices=True)
    crossings, crossed = _batch(B, 0, backend)
    vectors = swept * steps + replays * length, swept * samples + replayed * length
    return {
        kind: _vectors(2, *vectors, H, weights),
        f"{kind} products": _matrices(1, merges * length, merged * length, H, weights),
        "tree": _vectors(0, inner * crossings, inner * crossed, H),
    }


def loop(T, B, H, weights, backend):
    """Count what a time loop does: the forward pass of a cell whose step multiplies by K = `weights` matrices."""
    (kind, work), *_ = solving(1, T, T * B, H, weights, backend).items()
    if backend == "cpu" and H >= SHARED and B <= _group():  # of a single group, two cores share each product
        work = work._replace(multiply_adds=work.multiply_adds / min(2, workers(backend)))
    return {kind: work}


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
    each, samples = _batch(together, 1, backend)
    units = lanes * samples / max(together, 1) * H
    # On a hidden unit there are K² operations: tanh of a sum, or of a GRU three functions and what goes between them.
    work = Work(passes, steps * each * weights, units * weights**2, units * weights * H)
    return {"forward chunks" if passes > 1 else "forward": work}


_METHODS = {"linear": linear, "blelloch": blelloch, "chunked": chunked}
METHODS = {"dense": _METHODS, "structured": _METHODS, "forward": {"linear": loop, "chunked": repaired}}


def count(chain, method, T, B, H, weights, backend, length):
    """Count what a method does on a kind of chain: `length` is that of chunks, for those who have some."""
    lengths = [length] if method == "chunked" else []
    return METHODS[chain][method](T, B, H, weights, backend, *lengths)


def price(counts, prices, width=1):
    """Add up what counts cost, in seconds.

    `prices` are seconds of a start, a step and a multiply-add, by kind. Numbers take `width` times four bytes: 1 in
    float32, 2 in float64.
    """
    seconds = 0
    for kind, (starts, steps, written, multiply_adds) in counts.items():
        start, step, multiply_add = prices[kind]
        seconds += start * starts + step * steps + multiply_add * width * (WRITTEN * written + multiply_adds)
    return seconds


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


def _vectors(starts, steps, products, H, weights=0):
    terms = products * H * max(weights, 1)
    return Work(starts, steps, terms, terms * H)


def _matrices(starts, steps, products, H, weights=0):
    work = _vectors(starts, steps, products * H, H, weights)
    return work._replace(written=work.written + products * H * ROW)


def _batch(B, grouped, backend):
    """Return how many products a batch is for the busiest worker, started one by one, and of how many samples."""
    if backend == "numpy":
        return 1, B
    if backend == "cpu" and grouped:  # samples go in groups
        groups = _share(-(-B // _group()), backend)
        return groups, min(B, _group() * groups)
    share = _share(B, backend)
    return share, share


def _chunks(count, B, weights, backend, matrices=False):
    """Return how many steps the busiest worker does where chunks have one, and of how many samples and chunks."""
    if backend == "numpy":
        return (min(count, 1) if weights else count), count * B  # those of a structured chain go side by side
    share = _share(count * B, backend)
    if not weights:
        return share, share
    if backend == "cuda":  # rows of a product are for all of its workers
        return (min(count, 1), count * B / workers(backend)) if matrices else (share, share)
    return (share if matrices else _share(count * -(-B // _group()), backend)), share


def _share(pieces, backend):
    return -(-pieces // workers(backend))


def _group():
    from bppsa_nb.machine.tiles import GROUP

    return GROUP
