"""Two streams of one device: how they run beside each other, and the timeline of it.

Two kernels that run together with speed-up p each advance at p/2 of their own speed; alone, at their own. Equal ones
then end together p times sooner than one after the other.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bppsa_nb.schedule.events import Event
from bppsa_nb.schedule.operations import F, O, Operations, W
from bppsa_nb.schedule.timeline import Timeline

_MAIN, _SUB = range(2)


@dataclass(frozen=True, eq=False)
class Problem:
    """What Algorithm 1 works on; times are counted in the main stream's own work, from its start.

    Counted so, a kernel takes its own time in every region, and a region what its kernels take: both slow down alike.
    """

    regions: Any  # Regions
    kernels: np.ndarray  # [shape=(K,)] layers, in the order in which they get ready
    speedup: np.ndarray  # [shape=(N, K)]
    kind: np.ndarray  # [shape=(n,)] of the main stream's operations, in their order
    layer: np.ndarray  # [shape=(n,)]
    duration: np.ndarray  # [shape=(n,)]
    first: np.ndarray  # [shape=(N,)] how many operations come before each region
    begin: np.ndarray  # [shape=(N,)] when each region begins
    end: np.ndarray  # [shape=(N,)]
    took: np.ndarray  # [shape=(K,)] what each kernel takes
    ready: np.ndarray  # [shape=(K,)] when its output gradient is there
    due: np.ndarray  # [shape=(K,)] when its layer's F starts

    @property
    def total(self) -> float:
        """All work."""
        return float(self.duration.sum() + self.took.sum())


def _run(problem, order, region):
    """Run both streams from event to event; return operations, the main stream's first, and their starts and ends."""
    L, main, kernels = problem.regions.network.layers, len(problem.kind), problem.kernels[order]
    kind = np.concatenate([problem.kind, np.full(len(kernels), W)])
    layer = np.concatenate([problem.layer, kernels])
    n, number = len(kind), np.full((3, L + 2), -1)
    number[kind, layer] = np.arange(n)
    needs = np.full((n, 2), -1)
    gradients = kind != F
    needs[gradients, 0] = number[O, layer[gradients] + 1]
    needs[~gradients, 0] = number[W, layer[~gradients]]
    needs[~gradients, 1] = number[F, layer[~gradients] - 1]
    worker = np.repeat([_MAIN, _SUB], [main, n - main])
    duration = np.concatenate([problem.duration, problem.took[order]])
    names, network, assumptions = ("main stream", "sub stream"), problem.regions.network, problem.regions.assumptions
    operations = Operations(kind, layer, np.zeros(n, np.int64), worker, duration, needs, names, 1, network, assumptions)

    rate = (problem.speedup[:, order] / 2).tolist()
    within = problem.regions.of(problem.kind, problem.layer).tolist()
    gate = np.where(region > 0, problem.first[region - 1], 0)[order].tolist()
    start, end, left, before = [None] * n, [None] * n, duration.tolist(), needs.tolist()

    def ready(x):
        return all(b < 0 or end[b] is not None for b in before[x])

    now, close, i, j = 0.0, 1e-12 * problem.total, 0, main  # what each stream does or waits for
    while i < main or j < n:
        running = [i] if i < main and ready(i) else []
        if j < n and gate[j - main] <= i and ready(j):
            running.append(j)
        if not running:
            raise AssertionError(f"{operations.name(i)} and {operations.name(j)} wait for each other")
        for x in running:
            start[x] = now if start[x] is None else start[x]
        advance = min(left[x] for x in running)
        now += advance / (rate[within[i]][j - main] if len(running) == 2 else 1.0)
        for x in running:
            left[x] -= advance
            if left[x] <= close:
                end[x] = now
                i, j = (i + 1, j) if x < main else (i, j + 1)
    return operations, np.array(start), np.array(end)


class TwoStreams(Timeline):
    """A schedule of one iteration for two streams of one device: backward pass, then the next forward pass.

    An operation takes longer than its cost while the other stream runs too.

    Attributes
    ----------
    operations, start, end, policy, flush
        As in `Timeline`. `Operations.duration` is what an operation takes alone.
    k : int
        How many regions were pre-scheduled.
    regions : Regions
    kernels : np.ndarray of int [shape=(K,)]
        The layers whose δW the sub stream computes, in its order.
    region : np.ndarray of int [shape=(K,)]
        The region of each of these kernels, 1 to N; 0 if it runs as soon as it is ready, as it was pre-scheduled or
        fits nowhere.
    """

    def __init__(self, problem: Problem, order: np.ndarray, region: np.ndarray, k: int):
        operations, start, end = _run(problem, order, region)
        super().__init__(operations, start, "joint_regions", k=k)
        self.end, self.regions = end, problem.regions
        self.kernels, self.region = problem.kernels[order], region[order]
        self._problem, self._order = problem, order

    def __repr__(self):
        return f"Timeline of {len(self.operations)} operations by 'joint_regions' in two streams: {self.makespan:g}"

    @property
    def sequential(self) -> float:
        """The time of all operations one after the other in one stream, as is conventional."""
        return float(self.operations.duration.sum())

    @property
    def region_ends(self) -> np.ndarray:
        """When the main stream is through with each region, float64 [shape=(N,)]."""
        main = self.end[: len(self._problem.kind)]
        upto = np.append(self._problem.first[1:], len(main))
        return np.where(upto > 0, main[np.maximum(upto, 1) - 1], 0.0)

    @cached_property
    def events(self) -> list[Event]:
        """All operations as they are listed, as long as they took."""
        took = (self.end - self.start).tolist()
        return [event._replace(duration=duration) for event, duration in zip(super().events, took, strict=True)]

    @cached_property
    def work(self) -> np.ndarray:
        """How long at least one stream runs, float64 [shape=(1,)]."""
        order = np.argsort(self.start)
        before = np.maximum.accumulate(np.append(0.0, self.end[order]))  # when all that came earlier is over
        return self.span - np.maximum(self.start[order] - before[:-1], 0).sum()

    @cached_property
    def lower_bound(self) -> float:
        """No schedule of these operations in these streams is shorter than this, with these speed-ups.

        The longest chain of operations that wait for each other; or all work, less the most that running kernels
        beside regions can save: each kernel beside what the main stream does between its output gradient and its F,
        any parts of it in any regions (a linear program).
        """
        return max(super().lower_bound, self.sequential - self._most_saved())

    def _most_saved(self):
        from scipy.optimize import linprog
        from scipy.sparse import coo_array, vstack

        p, total = self._problem, self._problem.total
        shared = np.minimum(p.end[:, None], p.due) - np.maximum(p.begin[:, None], p.ready)
        i, k = np.nonzero((shared > 0) & (p.speedup > 1) & (p.took > 0))
        if not len(i):
            return 0.0
        # Work of x by each stream takes 2x alone, one after the other, and 2x/p together.
        gain, numbers = 2 - 2 / p.speedup[i, k], np.arange(len(i))
        ones, kinds = np.ones(len(i)), zip((i, k), shared.shape, strict=True)
        rows = [coo_array((ones, (at, numbers)), shape=(size, len(i))) for at, size in kinds]
        most = np.concatenate([p.end - p.begin, p.took]) / total
        bounds = np.column_stack([np.zeros(len(i)), shared[i, k] / total])
        return float(-linprog(-gain, vstack(rows).tocsr(), most, bounds=bounds).fun * total)

    def check(self) -> None:
        """As `Timeline.check`; raise ValueError, too, if an operation ends before or after its work is done."""
        super().check()
        ops, times = self.operations, np.unique(np.concatenate([self.start, self.end]))
        runs = np.full((2, len(times) - 1), -1)  # what each stream does from each time to the next
        for stream in (_MAIN, _SUB):
            mine = np.flatnonzero((ops.worker == stream) & (self.end > self.start))
            mine = mine[np.argsort(self.start[mine])]
            last = np.searchsorted(self.start[mine], times[:-1], "right") - 1
            busy = (last >= 0) & (self.end[mine[last]] > times[:-1]) if len(mine) else np.zeros(len(last), bool)
            runs[stream, busy] = mine[last[busy]]
        both, speed = (runs >= 0).all(axis=0), np.ones(len(times) - 1)
        kernel = np.empty(len(ops), np.int64)
        kernel[ops.worker == _SUB] = self._order
        main, sub = runs[:, both]
        speed[both] = self._problem.speedup[self.regions.of(ops.kind[main], ops.layer[main]), kernel[sub]] / 2
        did = np.zeros(len(ops))
        for stream in runs:
            np.add.at(did, stream[stream >= 0], (speed * np.diff(times))[stream >= 0])
        wrong = np.flatnonzero(np.abs(did - ops.duration) > 1e-9 * self.sequential)
        if len(wrong):
            i = wrong[0]
            when = f"between {self.start[i]:g} and {self.end[i]:g}"
            raise ValueError(f"{ops.name(i)} must do work of {ops.duration[i]:g} {when}, where it does {did[i]:g}")

    def plot(self, ax: Any = None, *, unit: str = "unit times", legend: bool = True) -> Any:
        """Draw both streams as `Timeline.plot`, with a line where the main stream goes on to another region."""
        ax = super().plot(ax, unit=unit, legend=legend)
        ends = np.concatenate([[0.0], self.region_ends])
        ax.set_ylim(2.0, -0.6)
        for i, (a, b) in enumerate(zip(ends[:-1], ends[1:], strict=True), 1):
            if b > a:
                ax.axvline(b, color="black", lw=0.8, ls=":")
            if b - a > 0.02 * ends[-1]:
                ax.text((a + b) / 2, 1.72, f"R{i}", ha="center", va="center", fontsize=8)
        return ax
