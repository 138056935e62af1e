"""Schedules as rows of a table, and drawn from them again."""

from functools import lru_cache

import numpy as np

from bppsa_nb.papers import panels
from bppsa_nb.scan.trace import UNIT, trace
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import Event, in_order

IDLE = "idle"
PIPELINES = {  # name: policy, flush
    "GPipe": ("gpipe", True),
    "1F1B": ("1f1b", True),
    "fast-forwarding": ("fast_forward", True),
    "fast-forwarding, no flush": ("fast_forward", False),
    "modulo": ("modulo", True),
    "modulo, no flush": ("modulo", False),
    "ZB-H1": ("zero_bubble", True),
    "ZB-H2": ("zero_bubble", False),
}
traced = lru_cache(maxsize=3)(trace)  # one point after another is of the same scans


def rows(timeline, idle=False, **columns):
    """Check a schedule, and turn it into rows: lane, worker, kind, label, start and duration of each operation.

    With `idle` there are rows, too, for when a device waits, from 0 to the makespan; `columns` is what every row says
    besides, such as the policy.
    """
    timeline.check()
    ops, events = timeline.operations, draw.labelled(timeline)
    if idle:
        events += [event for device in range(ops.devices) for event in _idle(events, device, timeline.makespan)]
    return [columns | {"lane": ops.workers[event.worker]} | event._asdict() for event in events]


def _idle(events, device, makespan):
    """Yield what lies between the events of one device."""
    mine = sorted((event.start, event.end) for event in events if event.worker == device)
    starts, ends = np.array([*mine, (makespan, makespan)]).T
    for start, end in zip([0.0, *ends[:-1].tolist()], starts.tolist(), strict=True):
        if end > start:
            yield Event(device, start, end - start, "-", IDLE)


def events(rows, label=None):
    """Turn rows of a table back into events, all with the same label if one is given."""
    made = [Event(int(worker), *rest) for worker, *rest in zip(*(rows[name] for name in Event._fields), strict=True)]
    return made if label is None else [event._replace(label=label) for event in made]


def plot(ax, rows, **styles):
    """Draw rows of one schedule that `rows` has made; `styles` are handed to `draw.timeline`."""
    lanes = rows.drop_duplicates("worker").sort_values("worker")
    styles = {"unit": "unit times"} | styles
    return draw.timeline(events(rows.replace({"label": {"-": ""}})), ax, worker=lanes["lane"].tolist(), **styles)


def legend(fig, kinds, **styles):
    """Explain the colors of some kinds once for a whole figure."""
    colors = {draw.OPERATION_NAMES[kind]: draw.OPERATION_COLORS[kind] for kind in kinds}
    panels.legend(fig, panels.patches(colors), **styles)


def stacked(axes, rows, by, titles, unit="unit times", gains=True, **styles):
    """Draw schedules below each other over one axis of time: one for each value of a column, {value: title}.

    Titles say how long each takes and, with `gains`, what it gains on the longest.
    """
    rows = rows.assign(end=rows["start"] + rows["duration"])
    longest = rows["end"].max()
    for ax, (value, title) in zip(axes, titles.items(), strict=True):
        mine = rows[rows[by] == value]
        plot(ax, mine, legend=False, unit="", until=longest, **styles)
        makespan = mine["end"].max()
        gain = f", {longest / makespan:.2f}×" if gains and makespan < longest else ""
        ax.set_title(f"{title}: {makespan:g} units{gain}", loc="left", size=10)
        ax.tick_params(labelbottom=False)
    ax.tick_params(labelbottom=True)
    ax.set_xlabel(unit)


def iteration(timeline):
    """Say how long an iteration takes when others follow: the makespan.

    For ZB-H2, whose devices do not wait for each other in between, it is the longest span of a device.
    """
    overlaps = timeline.policy == "zero_bubble" and not timeline.flush
    return float(timeline.span.max()) if overlaps else timeline.makespan


def on_workers(run, p, cost=UNIT):
    """Schedule a traced scan on p workers, check that, and return when it ends."""
    placed = timeline.scan_schedule(run, p, cost)
    timeline.check(placed, run.needs)
    return timeline.makespan(placed)


def levels(run):
    """Count what each level of a traced scan does, a row each."""
    rows = []
    for number, level in enumerate(run.levels, 1):
        kinds = [product.product for product in level.products]
        counts = {"mm": kinds.count("mm"), "mv": kinds.count("mv"), "moves": len(level.moves)}
        rows.append({"n": run.n, "level": number, "phase": level.level.phase} | counts)
    return rows


def gpipe(devices, batches, backward=False):
    """Run micro-batches through devices, and back if wanted, as early as can be: events "F0" ..., and their needs."""
    order = [("F", batch, device) for batch in range(batches) for device in range(devices)]
    if backward:
        order += [("B", batch, device) for batch in reversed(range(batches)) for device in reversed(range(devices))]
    number = {task: i for i, task in enumerate(order)}
    tasks = [Event(device, 0, 1, str(batch), f"{way}{batch}") for way, batch, device in order]
    before = [(way, batch, device - 1 if way == "F" else device + 1) for way, batch, device in order]
    return in_order(tasks, [[number[task]] if task in number else [] for task in before])
