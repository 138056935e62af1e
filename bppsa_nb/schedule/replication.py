"""Data-parallel training: in which order to compute and to send weight gradients (Section 5.1)."""

from typing import Annotated, Literal

import numpy as np

from bppsa_nb.machine.arguments import checked
from bppsa_nb.schedule.network import ASSUMED, Amount, Assumptions, Network
from bppsa_nb.schedule.operations import SW, F, O, W, synchronized
from bppsa_nb.schedule.timeline import Timeline, place, within


@checked
def data_parallel(
    network: Network, policy: Literal["fifo", "priority", "reverse_first_k"] = "fifo",
    k: Annotated[int, ">= 0, <= network.layers"] | None = None, memory_limit: Amount | None = None,
    assumptions: Assumptions = ASSUMED,
) -> Timeline:  # fmt: skip
    """Schedule one iteration of data-parallel training: backward pass, synchronization, the next forward pass.

    All devices run the same schedule, so one of them stands for all. Gradients are sent over one link, one at a time,
    never interrupted; the device keeps computing meanwhile (wait-free back-propagation).

    Parameters
    ----------
    network
        Its `sync` times must be set.
    policy
        ``"fifo"``: gradients are computed layer by layer, and sent in that order.
        ``"priority"``: the link sends the waiting gradient of the lowest layer first, because the next forward pass
        needs it first.
        ``"reverse_first_k"``: like ``"priority"``, but the weight gradients of layers 1 to k are computed last, in the
        order 1, 2, ..., k (Algorithm 2).
    k
        For ``"reverse_first_k"``, 0 to L; by default the lowest of the best ones, found by trying all.
    memory_limit
        For ``"reverse_first_k"``: what `Timeline.peak_memory` must not exceed, in the unit of `Network.memory`. A
        given k is lowered until it fits (Algorithm 2, line 2).
    assumptions
        Further modeling assumptions.

    Returns
    -------
    Timeline
        Its `k` is the one that was used.

    Notes
    -----
    Line 1 of Algorithm 2 estimates memory at one moment, when layer k's output gradient is done. Here the limit holds
    for the whole schedule.

    The backward pass ends before the forward pass begins. That costs nothing: where a δW follows an F, both can change
    places. Reverse first-k may only miss a better order of the δW among the δO.
    """
    if network.sync is None:
        raise ValueError("network must have sync, the times of S[δW], for data-parallel training; got None")
    ops = synchronized(network, assumptions)
    if policy != "reverse_first_k":
        for name, value in (("k", k), ("memory_limit", memory_limit)):
            if value is not None:
                raise ValueError(f"{name} is for policy='reverse_first_k' only, got {value!r} with policy={policy!r}")
        return _reversed(ops, 0, policy)
    falling = range(network.layers if k is None else k, -1, -1)
    tried = (_reversed(ops, each, policy) for each in (falling if k is not None else falling[::-1]))
    fitting = within(memory_limit, tried, "{:g}, which reverse first-k needs")
    best = next(fitting)
    for timeline in fitting if k is None else ():
        # Sums of the same costs in another order differ by rounding: among equals, the lowest k.
        if timeline.makespan < best.makespan * (1 - 1e-12):
            best = timeline
    return best


def _reversed(ops, k, policy):
    """Place operations in the order of Algorithm 2."""
    L = ops.network.layers
    turn = np.empty((3, L + 1), np.int64)  # of every kind and layer in D; forward passes follow
    turn[F] = 3 * L + np.arange(L + 1)
    descending = 2 * (L - np.arange(L + 1))
    turn[O] = descending + ops.assumptions.weight_grad_first  # lines 3 to 5
    turn[W] = descending + (not ops.assumptions.weight_grad_first)
    turn[W, 1 : k + 1] = 2 * L + np.arange(k)  # line 6
    rank = np.where(ops.kind == SW, 0, turn[np.minimum(ops.kind, W), ops.layer])
    computes = np.flatnonzero(ops.kind != SW)
    computes = computes[np.argsort(rank[computes])]
    waits = np.full(len(ops), -1)
    waits[computes[1:]] = computes[:-1]  # the device keeps to D
    sends = ops.kind == SW
    # On the link: who came first, or whom the forward pass needs first.
    rank[sends] = turn[W, ops.layer[sends]] if policy == "fifo" else ops.layer[sends]
    return place(ops, [waits], rank, policy, k=k if policy == "reverse_first_k" else None)
