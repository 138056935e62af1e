"""What a backward pass over ranks takes, predicted: a message takes α + β bytes, and ⋄ what it takes on one rank.

Steps (links of a chain) have a cost each, in seconds for the whole batch, and are shared out evenly. A message between
two ranks takes a latency and its bytes over the bandwidth, whatever else is under way. The exchange of maps is MPI's
Exscan by recursive doubling, as MPICH does it.
"""

from typing import NamedTuple

import numpy as np

from bppsa_nb.distributed.maps import CONSTANT, IDENTITY, LINEAR
from bppsa_nb.machine.parts import partition


class Link(NamedTuple):
    """What a message takes.

    Attributes
    ----------
    latency : float
        Seconds, α.
    bandwidth : float
        Bytes per second, 1 / β.
    """

    latency: float
    bandwidth: float

    def seconds(self, size):
        """Return what a message of `size` bytes takes."""
        return self.latency + size / self.bandwidth


class Diamonds(NamedTuple):
    """What one rank takes to combine maps, γ, in seconds.

    Attributes
    ----------
    merge, apply, keep : float
        ⋄ of two products; of a product and a gradient that is known; of a map and the identity.
    start : float
        What Exscan takes before the first message.
    size : int
        Bytes of a map.
    """

    merge: float
    apply: float
    keep: float
    start: float
    size: int


class Costs(NamedTuple):
    """What one rank takes by itself, in seconds for one step of the whole batch.

    Attributes
    ----------
    forward, sweep : float
        A step forward, and a step back.
    gradients : float
        A step's share of the parameters' gradients.
    jacobian : float
        Storing a step's Jacobians; 0 for a structured chain.
    product : float
        Multiplying a step's Jacobians to the run's product.
    state : int
        Bytes of a state.
    diamonds : Diamonds
    """

    forward: float
    sweep: float
    gradients: float
    jacobian: float
    product: float
    state: int
    diamonds: Diamonds


def exscan(ready, link, diamonds):
    """Simulate MPI's Exscan over maps by recursive doubling; place 0 is at the loss.

    Parameters
    ----------
    ready : array_like [shape=(ranks,)]
        When each place has its map, in seconds.
    link : Link
    diamonds : Diamonds

    Returns
    -------
    done : np.ndarray [shape=(ranks,)]
        When each place knows its gradient.
    combined : np.ndarray of int [shape=(ranks,)]
        How often each place computed ⋄.
    """
    now, message = np.array(ready, float) + diamonds.start, link.seconds(diamonds.size)
    size = len(now)
    kind = np.full(size, LINEAR)
    kind[-1], kind[0] = IDENTITY, CONSTANT
    above = np.full(size, -1)  # the kind of what is known of places closer to the loss
    combined = np.zeros(size, int)

    def diamond(a, b):
        """Return what a ⋄ takes, and its kind."""
        took = np.where(a == CONSTANT, diamonds.apply, diamonds.merge)
        took = np.where((a == IDENTITY) | (b == IDENTITY), diamonds.keep, took)
        return took, np.maximum(a, b)  # a gradient that is known stays so, and so does a product

    step = 1
    while step < size:
        places = np.arange(size)
        other = places ^ step
        meets = other < size
        mine, theirs = places[meets], other[meets]
        now[mine] = np.maximum(now[mine], now[theirs]) + message
        came = kind[theirs]
        from_loss = mine > theirs
        took, merged = diamond(np.where(from_loss, came, kind[mine]), np.where(from_loss, kind[mine], came))
        below, first = mine[from_loss], above[mine[from_loss]] < 0
        again, kept = diamond(came[from_loss], above[below])
        now[mine] += took
        now[below] += np.where(first, 0, again)
        combined[mine] += 1
        combined[below] += ~first
        kind[mine] = merged
        above[below] = np.where(first, came[from_loss], kept)
        step *= 2
    return now, combined


def scan(steps, ranks, costs, link, whole=False):
    """Predict the chunked scan: reduce, Exscan, replay.

    Parameters
    ----------
    steps, ranks : int
    costs : Costs
    link : Link
    whole : bool
        Whether to predict a step of training: the forward pass goes rank after rank, and each rank multiplies as soon
        as its own states are there; the parameters' gradients follow the replay. Otherwise, the backward pass alone.

    Returns
    -------
    float
        Seconds.
    """
    held = _held(steps, ranks)
    start = np.zeros(ranks)
    if whole:  # places count from the loss
        start = (np.cumsum(held[::-1] * costs.forward) + np.arange(ranks) * link.seconds(costs.state))[::-1]
    work = held * (costs.jacobian + costs.product)
    work[-1], work[0] = 0, held[0] * costs.sweep
    ready = start + work
    done = exscan(ready, link, costs.diamonds)[0]
    done[1:] += held[1:] * costs.sweep
    return float(np.max(done + whole * held * costs.gradients))


def rank_after_rank(steps, ranks, costs, link, whole=False):
    """Predict ordinary back-propagation, handed on from rank to rank; parameters and result are those of `scan`."""
    held, hops = _held(steps, ranks), np.arange(ranks)
    arrive = np.cumsum(held * costs.sweep) + hops * link.seconds(costs.state)
    if whole:
        arrive += steps * costs.forward + hops[-1] * link.seconds(costs.state)
    return float(np.max(arrive + whole * held * costs.gradients))


def pipeline(steps, ranks, micro_batches, costs, link):
    """Predict GPipe: micro-batches go forward through all ranks, then back (Figure 11, Appendix B).

    Ranks keep the states of their steps, as on the other roads, and compute none again.

    Parameters
    ----------
    steps, ranks, micro_batches : int
    costs : Costs
        Of one micro-batch.
    link : Link

    Returns
    -------
    seconds : float
        Of a step of training.
    bubble : float
        The share of it in which a rank has nothing to do.
    """
    held = -(-steps // ranks)
    forward = held * costs.forward
    backward = held * (costs.sweep + costs.gradients)
    message = 2 * (ranks - 1) * link.seconds(costs.state)
    seconds = (micro_batches + ranks - 1) * (forward + backward) + message
    return seconds, 1 - micro_batches * (forward + backward) / seconds


def _held(steps, ranks):
    """Return how many steps each place holds, the one at the loss first."""
    return np.array([part.stop - part.start for part in partition(steps, ranks)])[::-1]
