"""What tests of schedules draw at random, and timelines as the rows that naive_schedule.py reads."""

import naive_schedule as naive
import numpy as np

from bppsa_nb import schedule

# Every policy, with what flush may be.
PIPELINES = [(policy, True) for policy in ("conventional", "gpipe", "1f1b", "fast_forward", "modulo", "zero_bubble")]
PIPELINES += [(policy, False) for policy in ("1f1b", "fast_forward", "modulo", "zero_bubble")]


def rows(timeline):
    """A timeline as naive_schedule.py reads it."""
    names = ("F", "δO", "δW", "S[F]", "S[δO]", "S[δW]")
    ops = timeline.operations
    columns = zip(ops.worker, ops.kind, ops.layer, ops.micro_batch, timeline.start, ops.duration, strict=True)
    return [(ops.workers[w], names[k], int(l), int(m), float(s), float(d)) for w, k, l, m, s, d in columns]


def problem(timeline, boundary=None):
    """The rules for a timeline, from its costs and who holds each layer."""
    ops = timeline.operations
    net, first = ops.network, ops.assumptions.first_output_grad
    forward, output, weight = net.forward.tolist(), net.output_grad.tolist(), net.weight_grad.tolist()
    if boundary is None:
        return naive.data_parallel_problem(forward, output, weight, net.sync.tolist(), first)
    boundary = np.broadcast_to(boundary, net.layers - 1).tolist()
    device = naive.devices_of(rows(timeline), net.layers)
    return naive.pipeline_problem(forward, output, weight, device, boundary, ops.micro_batches, first)


def assumptions(rng):
    """Any of the four."""
    return schedule.Assumptions(*(bool(choice) for choice in rng.integers(0, 2, 2)))


def costs(rng, count, floats=False):
    """Costs of layers: often zeros and ties, which are exact as integers."""
    if floats:
        return rng.random(count) * rng.choice([1e-3, 1, 1e3], count)
    return rng.integers(0, 5, count) if rng.random() < 0.7 else np.full(count, rng.integers(0, 3))


def network(rng, layers, floats=False, sync=False):
    """A network with memory and costs of any kind."""
    memory = schedule.Memory(*(rng.integers(0, 4, layers) for _ in range(4)))
    return schedule.Network(*(costs(rng, layers, floats) for _ in range(4 if sync else 3)), memory=memory)


def pipelines(rng, layers=8, devices=5, micro_batches=5, floats=False, **fixed):
    """One timeline for every policy, of one network; also what it costs to cross each boundary."""
    L = int(rng.integers(1, layers + 1))
    net = network(rng, L, floats)
    boundary = [0, costs(rng, L - 1, floats), 2][rng.integers(3)]
    D, M = int(rng.integers(1, min(L, devices) + 1)), int(rng.integers(1, micro_batches + 1))
    chosen = {"devices": D, "micro_batches": M, "boundary_cost": boundary, "assumptions": assumptions(rng)} | fixed
    return [schedule.pipeline(net, policy=policy, flush=flush, **chosen) for policy, flush in PIPELINES], boundary
