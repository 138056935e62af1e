"""Several devices: who holds which layer, and what each does next, with pipelines (Section 5.2) and replicas (5.1)."""

from typing import Annotated, Literal, get_args

import numpy as np

from bppsa_nb.machine.arguments import Size, checked
from bppsa_nb.schedule.network import ASSUMED, Amount, Assumptions, Network, OneOrMore, spread
from bppsa_nb.schedule.operations import SF, SW, F, O, W, synchronized, training
from bppsa_nb.schedule.timeline import Timeline, place, within

Policy = Literal["conventional", "gpipe", "1f1b", "fast_forward", "modulo", "zero_bubble"]
POLICIES = get_args(Policy)


@checked
def pipeline(
    network: Network, devices: Size = 2, micro_batches: Size = 1, policy: Policy = "conventional", flush: bool = True,
    boundary_cost: OneOrMore = 0, assumptions: Assumptions = ASSUMED,
) -> Timeline:  # fmt: skip
    """Schedule one iteration of training with layers spread over devices.

    Parameters
    ----------
    network
        Costs of one micro-batch.
    devices
        At most one per layer. Layers go to them in consecutive blocks whose most expensive one is as cheap as
        possible; ``"modulo"`` deals them out one by one.
    micro_batches
        How many.
    policy
        ``"conventional"``: cross-layer model parallelism, one micro-batch after the other, one device at a time.
        ``"gpipe"``: all forward passes, then all backward passes (Huang et al. 2019).
        ``"1f1b"``: a backward pass as soon as one can run, and one forward pass for each (Narayanan et al. 2019).
        ``"fast_forward"``: output gradients first, weight gradients while nothing else can run.
        ``"modulo"``: the same, layer l on device l mod n.
        ``"zero_bubble"``: weight gradients fill the gaps of 1F1B (Qi et al. 2023).
    flush
        What it means depends on the policy.
        ``"fast_forward"``, ``"modulo"``: whether a device ends the forward passes of all micro-batches before its
        first gradient, as in GPipe; otherwise it begins as soon as it can. ``"gpipe"`` and ``"conventional"`` are
        defined with one.
        ``"1f1b"``: False is PipeDream: the same order, but every micro-batch updates the weights
        (see `Timeline.staleness`).
        ``"zero_bubble"``: True is ZB-H1, where every device keeps the inputs of as many micro-batches as the first one
        does in 1F1B; False is ZB-H2, where it is almost twice as many, and devices end at different times (see
        `Timeline.span`). What δW reads waits with it, so output gradients come on top.
    boundary_cost
        The time to send the output of each of the first L - 1 layers to the next one's device, and the gradient back;
        see `transfer_time`. Each direction between two devices is a link that sends one thing at a time.
    assumptions
        What else makespans depend on.
    """
    if devices > network.layers:
        raise ValueError(f"devices must be at most {network.layers}, one per layer of the network, got {devices}")
    if not flush and policy in ("conventional", "gpipe"):
        raise ValueError(f"flush must be True for policy={policy!r}, which ends all of one pass before the next")
    boundary = spread("boundary_cost", boundary_cost, network.layers - 1, "boundary between layers")
    ops = training(network, allocation(network, devices, policy, assumptions), micro_batches, boundary, assumptions)
    if policy in ("fast_forward", "modulo"):
        waits, rank = _greedy(ops, flush)
    else:
        waits, rank = _in_order(ops, policy, flush)
    return place(ops, waits, rank, policy, flush=flush)


def allocation(network: Network, devices: int, policy: Policy, assumptions: Assumptions = ASSUMED) -> np.ndarray:
    """Say who holds which layer under a policy of `pipeline`, integers [shape=(L,)]."""
    if policy == "modulo":
        return np.arange(network.layers) % devices
    return blocks(network, devices, assumptions)


def blocks(network, devices, assumptions):
    """Return each layer's device: in blocks whose dearest is as cheap as can be, and then nearest to equal shares."""
    L, cost = network.layers, network.forward + network.output_grad + network.weight_grad
    if not assumptions.first_output_grad:
        cost[0] -= network.output_grad[0]
    upto = np.concatenate([[0.0], np.cumsum(cost)])

    def begins(limit):
        """Fill device after device up to a limit, from the last one on; return where each begins, None if none fit."""
        first = [L]
        for d in reversed(range(devices)):
            first.append(max(d, int(np.searchsorted(upto, upto[first[-1]] - limit, "left"))))  # everyone gets a layer
            if first[-1] >= first[-2]:
                return None
        return first[::-1] if first[-1] == 0 else None

    # The best limit is the cost of some block: narrow it down until no block's cost lies between.
    low, high = 0.0, upto[-1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if begins(middle) else (middle, high)
    limit = high * (1 + 1e-12)
    soonest, cuts = begins(limit), [0]
    for d in range(1, devices):
        away = np.abs(upto - upto[-1] * d / devices)
        share = int(np.argmax(away <= away.min() + 1e-12 * upto[-1]))  # of equally near ones, the first
        reach = int(np.searchsorted(upto, upto[cuts[-1]] + limit, "right")) - 1
        cuts.append(min(max(share, soonest[d], cuts[-1] + 1), reach, L - devices + d))
    return np.repeat(np.arange(devices), np.diff([*cuts, L]))


def _in_order(ops, policy, flush):
    """Give every device a fixed order."""
    devices, M, L = ops.devices, ops.micro_batches, ops.network.layers
    turn = np.empty((3, devices, M), np.int64)  # when a device comes to each kind of each micro-batch
    for d in range(devices):
        for i, (kinds, m) in enumerate(_turns(policy, flush, d, devices, M)):
            turn[kinds, d, m] = i
    first, second = (W, O) if ops.assumptions.weight_grad_first else (O, W)
    within = np.where(ops.kind == F, ops.layer, 2 * (L - ops.layer) + (ops.kind == second))
    computes = ops.worker < devices
    rank = _by_micro_batch(ops)
    which = ops.kind[computes], ops.worker[computes], ops.micro_batch[computes]
    rank[computes] = turn[which] * (2 * L + 1) + within[computes]
    # One device at a time is as if there were one.
    return [_before(np.where(computes, 0 if policy == "conventional" else ops.worker, -1), rank)], rank


def _turns(policy, flush, d, devices, M):
    """Yield what device d does, one pass of one micro-batch after the other: which kinds, and which micro-batch."""
    backward = [O, W]
    if policy == "conventional":
        yield from ((kinds, m) for m in range(M) for kinds in ([F], backward))
    elif policy == "gpipe":
        yield from ((kinds, m) for kinds in ([F], backward) for m in range(M))
    else:
        # Forward passes before the first backward pass. ZB-H2 has twice as many: they cover the way to the last
        # device and back.
        ahead = (devices - 1 - d) * (1 if flush or policy == "1f1b" else 2)
        # Micro-batches by which δW stays behind δO: as many as make all devices keep equally many.
        delay = 0 if policy == "1f1b" else d if flush else 2 * d
        yield from (([F], m) for m in range(min(ahead, M)))
        for m in range(M):
            if m + ahead < M:
                yield [F], m + ahead
            if policy == "1f1b":
                yield backward, m
            else:
                yield [O], m
                if m >= delay:
                    yield [W], m - delay
        yield from (([W], m) for m in range(max(0, M - delay), M) if delay)


def _before(device, rank):
    """Let everything on a device wait for what stands before it there; nothing on none, which is -1."""
    waits = np.full(len(device), -1)
    order = np.lexsort((rank, device))
    same = (device[order[1:]] == device[order[:-1]]) & (device[order[1:]] >= 0)
    waits[order[1:][same]] = order[:-1][same]
    return waits


def _by_micro_batch(ops):
    """Rank by micro-batch, then by depth: what a pass comes to first goes first."""
    L = ops.network.layers
    depth = np.where((ops.kind == F) | (ops.kind == SF), ops.layer, L - ops.layer)
    return ops.micro_batch * (L + 1) + depth


def _greedy(ops, flush):
    """Prefer what others wait for, and compute weight gradients when there is nothing better to do."""
    rank, above = _by_micro_batch(ops), 2 * len(ops)
    for preference, kind in enumerate((F, O, W) if flush else (O, F, W)):
        rank[ops.kind == kind] += preference * above
    return [_flushed(ops)] if flush else [], rank


def _flushed(ops):
    """Let every gradient wait for the device's last forward pass."""
    waits = np.full(len(ops), -1)
    last = np.full(ops.devices, -1)
    forward = ops.select(F)[-1]
    last[ops.worker[forward]] = forward  # of the layers on one device, the highest is written last
    gradients = np.flatnonzero((ops.kind == O) | (ops.kind == W))
    waits[gradients] = last[ops.worker[gradients]]
    return waits


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
    sends = ops.kind == SW
    rank = np.where(sends, 0, turn[np.minimum(ops.kind, W), ops.layer])
    waits = _before(np.where(sends, -1, 0), rank)  # the device keeps to D
    # On the link: who came first, or whom the forward pass needs first.
    rank[sends] = turn[W, ops.layer[sends]] if policy == "fifo" else ops.layer[sends]
    return place(ops, [waits], rank, policy, k=k if policy == "reverse_first_k" else None)
