"""What multigrid does, counted and scheduled: the cycles run over values that only remember which task made them.

Nothing here knows Algorithm 1. `bppsa_nb.multigrid.cycles` runs, with a sweep that computes nothing: it notes, for
every block, who does how many layer steps, and which blocks these wait for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, Self

import numpy as np

from bppsa_nb.machine.arguments import Size, checked
from bppsa_nb.machine.checks import with_repr
from bppsa_nb.multigrid.cycles import Alone, Cycles, GridLevel, Options
from bppsa_nb.multigrid.grids import check_levels, hierarchy
from bppsa_nb.networks import residual_steps as steps
from bppsa_nb.schedule import events as timeline

COSTS = {"F": 1, "δO": 1, "δW": 1}


class Task(NamedTuple):
    """Steps that one worker does in a row: those of a block, or its part of them.

    They are of kind ``"F"``, ``"δO"`` or ``"δW"`` (steps of the network, of its adjoint, gradients of parameters), or
    ``"loss"``, which takes none. Level 0 is the finest. `layers` says whose parameters each step uses or whose gradient
    it computes, `needs` lists the numbers of the tasks that it waits for.
    """

    worker: int
    kind: str
    level: int
    layers: np.ndarray
    needs: list

    @property
    def label(self) -> str:
        """What it does, such as ``"F of level 0, layers 4-7"``."""
        span = f", layers {min(self.layers)}-{max(self.layers)}" if len(self.layers) else ""
        return f"{self.kind} of level {self.level}{span}"


@with_repr("tasks", "stored")
@dataclass(frozen=True)
class Recording:
    """One step of training, as it ran: states, the loss, gradients at all states, gradients of the parameters.

    `tasks` are in the order of the program. `stored` has, by kind ``"F"`` and ``"δO"``, how many states or gradients
    each worker stores for the cycles [shape=(workers,)]: all points, right-hand sides, and what blocks end with.
    """

    tasks: list
    stored: dict

    def part(self, *kinds: str) -> Self:
        """Return the recording of some kinds of tasks alone; what they need of others is there."""
        number = {i: n for n, i in enumerate(i for i, task in enumerate(self.tasks) if task.kind in kinds)}
        kept = (self.tasks[i] for i in number)
        tasks = [task._replace(needs=[number[j] for j in task.needs if j in number]) for task in kept]
        return type(self)(tasks, {kind: count for kind, count in self.stored.items() if kind in kinds})

    def durations(self, costs: Mapping[str, float] = COSTS) -> list[float]:
        """Return what each task takes if a step takes costs[kind]."""
        return [len(task.layers) and len(task.layers) * costs[task.kind] for task in self.tasks]

    def work(self, costs: Mapping[str, float] = COSTS) -> float:
        """Return what all tasks take one after the other."""
        return sum(self.durations(costs))

    def span(self, costs: Mapping[str, float] = COSTS) -> float:
        """Return what the longest chain of tasks that wait for each other takes; moving data is free."""
        ends = []
        for task, own in zip(self.tasks, self.durations(costs), strict=True):
            ends.append(own + max((ends[j] for j in task.needs), default=0))
        return max(ends, default=0)

    def timeline(self, costs: Mapping[str, float] = COSTS, message: float = 0) -> tuple[list, list]:
        """Schedule the tasks on their workers, in the order of the program; return events, and what each needs.

        A step takes costs[kind], and `message` is what it takes to send a state or a gradient to another worker.
        Messages come last; kinds are the tasks', with ``"coarse"`` after those of coarser levels.
        """
        kinds = [f"{task.kind} coarse" if task.level else task.kind for task in self.tasks]
        columns = zip(self.tasks, self.durations(costs), kinds, strict=True)
        tasks = [timeline.Event(task.worker, 0, took, task.label, kind) for task, took, kind in columns]
        return timeline.in_order(tasks, [task.needs for task in self.tasks], [message] * len(tasks))


@checked
def record(
    depth: Size, workers: Size = 1, cycles: Size = 1, coarsening: Annotated[int, ">= 2"] = 4,
    levels: Size | None = None, **options: Any,
) -> Recording:  # fmt: skip
    """Record one step of training whose states and gradients come from multigrid: a `Recording`.

    The first state is with every worker; the gradient at the last one must be sent. Workers hold consecutive layers:
    whole blocks of the finest level, as equally many as possible. Blocks of coarser levels may reach over several
    workers, each doing the steps of its own layers; `multigrid.partition` avoids that, and so takes fewer ranks. There
    are as many `cycles` forward as backward. All other arguments are those of `multigrid.solve`; ``levels=1`` is
    ordinary back-propagation.
    """
    coarsening, levels = check_levels(depth, coarsening, levels)
    options = Options(cycles, 0.0, coarsening, levels, **options)
    block = coarsening if levels > 1 else 1
    blocks = -(-depth // block)
    if workers > blocks:
        raise ValueError(f"workers must be at most the {blocks} blocks of the finest level, got {workers}")
    ends = [min(depth, block * (blocks * w // workers)) for w in range(workers + 1)]
    run = _Run(options, np.repeat(np.arange(workers), np.diff(ends)))
    states = run.cycles("F", np.full(depth + 1, -1))
    run.add("loss", 0, workers - 1, [], states[-1:])
    gradients = run.cycles("δO", np.full(depth + 1, len(run.tasks) - 1), states)
    for first in range(0, depth, block):
        layers = np.arange(first, min(first + block, depth))
        run.add("δW", 0, run.owner[first], layers, states[layers], gradients[layers + 1])
    return Recording(run.tasks, run.stored)


class _Run:
    """The tasks so far; owner says who holds each layer."""

    def __init__(self, options, owner):
        self.options, self.owner, self.tasks, self.stored = options, owner, [], {}

    def add(self, kind, level, worker, layers, *needs):
        needs = np.unique(np.concatenate(needs))
        self.tasks.append(Task(int(worker), kind, level, np.asarray(layers, int), needs[needs >= 0].tolist()))

    def cycles(self, kind, first, states=None):
        """Run cycles over numbers of tasks, -1 where there is none; return who made the value at every point."""
        grids = hierarchy(len(self.owner), self.options.coarsening, self.options.levels)
        if kind == "δO":
            grids = [grid.reversed() for grid in grids]
        sweeps = [partial(self._sweep, kind, level, states) for level in range(len(grids))]
        levels = [GridLevel(grid, 1, first, _OPS, sweep) for grid, sweep in zip(grids, sweeps, strict=True)]
        Cycles(levels, self.options, Alone(kind == "δO")).run()
        self.stored[kind] = sum(self._stored(*each) for each in zip(levels, grids, strict=True))
        return levels[0].points[::-1] if kind == "δO" else levels[0].points

    def _sweep(self, kind, level, states, points, source, bounds, layers, sizes):
        """Note what `bppsa_nb.networks.residual_steps.forward_sweep` or its adjoint would do."""
        arrivals = np.empty(len(bounds) - 1, int)
        for block, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
            cuts = start + 1 + np.flatnonzero(np.diff(self.owner[layers[start:stop]]))
            for a, b in zip([start, *cuts], [*cuts, stop], strict=True):
                needs = [points[a : a + 1]]
                needs += [] if source is None else [source[a:b].ravel()]
                needs += [] if states is None else [states[layers[a:b]]]
                self.add(kind, level, self.owner[layers[a]], layers[a:b], *needs)
                arrivals[block] = len(self.tasks) - 1
                points[a + 1 : min(b + 1, stop)] = arrivals[block]  # at b, where the next worker goes on
        return arrivals

    def _stored(self, level, grid):
        workers = self.owner[-1] + 1
        mine = np.bincount(self.owner[grid.layers], minlength=workers)  # steps of this level
        ends = np.bincount(self.owner[grid.layers[grid.bounds[1:] - 1]], minlength=workers)
        return mine + (mine > 0) + (0 if level.source is None else mine) + ends


# What the cycles do between sweeps, over numbers of tasks: a difference waits for both.
_OPS = SimpleNamespace(
    load=steps.load, take=steps.take, put=steps.put,
    difference=lambda a, b: np.stack([a, b], axis=1),
    norms=lambda values: np.zeros(len(values)),
)  # fmt: skip
