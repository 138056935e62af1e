"""One step of training by four methods under one cost model: who does what, and when.

Time and work are counted in layer steps: what it takes to multiply a whole batch of states with the weights of one
dense layer, batch times q² multiply-adds. An adjoint step and the gradient of a layer's weights take as much; slopes of
activations, which a forward step leaves behind, additions and the loss are free. A message takes LATENCY, and TRANSFER
for a state of the whole batch; less for one of a micro-batch, more for a Jacobian of every sample.

Memory is counted in states of the whole batch: states, gradients at states and Jacobians. Weights, and their gradients,
are with the layers and the same for all.
"""

from typing import NamedTuple

import numpy as np

import bppsa_nb as bp
from bppsa_nb import multigrid, schedule
from bppsa_nb.papers import timelines
from bppsa_nb.papers.multigrid.recording import record
from bppsa_nb.schedule import events as timeline

LATENCY, TRANSFER = 0.25, 0.25  # layer steps
COARSENING = 4


class Step(NamedTuple):
    """One step of training, scheduled and counted.

    `events` of workers come before those of links, and have kinds of `draw.OPERATION_COLORS`, "F coarse", "δO coarse",
    "J" (Jacobians made, or multiplied) or "loss"; `needs` are the events that each one waits for. `steps` is the
    longest chain of steps, or products, that wait for each other, of whatever size; `work` is in layer steps; `memory`,
    the states, gradients and Jacobians on the worker that stores most of them. `backward` is how long the rest takes
    where states are there and workers idle; of a pipeline, whose passes overlap, how long it takes after the last loss.
    """

    events: list
    needs: list
    steps: int
    work: float
    memory: float
    backward: float

    @property
    def time(self):
        """float: when all is done."""
        return timeline.makespan(self.events)


def pipeline(depth, workers, micro_batches=1):
    """Spread layers over workers, and micro-batches over time, by 1F1B; one micro-batch is ordinary back-propagation.

    The batch is split evenly, and a micro-batch costs its share of the batch.
    """
    share = depth / workers / micro_batches  # of one worker's layers, for one micro-batch
    costs = [share] * workers
    network = schedule.Network(costs, costs, costs, memory=schedule.Memory(share, share, 0))
    usual = schedule.Assumptions(first_output_grad=True, weight_grad_first=False)
    boundary = LATENCY + TRANSFER / micro_batches
    planned = schedule.pipeline(network, workers, micro_batches, "1f1b", True, boundary, usual)
    planned.check()
    needs = [before[before >= 0].tolist() for before in planned.operations.needs]
    forward = max(event.end for event in planned.events if event.kind == "F" and event.worker == workers - 1)
    memory = float(planned.peak_memory.max())
    return Step(planned.events, needs, 2 * depth, 3 * depth, memory, planned.makespan - forward)


def layer_parallel(depth, workers, cycles):
    """Solve for states and for gradients by multigrid: V-cycles, FCF-relaxation, a block or more per worker."""
    workers = min(workers, -(-depth // COARSENING))
    recorded = record(depth, workers, cycles=cycles, coarsening=COARSENING)
    events, needs = recorded.timeline(message=LATENCY + TRANSFER)
    backward = timeline.makespan(recorded.part("loss", "δO", "δW").timeline(message=LATENCY + TRANSFER)[0])
    states = -(-depth // workers) + 1
    memory = float(max(recorded.stored["F"].max(), states + recorded.stored["δO"].max()))
    steps = record(depth, cycles=cycles, coarsening=COARSENING).span()  # each block is one task
    return Step(events, needs, steps, recorded.work(), memory, backward)


def scan(depth, workers, width):
    """Propagate forward layer by layer, which nothing can scan; then scan transposed Jacobians by Algorithm 1.

    Position i of Equation 5's array is with the worker that holds layer N - i, and so is the product that stands there.
    A product of Jacobians takes `width` layer steps, one with a gradient one; so does making a layer's Jacobians.
    """
    run, owner = timelines.traced(depth, "blelloch"), np.arange(depth) * workers // depth
    held = np.bincount(owner)
    tasks, needs, sending, made = [], [], [], {}

    def add(worker, took, kind, before, size=1):
        tasks.append(timeline.Event(int(worker), 0, float(took), kind, kind))
        needs.append(sorted(before))
        sending.append(LATENCY + TRANSFER * size)
        return len(tasks) - 1

    for w in range(workers):
        last = add(w, held[w], "F", {len(tasks) - 1} if tasks else ())
    loss = add(workers - 1, 0, "loss", {last})
    for w in range(workers):
        jacobians = add(w, held[w], "J", {w}, width)
        made |= {x: jacobians for x in run.inputs[1:] if owner[depth - x.span[0]] == w}
    made[run.inputs[0]] = loss
    for level in run.levels:
        for position, product in level.changes.items():
            if product in level.products:
                worker, needed = owner[max(depth - position, 0)], {made[parent] for parent in product.parents}
                is_matrix = product.product == "mm"
                cost = width if is_matrix else 1
                made[product] = add(worker, cost, "J" if is_matrix else "δO", needed, cost)
    for w in range(workers):
        gradients = {made[run.result[depth - layer]] for layer in np.flatnonzero(owner == w)}
        add(w, held[w], "δW", gradients | {w})
    events, waits = timeline.in_order(tasks, needs, sending)
    rest = [[i - workers for i in before if i >= workers] for before in needs[workers:]]  # without the forward pass
    backward = timeline.makespan(timeline.in_order(tasks[workers:], rest, sending[workers:])[0])
    steps = depth + 1 + run.critical_path()[0] + 1  # forward, the last Jacobian, products, a weight gradient
    memory = held.max() * (2 + width) + 1
    work = 3 * depth + run.mm * width + run.mv
    return Step(events, waits, steps, work, float(memory), backward)


def errors(depth, width, batch, cycles, rng):
    """Compute gradients of the parameters by all methods, of dense layers with tanh and a time of T = 1 (Eq. 2).

    Returns ||difference|| / ||gradient||, over all weights and biases, from those of back-propagation: a dict by
    "scan", and by how many cycles multigrid takes. Weights are drawn independently.
    """
    weights = rng.standard_normal((depth, width, width)) / np.sqrt(width)
    net = multigrid.ResidualNetwork(weights, 0.1 * rng.standard_normal((depth, width)), 1 / depth)
    u0, grad_output = rng.standard_normal((2, batch, width))

    def gradients(states, gradients):
        return np.concatenate([grad.ravel() for grad in net.parameter_gradients(states, gradients)])

    states = net.forward(u0)
    right = gradients(states, net.backward(states, grad_output))
    computed = {"scan": gradients(states, bp.backprop(net.jacobians_T(states), grad_output, method="blelloch"))}
    for k in cycles:
        options = {"cycles": k, "coarsening": COARSENING}
        solved = multigrid.solve(net, u0, **options).states
        adjoint = multigrid.solve_adjoint(net, solved, grad_output, **options).states
        computed[k] = gradients(solved, adjoint)
    return {method: float(np.linalg.norm(each - right) / np.linalg.norm(right)) for method, each in computed.items()}
