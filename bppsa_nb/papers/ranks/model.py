"""What a chain takes over ranks, predicted: a message takes α + β bytes, and ⋄ what it takes on one rank.

A message between two ranks takes a latency and its bytes over the bandwidth, whatever else is under way. Ranks are
places, counted from the loss. Segments have as even lengths as can be, or one that is longer at the loss.
"""

from typing import NamedTuple

import numpy as np

from bppsa_nb.machine.process import partition


class Interconnect(NamedTuple):
    """What a message takes: a latency α in seconds, and its bytes over a bandwidth 1 / β in bytes per second."""

    latency: float
    bandwidth: float

    def seconds(self, size):
        """Return what a message of `size` bytes takes."""
        return self.latency + size / self.bandwidth


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

    Returned are when each place knows its gradient, and how often it computed ⋄ (ranks,). Maps are exchanged as
    `bppsa_nb.distributed.solver` does it.
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


def sequential(steps, ranks, costs, interconnect, whole=False):
    """Predict the seconds of ordinary back-propagation, rank after rank; of a `whole` step of training."""
    held = [part.stop - part.start for part in reversed(partition(steps, ranks))]
    return _seconds(np.array(held), False, costs, interconnect, whole)


def scan(steps, ranks, costs, interconnect, whole=False, longer=1.0):
    """Predict the seconds of the chunked scan: reduce, scan, replay; see `sequential`, whose forward pass it has.

    The segment at the loss may be `longer` than the others, by a factor.
    """
    held = [part.stop - part.start for part in reversed(partition(steps, ranks))]
    if longer != 1:
        others = [int(steps / (ranks - 1 + longer))] * (ranks - 1)
        held = [steps - sum(others), *others]
    return _seconds(np.array(held), True, costs, interconnect, whole)


def longest_at_the_loss(steps, ranks, costs, interconnect, whole=False):
    """Predict the scan whose segment at the loss, which needs no product, is longer by the factor that pays most.

    Returned are the seconds and the factor. Where all ranks multiply as long as the one at the loss goes back, it is
    the product's price over the sweep's; up to there, several are tried.
    """
    most = max(1.0, (costs.jacobian + costs.product) / costs.sweep)
    return min((scan(steps, ranks, costs, interconnect, whole, longer=each), each) for each in np.geomspace(1, most, 9))


def _seconds(held, scanned, costs, interconnect, whole):
    """Predict when the last place is done that has so many steps, (ranks,); forward, place begins after place."""
    sweep, hops = held * costs.sweep, np.arange(len(held)) * interconnect.seconds(costs.state)
    there = (np.cumsum(held[::-1] * costs.forward) + hops)[::-1] if whole else np.zeros(len(held))
    if scanned:  # each place reduces as soon as its own states are there
        reduce = held * (costs.jacobian + costs.product)
        # Nobody needs the last product, and at the loss the gradient is known.
        reduce[-1], reduce[0], sweep[0] = 0, sweep[0], 0
        done = exscan(there + reduce, interconnect, costs.operator)[0] + sweep
    else:
        done = there[0] + np.cumsum(sweep) + hops
    return float(np.max(done + whole * held * costs.gradients))


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
