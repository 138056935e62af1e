"""What every scheduler returns: operations with their starts, checked, measured and drawn."""

from functools import cached_property
from typing import Any

import numpy as np

from bppsa_nb.machine.checks import check_count
from bppsa_nb.schedule.events import Event, check_arrays
from bppsa_nb.schedule.operations import KINDS, SF, SO, SW, F, O, Operations, W


class Timeline:
    """A schedule of one iteration.

    Parameters
    ----------
    operations
        What is to be done: n operations.
    start
        When each operation starts, float64 [shape=(n,)].
    policy
        Who made it.
    flush
        Whether all micro-batches update the weights together, or each one on its own.
    k
        Of reverse first-k.
    """

    def __init__(
        self, operations: Operations, start: np.ndarray, policy: str, flush: bool = True, k: int | None = None
    ):
        self.operations, self.start = operations, start
        self.policy, self.flush, self.k = policy, flush, k

    def __repr__(self):
        ops = self.operations
        return f"Timeline of {len(ops)} operations by {self.policy!r} on {ops.devices} devices: {self.makespan:g}"

    @cached_property
    def end(self) -> np.ndarray:
        """When each operation ends, float64 [shape=(n,)]."""
        return self.start + self.operations.duration

    @property
    def makespan(self) -> float:
        """When the last operation ends."""
        return float(self.end.max())

    @cached_property
    def events(self) -> list[Event]:
        """All operations as they are listed."""
        ops = self.operations
        columns = zip(ops.worker.tolist(), self.start.tolist(), ops.duration.tolist(), ops.kind.tolist(), strict=True)
        return [Event(w, start, took, ops.name(i), KINDS[kind]) for i, (w, start, took, kind) in enumerate(columns)]

    def order(self, worker: int) -> list[tuple[str, int, int]]:
        """Return what a worker does in its order: kind, layer and micro-batch of each operation."""
        ops = self.operations
        worker = check_count("worker", worker, 0, len(ops.workers) - 1)
        numbers = self.sequence[ops.worker[self.sequence] == worker]
        columns = zip(ops.kind[numbers], ops.layer[numbers], ops.micro_batch[numbers], strict=True)
        return [(KINDS[kind], int(layer), int(micro_batch)) for kind, layer, micro_batch in columns]

    @cached_property
    def sequence(self) -> np.ndarray:
        """The operations' numbers, by their starts, integers [shape=(n,)].

        What takes no time stands before what starts at the same moment, and after what it needs.
        """
        from bppsa_nb.schedule.engine import chains

        depth = chains(np.ones(len(self.operations)), self.operations.needs)[0]
        return np.lexsort((depth, self.end, self.start))

    @cached_property
    def lower_bound(self) -> float:
        """No schedule of these operations on these workers is shorter than this, up to rounding.

        The longest chain of operations that wait for each other; or for some of a worker's operations, their work
        with the least time before and after it. Whatever else a policy waits for does not count.
        """
        from bppsa_nb.schedule.engine import busy_bound, chains

        ops = self.operations
        head, tail = chains(ops.duration, ops.needs)
        bound = float((head + ops.duration + tail).max())
        by_worker = np.lexsort((head, ops.worker))
        for mine in np.split(by_worker, np.cumsum(np.bincount(ops.worker))[:-1]):
            bound = max(bound, busy_bound(mine, head, ops.duration, tail))
        return bound

    @cached_property
    def work(self) -> np.ndarray:
        """How long each device is busy, float64 [shape=(devices,)]."""
        ops = self.operations
        computes = np.flatnonzero(ops.kind <= W)
        return np.bincount(self._device(computes), ops.duration[computes], ops.devices)

    @cached_property
    def span(self) -> np.ndarray:
        """From the start of each device's first operation to the end of its last, float64 [shape=(devices,)].

        Without a flush, iterations that follow each other take the largest of these times each, at best.
        """
        computes = np.flatnonzero(self.operations.kind <= W)
        device = self._device(computes)
        first, last = np.full(self.operations.devices, np.inf), np.zeros(self.operations.devices)
        np.minimum.at(first, device, self.start[computes])
        np.maximum.at(last, device, self.end[computes])
        return last - first

    @property
    def idle(self) -> np.ndarray:
        """How long each device waits between its first and last operation, float64 [shape=(devices,)]."""
        return self.span - self.work

    def memory(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Follow what every device keeps in memory.

        Returns
        -------
        list
            For each device, times in rising order, and what it keeps from each time to the next, in the unit of
            `Network.memory`: inputs and output gradients of layers from when they are begun, or begin to come, until
            both of the layer's gradients are done; what is inside a layer from its F until its δO is done, or its δW
            where it has none; weight gradients to the end, or until they are sent. What goes to another device counts
            there. At one moment, room is freed before it is taken. What ends with the next iteration's forward pass
            begins with all inputs, and what is inside, in memory, and ends with those of the next iteration; there, a
            weight gradient that is not sent goes when its δW ends, of which the update is a part.
        """
        ops = self.operations
        born, died, size, device = (np.concatenate(column) for column in zip(*self._buffers(), strict=True))
        curves = []
        for d in range(ops.devices):
            mine = device == d
            times = np.concatenate([born[mine], died[mine]])
            change = np.concatenate([size[mine], -size[mine]])
            order = np.argsort(times, kind="stable")
            times, level = times[order], np.cumsum(change[order])
            # Between a freeing and a taking at one moment, which is one up to rounding, nothing is kept for any time:
            # only the last counts.
            last = np.append(np.diff(times) > 1e-12 * self.makespan, True)
            curves.append((times[last], np.maximum(level[last], 0)))
        return curves

    @property
    def peak_memory(self) -> np.ndarray:
        """The most that each device keeps at a time, float64 [shape=(devices,)]."""
        return np.array([level.max(initial=0) for _, level in self.memory()])

    def _buffers(self):
        """Yield what is kept: when it comes and goes, its size, and on which device."""
        ops, keeps, end = self.operations, self.operations.network.memory, self.makespan
        forward, output, weight, sent = (ops.select(kind) for kind in (F, O, W, SW))
        shape, device = forward.shape, self._device(weight).ravel()
        activation, inner = (np.broadcast_to(part, shape).ravel() for part in (keeps.activation, keeps.inner))
        passed = np.where(output >= 0, self.end[output], self.end[weight]).ravel()
        done = np.maximum(self.end[weight].ravel(), passed)
        # The first layer's input is there when it is read; the gradient at the last one's output likewise.
        came = self._arrivals(forward[:, :-1], ops.select(SF)[:, :-1], self.start[forward[:, :1]], 1).ravel()
        inside = [(self.start[forward].ravel(), passed, inner)] if inner.any() else []
        for born, died, size in [(came, done, activation), *inside]:
            if ops.ends_forward:
                yield np.zeros(done.size), died, size, device
                yield born, np.full(done.size, end), size, device
            else:
                yield born, died, size, device
        loss = np.minimum(self.start[weight], np.where(output >= 0, self.start[output], np.inf))[:, -1:]
        came = self._arrivals(output[:, 1:], ops.select(SO)[:, 1:], loss, 0).ravel()
        yield came, done, np.broadcast_to(keeps.output_grad, shape).ravel(), device
        gone = self.end[sent if ops.synchronizes else weight].ravel() if ops.ends_forward else np.full(done.size, end)
        first = np.arange(shape[0])[:, None] == self.start[weight].argmin(axis=0)  # later ones add to it
        yield self.start[weight].ravel(), gone, np.where(first, keeps.weight_grad, 0.0).ravel(), device

    def _arrivals(self, makes, sends, outer, column):
        """Return when each layer gets what its neighbor makes; `outer`, at one end, comes from outside."""
        device, own = self._device(makes), self._device(self.operations.select(W))
        own = own[:, 1:] if column else own[:, :-1]
        came = np.where(device == own, self.start[makes], self.end[makes])  # room is taken when writing begins
        came = np.where(sends >= 0, self.start[sends], came)
        return np.concatenate([outer, came] if column else [came, outer], axis=1)

    def _device(self, numbers):
        """Return which device computes operations; two streams are of one."""
        return np.minimum(self.operations.worker[numbers], self.operations.devices - 1)

    def staleness(self) -> np.ndarray:
        """Count the updates that go by between a forward pass and its own update, if every micro-batch makes one.

        Returns
        -------
        np.ndarray of int [shape=(devices, micro_batches)]
            For each device and micro-batch: how many other micro-batches end their last δW on the device after this
            one's first F there has started, and before this one's last δW ends. PipeDream keeps as many versions of
            the weights, and one more.
        """
        ops = self.operations
        first = np.full((ops.devices, ops.micro_batches), np.inf)
        last = np.zeros((ops.devices, ops.micro_batches))
        f, w = np.flatnonzero(ops.kind == F), np.flatnonzero(ops.kind == W)
        np.minimum.at(first, (self._device(f), ops.micro_batch[f]), self.start[f])
        np.maximum.at(last, (self._device(w), ops.micro_batch[w]), self.end[w])
        ends = np.sort(last, axis=1)
        rows = zip(ends, first, last, strict=True)
        counts = [np.searchsorted(e, b, "left") - np.searchsorted(e, a, "right") for e, a, b in rows]
        return np.maximum(counts, 0)  # where the forward pass is the next iteration's, nothing goes by

    def check(self) -> None:
        """Check that the timeline is a schedule.

        Raises ValueError if an operation is missing or there twice, has no start, starts before something it needs is
        over, or runs while its worker does something else.
        """
        ops = self.operations
        L, M = ops.network.layers, ops.micro_batches
        keys = (ops.kind * M + ops.micro_batch) * (L + 1) + ops.layer
        values, counts = np.unique(keys, return_counts=True)
        if (counts > 1).any():
            twice = np.flatnonzero(keys == values[counts.argmax()])[0]
            raise ValueError(f"{ops.name(twice)} is listed {counts.max()} times")
        for kind in (F, O, W, SW) if ops.synchronizes else (F, O, W):
            missing = np.argwhere(ops.select(kind) < 0)
            if kind == O and not ops.assumptions.first_output_grad:
                missing = missing[missing[:, 1] > 0]
            if len(missing):
                m, layer = missing[0]
                raise ValueError(f"{KINDS[kind]} of layer {layer + 1} and micro-batch {m} is missing")
        wrong = np.flatnonzero(~(np.isfinite(self.start) & (self.start >= 0)))
        if len(wrong):
            raise ValueError(f"{ops.name(wrong[0])} must start at 0 or later, got {self.start[wrong[0]]}")
        check_arrays(ops.worker, self.start, self.end, ops.needs, ops.name, lambda w: repr(ops.workers[w]))

    def plot(self, ax: Any = None, *, unit: str = "unit times", legend: bool = True) -> Any:
        """Draw the timeline, one lane per device or link, on Matplotlib's axes or in a new figure; return the axes.

        `unit` is what time is counted in; with `legend`, colors are explained above the bars.
        """
        from bppsa_nb.schedule import draw

        ops = self.operations
        links = set(ops.worker[ops.kind > W].tolist())
        events, workers = draw.labelled(self), list(ops.workers)
        return draw.timeline(events, ax, worker=workers, thin=links, unit=unit, legend=legend)


def within(memory_limit, timelines, least):
    """Yield the timelines of one device whose peak memory a limit allows; where none is, the error has `least`."""
    limit, peaks, fits = np.inf if memory_limit is None else memory_limit, [], False
    for timeline in timelines:
        peaks.append(0.0 if memory_limit is None else float(timeline.peak_memory[0]))
        if peaks[-1] <= limit:
            fits = True
            yield timeline
    if not fits:
        raise ValueError(f"memory_limit must be at least {least.format(min(peaks))}; got {memory_limit}")


def place(ops, waits, rank, policy, **kept):
    """Let every worker start, of what is ready, the operation of the lowest rank: a `Timeline`, which gets `kept`.

    `waits` are arrays [shape=(n,)] of what an operation waits for beyond what it needs; -1 for nothing.
    """
    from bppsa_nb.schedule.engine import greedy

    with np.errstate(over="ignore"):
        total = ops.duration.sum()
    if not np.isfinite(total):
        raise ValueError("network must have costs whose sum, over all micro-batches, is finite")
    needs = np.column_stack([ops.needs, *waits])
    one = np.ones(len(ops.workers), np.int64)
    start, _ = greedy(ops.worker, one, ops.duration, np.ascontiguousarray(needs), rank)
    never = np.flatnonzero(np.isnan(start))
    if len(never):
        raise ValueError(f"{ops.name(never[0])} never starts: what it waits for under {policy!r} waits for it")
    return Timeline(ops, start, policy, **kept)
