"""A schedule is a timeline: which worker does what, and when.

Every schedule of the project is a list of `Event`; `check` holds it to the two rules that make it a schedule,
and :func:`bppsa_nb.schedule.draw.timeline` draws it. Tasks become events by `list_schedule`, where any worker may do
any of them, as products of a scan (`scan_schedule`), and by `in_order`, where all is given but the time. One iteration
of training is a `bppsa_nb.schedule.timeline.Timeline`, which also knows the operations that its events are.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from bppsa_nb.machine.arguments import Count, Size, checked
from bppsa_nb.scan.trace import UNIT, Trace, span_label


class Event(NamedTuple):
    """One task on one worker: when it begins, how long it takes, what is written on it, and what it is colored by."""

    worker: int
    start: float
    duration: float
    label: str
    kind: str = ""

    @property
    def end(self) -> float:
        """When it is done."""
        return self.start + self.duration


@checked
def makespan(events: Sequence[Event]) -> float:
    """Return when the last event ends; 0 for no events."""
    return max((event.end for event in events), default=0)


@checked
def check(events: Sequence[Event], needs: Sequence[Sequence[Count]]) -> None:
    """Raise ValueError unless events are a schedule: no worker does two things at once, nothing starts too early.

    ``needs[i]`` says which events must be over before ``events[i]`` starts.
    """
    if len(needs) != len(events):
        raise ValueError(f"needs must have one entry per event, got {len(needs)} for {len(events)} events")
    table = _table(needs)
    if (table >= len(events)).any():
        raise ValueError(f"needs must only hold numbers from 0 to {len(events) - 1}, got {table.max()}")
    workers = np.array([event.worker for event in events], np.int64)
    start, end = np.array([(event.start, event.end) for event in events], np.float64).reshape(-1, 2).T
    check_arrays(workers, start, end, table, lambda i: repr(events[i].label))


def check_arrays(worker, start, end, needs, name, lane=str):
    """Check that events given as arrays are a schedule; raise ValueError as `check` does.

    `needs` [shape=(n, k)] are the events that must be over before; -1 for none. Errors call event i ``name(i)`` and
    worker w ``lane(w)``.
    """
    for before in needs.T:
        late = np.flatnonzero((before >= 0) & (start < end[before]))
        if len(late):
            event, other = late[0], before[late[0]]
            needed = f"{name(other)}, which it needs, ends at {end[other]:g}"
            raise ValueError(f"{name(event)} starts at {start[event]:g}, but {needed}")
    order = np.lexsort((end, start, worker))
    one, two = order[:-1], order[1:]
    both = np.flatnonzero((worker[one] == worker[two]) & (start[two] < end[one]))
    if len(both):
        busy, event = one[both[0]], two[both[0]]
        who, until = f"worker {lane(worker[event])}", f"{name(busy)} until {end[busy]:g}"
        raise ValueError(f"{who} is busy with {until}, but starts {name(event)} at {start[event]:g}")


def _table(needs):
    """Turn lists into the rows of an array [shape=(n, k)], filled up with -1."""
    table = np.full((len(needs), max(map(len, needs), default=0)), -1)
    for row, before in zip(table, needs, strict=True):
        row[: len(before)] = before
    return table


def list_schedule(durations, needs, workers):
    """Schedule tasks greedily: a free worker always takes the ready task with the longest way to the end.

    Task i takes ``durations[i]``, once the tasks ``needs[i]`` are over, all of them numbered below i. Returns worker
    and start of each. No schedule on as many workers is shorter than half of this one (Graham 1966), and none on any
    number is shorter than the longest chain of tasks.
    """
    from bppsa_nb.schedule.engine import chains, greedy

    given, table, all_alike = np.array(durations), _table(needs), np.zeros(len(durations), np.int64)
    if late := [i for i, before in enumerate(table) if (before >= i).any()]:
        raise ValueError(f"needs[{late[0]}] must only hold numbers below {late[0]}, got {table[late[0]].max()}")
    takes = given.astype(np.float64)
    way = takes + chains(takes, table)[1]  # the longest chain from the start of a task to the end of all
    urgency = np.argsort(np.argsort(-way, kind="stable"))
    start, worker = greedy(all_alike, np.array([workers]), takes, table, urgency)
    return list(zip(worker.tolist(), start.astype(given.dtype).tolist(), strict=True))


@checked
def multiply_adds(hidden: Size) -> dict[str, int]:
    """Return what ⋄ costs over dense Jacobians [shape=(H, H)]: H³ multiply-adds, or H² for a gradient."""
    return {"mm": hidden**3, "mv": hidden**2}


@checked
def scan_schedule(trace: Trace, workers: Size, cost: Mapping[str, Annotated[float, ">= 0"]] = UNIT) -> list[Event]:
    """Run a traced scan on a number of workers, greedily and without waiting between levels; moving data is free.

    `cost` is what a product of kind ``"mm"`` and ``"mv"`` takes. ``events[i]`` computes ``trace.products[i]``.
    """
    if not UNIT.keys() <= cost.keys():
        raise ValueError(f"cost must have entries 'mm' and 'mv', got {cost!r}")
    durations = [cost[product.product] for product in trace.products]
    placed = zip(trace.products, durations, list_schedule(durations, trace.needs, workers), strict=True)
    return [Event(*at, duration, span_label(product), product.product) for product, duration, at in placed]


def in_order(
    tasks: Sequence[Event], needs: Sequence[Sequence[int]], sending: Sequence[float] | None = None
) -> tuple[list[Event], list[list[int]]]:
    """Schedule tasks whose workers and order are given: each starts once its worker and all that it needs are there.

    What a task gives is sent once to every other worker that needs it, as soon as it is done, and while workers go on.
    Each direction between two workers is a link that sends one thing at a time. `tasks` are events, whose starts do not
    count; ``needs[i]`` are numbers below i; ``sending[i]`` is what it takes to send what task i gives, where anything
    has to be sent. Returns the tasks and then the messages as events, where links are numbered after the workers, and
    what each of them waits for, as `check` takes it.
    """
    count, first_link = len(tasks), 1 + max((task.worker for task in tasks), default=-1)
    placed, waits, messages, sent, links, free = [], [], [], {}, {}, {}
    for i, (task, before) in enumerate(zip(tasks, needs, strict=True)):
        waits.append([])
        for j in before:
            if not 0 <= j < i:
                raise ValueError(f"needs[{i}] must only hold numbers from 0 to {i - 1}, got {j}")
            if sending is None or tasks[j].worker == task.worker:
                waits[i].append(j)
                continue
            if (j, task.worker) not in sent:
                link = links.setdefault((tasks[j].worker, task.worker), first_link + len(links))
                start = max(placed[j].end, free.get(link, 0))
                messages.append((j, Event(link, start, sending[j], f"what {tasks[j].label} gives", "message")))
                free[link], sent[j, task.worker] = messages[-1][1].end, count + len(messages) - 1
            waits[i].append(sent[j, task.worker])
        ends = [placed[j].end if j < count else messages[j - count][1].end for j in waits[i]]
        placed.append(task._replace(start=max([free.get(task.worker, 0), *ends])))
        free[task.worker] = placed[i].end
    return placed + [event for _, event in messages], waits + [[j] for j, _ in messages]
