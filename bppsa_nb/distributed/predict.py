"""What a chain takes over ranks, predicted: a message takes α + β bytes, and ⋄ what it takes on one rank.

A message between two ranks takes a latency and its bytes over the bandwidth, whatever else is under way. Maps are
exchanged by MPI's Exscan, by recursive doubling, as MPICH does it. Ranks are places, counted from the loss. What they
do ends in events: by when the last one ends, ``method="auto"`` chooses, and experiments predict larger machines.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bppsa_nb.machine.parts import partition
from bppsa_nb.schedule.events import Event, makespan


class Interconnect(NamedTuple):
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


# Ranks of one computer; `bppsa_nb.papers.bppsa.rank_scaling` fits 2.3 µs and 6.1 GB/s to messages that it measures.
SHARED_MEMORY = Interconnect(2e-6, 5e9)


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


def exscan(ready, interconnect, diamonds):
    """Simulate MPI's Exscan over maps by recursive doubling; place 0 is at the loss.

    Parameters
    ----------
    ready : array_like [shape=(ranks,)]
        When each place has its map, in seconds.
    interconnect : Interconnect
    diamonds : Diamonds

    Returns
    -------
    done : np.ndarray [shape=(ranks,)]
        When each place knows its gradient.
    combined : np.ndarray of int [shape=(ranks,)]
        How often each place computed ⋄.
    """
    now, message = np.array(ready, float) + diamonds.start, interconnect.seconds(diamonds.size)
    place, combined, step = np.arange(len(now)), np.zeros(len(now), int), 1
    while step < len(now):  # blocks of as many places swap what they have reduced to
        other, farther = place ^ step, (place | step) // step * step
        meets = other < len(now)
        one = np.where(place < 2 * step, diamonds.apply, diamonds.merge)  # what begins at the loss is a gradient
        both = np.where(farther == len(now) - 1, diamonds.keep, one)  # the last place has the identity
        again = (place > other) & (place % step > 0)  # what lies before a place in its own block goes on, too
        other = np.where(meets, other, place)
        now = np.where(meets, np.maximum(now, now[other]) + message + both + again * one, now)
        combined += meets * (1 + again)
        step *= 2
    return now, combined


class Runs(NamedTuple):
    """What the runs of all places take by themselves, in seconds [shape=(ranks,)], and what they exchange.

    Attributes
    ----------
    sweep, reduce : np.ndarray
        Going back along a run, and multiplying it into one product.
    forward, gradients : np.ndarray or None
        The forward pass along it, and its share of the parameters' gradients; None for a backward pass alone.
    state : int
        Bytes of a state.
    diamonds : Diamonds
    """

    sweep: np.ndarray
    reduce: np.ndarray
    forward: np.ndarray | None
    gradients: np.ndarray | None
    state: int
    diamonds: Diamonds

    def events(self, method, interconnect):
        """Schedule the chunked scan (reduce, Exscan, replay), or ordinary back-propagation, handed on by the ranks.

        The forward pass goes rank after rank; each one reduces as soon as its own states are there.

        Parameters
        ----------
        method : {"chunked", "linear"}
        interconnect : Interconnect

        Returns
        -------
        list of Event
            Worker i is place i.
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
            done = exscan(ready, interconnect, self.diamonds)[0]
            phases += [("reduce", there, reduce), ("Exscan", ready, done - ready), ("replay", done, sweep)]
        if self.gradients is not None:
            phases.append(("δW", phases[-1][1] + sweep, self.gradients))
        return [
            Event(place, start, took, label)
            for label, starts, durations in phases
            for place, (start, took) in enumerate(zip(starts.tolist(), durations.tolist(), strict=True))
        ]


@lru_cache(256)
def faster(sweep, reduce, state, diamonds, interconnect=SHARED_MEMORY):
    """Choose the method of a backward pass that is predicted to end first.

    Parameters
    ----------
    sweep, reduce : tuple of float
    state, diamonds
        As of `Runs`.
    interconnect : Interconnect

    Returns
    -------
    {"linear", "chunked"}
    """
    runs = Runs(sweep, reduce, None, None, state, diamonds)
    return min(("linear", "chunked"), key=lambda method: makespan(runs.events(method, interconnect)))


def scan(steps, ranks, costs, interconnect, whole=False):
    """Predict the chunked scan of steps that are shared out evenly.

    Parameters
    ----------
    steps, ranks : int
    costs : Costs
    interconnect : Interconnect
    whole : bool
        Whether to predict a step of training, or the backward pass alone.

    Returns
    -------
    float
        Seconds.
    """
    return makespan(_runs(steps, ranks, costs, whole).events("chunked", interconnect))


def rank_after_rank(steps, ranks, costs, interconnect, whole=False):
    """Predict ordinary back-propagation; parameters and result are those of `scan`."""
    return makespan(_runs(steps, ranks, costs, whole).events("linear", interconnect))


def _runs(steps, ranks, costs, whole):
    held = np.array([part.stop - part.start for part in partition(steps, ranks)])[::-1]
    around = (held * costs.forward, held * costs.gradients) if whole else (None, None)
    return Runs(held * costs.sweep, held * (costs.jacobian + costs.product), *around, costs.state, costs.diamonds)


def pipeline(steps, ranks, micro_batches, costs, interconnect):
    """Predict GPipe: micro-batches go forward through all ranks, then back (Figure 11, Appendix B).

    Ranks keep the states of their steps, as the others do, and compute none again.

    Parameters
    ----------
    steps, ranks, micro_batches : int
    costs : Costs
        Of one micro-batch.
    interconnect : Interconnect

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
    message = 2 * (ranks - 1) * interconnect.seconds(costs.state)
    seconds = (micro_batches + ranks - 1) * (forward + backward) + message
    return seconds, 1 - micro_batches * (forward + backward) / seconds
