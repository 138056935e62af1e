"""A pipeline of micro-batches, everything as early as it can be (GPipe)."""

from bppsa_nb.schedule.events import Event


def pipeline(devices, batches, backward=False):
    """Run micro-batches through devices, and back if wanted: events of kinds "F0", "B0" ..., what each waits for."""
    order = [("F", batch, device) for batch in range(batches) for device in range(devices)]
    if backward:
        order += [("B", batch, device) for batch in reversed(range(batches)) for device in reversed(range(devices))]
    number = {task: i for i, task in enumerate(order)}
    events, needs, latest = [], [], {}
    for way, batch, device in order:
        before = [(way, batch, device - 1 if way == "F" else device + 1), latest.get(device)]
        needs.append([number[task] for task in before if task in number])
        start = max((events[i].end for i in needs[-1]), default=0)
        latest[device] = (way, batch, device)
        events.append(Event(device, start, 1, str(batch), f"{way}{batch}"))
    return events, needs
