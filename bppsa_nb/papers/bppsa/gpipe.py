"""A pipeline of micro-batches, everything as early as it can be (GPipe)."""

from bppsa_nb.schedule.events import Event, in_order


def pipeline(devices, batches, backward=False):
    """Run micro-batches through devices, and back if wanted: events of kinds "F0", "B0" ..., what each waits for."""
    order = [("F", batch, device) for batch in range(batches) for device in range(devices)]
    if backward:
        order += [("B", batch, device) for batch in reversed(range(batches)) for device in reversed(range(devices))]
    number = {task: i for i, task in enumerate(order)}
    tasks = [Event(device, 0, 1, str(batch), f"{way}{batch}") for way, batch, device in order]
    before = [(way, batch, device - 1 if way == "F" else device + 1) for way, batch, device in order]
    return in_order(tasks, [[number[task]] if task in number else [] for task in before])
