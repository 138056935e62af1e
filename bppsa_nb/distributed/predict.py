"""What a chain takes over ranks, predicted: a message takes α + β bytes, and ⋄ what it takes on one rank.

A message between two ranks takes a latency and its bytes over the bandwidth, whatever else is under way. Maps are
exchanged by recursive doubling, as `bppsa_nb.distributed.exscan` does it. Ranks are places, counted from the loss. What
they do ends in events: by when the last one ends, ``method="auto"`` chooses, and experiments predict larger machines.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bppsa_nb.chains import plan
from bppsa_nb.chains.counts import CHECK_EVERY
from bppsa_nb.machine.ranks import partition
from bppsa_nb.schedule.events import Event, makespan


class Interconnect(NamedTuple):
    """What a message takes: a latency α in seconds, and its bytes over a bandwidth 1 / β in bytes per second."""

    latency: float
    bandwidth: float

    def seconds(self, size):
        """Return what a message of `size` bytes takes."""
        return self.latency + size / self.bandwidth


# Ranks of one computer; `bppsa_nb.papers.bppsa.rank_scaling` fits 2.3 µs and 6.1 GB/s to messages that it measures.
SHARED_MEMORY = Interconnect(2e-6, 5e9)


class OperatorCosts(NamedTuple):
    """What one rank takes to combine affine maps, γ, in seconds."""

    product: float  # ⋄ of two maps
    apply: float  # of a map and a gradient that is known
    start: float  # what the scan takes before the first message
    size: int  # bytes of a map


class Costs(NamedTuple):
    """What one rank takes by itself, in seconds for one step of the whole batch."""

    forward: float
    sweep: float  # a step back
    gradients: float  # a step's share of the parameters' gradients
    jacobian: float  # storing a step's Jacobians; 0 for a structured chain
    product: float  # multiplying them to the segment's product
    state: int  # bytes of a state
    operator: OperatorCosts


def exscan(ready, interconnect, operator):
    """Simulate the scan over maps by recursive doubling, from when each place has its map, in seconds (ranks,).

    Returned are when each place knows its gradient, and how often it computed ⋄ (ranks,).
    """
    now, message = np.array(ready, float) + operator.start, interconnect.seconds(operator.size)
    place, combined, step = np.arange(len(now)), np.zeros(len(now), int), 1
    while step < len(now):  # blocks of as many places swap what they have reduced to
        other, farther = place ^ step, (place | step) // step * step
        meets = other < len(now)
        above = meets & (place > other) & (place % step > 0)  # combined with what is above it in its own block
        # Nobody needs the block in the end; the last place has the identity, which costs nothing.
        block = meets & (2 * step < len(now)) & (farther < len(now) - 1)
        one = np.where(place < 2 * step, operator.apply, operator.product)  # what begins at the loss is a gradient
        other, calls = np.where(meets, other, place), above.astype(int) + block
        now = np.where(meets, np.maximum(now, now[other]) + message + calls * one, now)
        combined += calls
        step *= 2
    return now, combined


class Segments(NamedTuple):
    """What the segments of all places take by themselves, in seconds (ranks,), and what they exchange."""

    sweep: np.ndarray  # going back along a segment
    reduce: np.ndarray  # multiplying it into one product
    forward: np.ndarray | None  # None for a backward pass alone
    gradients: np.ndarray | None  # of parameters; None for a backward pass alone
    state: int  # bytes
    operator: OperatorCosts

    def events(self, method, interconnect):
        """Schedule "chunked" (reduce, scan, replay), or "linear", place after place: a list of Event, by worker.

        The forward pass goes from place to place, and each one reduces as soon as its own states are there.
        """
        sweep, hop = np.array(self.sweep, float), interconnect.seconds(self.state)
        hops, phases, there = np.arange(len(sweep)) * hop, [], np.zeros(len(sweep))
        if self.forward is not None:
            there = (np.cumsum(self.forward[::-1]) + hops)[::-1]
            phases.append(("F", there - self.forward, self.forward))
        if method == "linear":
            phases.append(("sweep", there[0] + np.cumsum(sweep) - sweep + hops, sweep))
        else:
            reduce = np.array(self.reduce, float)
            # Nobody needs the last product, and at the loss the gradient is known.
            reduce[-1], reduce[0], sweep[0] = 0, sweep[0], 0
            ready = there + reduce
            done = exscan(ready, interconnect, self.operator)[0]
            phases += [("reduce", there, reduce), ("scan", ready, done - ready), ("replay", done, sweep)]
        if self.gradients is not None:
            phases.append(("δW", phases[-1][1] + sweep, self.gradients))
        return [
            Event(place, start, took, label)
            for label, starts, durations in phases
            for place, (start, took) in enumerate(zip(starts.tolist(), durations.tolist(), strict=True))
        ]


def rank_costs(shape, matrices, dtype, backend, weights):
    """Predict what a rank takes, by the planner's prices, of a segment (T, B, H) whose map has 1 or B matrices.

    Returned are, in seconds, going back along the segment, multiplying it into one product, ⋄ of a map and a gradient,
    and of two maps; and the bytes of a state and of a map. ⋄ takes NumPy about as long as a step does.
    """
    steps, batch, size = shape
    segment = plan.run_seconds(steps, batch, size, dtype, backend, weights)
    operator = plan.run_seconds(1, batch, size, dtype, "numpy", weights)
    return *segment, *operator, batch * size * dtype.itemsize, map_bytes(matrices, batch, size, dtype)


def map_bytes(matrices, batch, size, dtype):
    """Return the bytes of an affine map: the rows of its matrices, their powers of two, and a loss term per sample."""
    return matrices * size * (size * dtype.itemsize + 8) + batch * size * dtype.itemsize


@lru_cache(256)
def choose(every):
    """Choose "linear" or "chunked", whose backward pass is predicted to end first, by a tuple of all ranks' costs."""
    sweep, multiply, apply, product, state, size = zip(*every[::-1], strict=True)
    segments = Segments(sweep, multiply, None, None, max(state), OperatorCosts(max(product), max(apply), 0, max(size)))
    return min(("linear", "chunked"), key=lambda method: makespan(segments.events(method, SHARED_MEMORY)))


def forward_costs(shape, size, dtype, backend, weights):
    """Predict what a rank takes for its segment (T, B) forward; return that in seconds, T, and a state's bytes."""
    steps, batch = shape
    loop = plan.explain(steps, batch, size, dtype, backend, weights, forward=True).seconds["linear"]
    return loop, steps, batch * size * dtype.itemsize


@lru_cache(256)
def choose_forward(every):
    """Choose "linear", rank after rank, or "chunked", all at once with repairs, by a tuple of all ranks' costs."""
    loops, steps, size = zip(*every, strict=True)
    hop = SHARED_MEMORY.seconds(max(size))
    passes = 1 + -(-CHECK_EVERY // max(1, min(steps)))
    seconds = {"linear": sum(loops) + len(loops) * hop, "chunked": passes * (max(loops) + 3 * hop)}
    return min(seconds, key=seconds.get)


def scan(steps, ranks, costs, interconnect, whole=False, longer=1.0):
    """Predict the seconds of the chunked scan over segments of one length; of a `whole` step of training.

    Its forward pass is sequential. The segment at the loss may be `longer` than the others, by a factor.
    """
    return makespan(_segments(steps, ranks, costs, whole, longer).events("chunked", interconnect))


def longest_at_the_loss(steps, ranks, costs, interconnect, whole=False):
    """Predict the scan whose segment at the loss, which needs no product, is longer by the factor that pays most.

    Returned are the seconds and the factor. Where all ranks multiply as long as the one at the loss goes back, it is
    the product's price over the sweep's; up to there, several are tried.
    """
    most = max(1.0, (costs.jacobian + costs.product) / costs.sweep)
    return min((scan(steps, ranks, costs, interconnect, whole, longer=each), each) for each in np.geomspace(1, most, 9))


def sequential(steps, ranks, costs, interconnect, whole=False):
    """Predict the seconds of ordinary back-propagation over segments of one length, as `scan` does."""
    return makespan(_segments(steps, ranks, costs, whole).events("linear", interconnect))


def _segments(steps, ranks, costs, whole, longer=1.0):
    """Share out steps among places, as evenly as can be or `longer` times as many at the loss: their Segments."""
    others = [int(steps / (ranks - 1 + longer))] * (ranks - 1)
    even = [part.stop - part.start for part in reversed(partition(steps, ranks))]
    held = np.array(even if longer == 1 else [steps - sum(others), *others])
    around = (held * costs.forward, held * costs.gradients) if whole else (None, None)
    return Segments(held * costs.sweep, held * (costs.jacobian + costs.product), *around, costs.state, costs.operator)


def pipeline(steps, ranks, micro_batches, costs, interconnect):
    """Predict GPipe: micro-batches go forward through all ranks, then back (Figure 11, Appendix B).

    Ranks keep the states of their steps, as the others do, and compute none again. `costs` are of one micro-batch.
    Returned are the seconds of a step of training, and the share of it in which a rank has nothing to do.
    """
    held = -(-steps // ranks)
    forward = held * costs.forward
    backward = held * (costs.sweep + costs.gradients)
    message = 2 * (ranks - 1) * interconnect.seconds(costs.state)
    seconds = (micro_batches + ranks - 1) * (forward + backward) + message
    return seconds, 1 - micro_batches * (forward + backward) / seconds
