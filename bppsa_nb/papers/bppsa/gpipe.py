"""A pipeline of micro-batches, everything as early as it can be (GPipe)."""

from bppsa_nb.schedule.events import Event


def pipeline(devices, batches, backward=False):
    """Run micro-batches through a pipeline, everything as early as it can be (GPipe).

    Parameters
    ----------
    devices, batches : int
        Length of the pipeline, and how many micro-batches enter it.
    backward : bool
        Whether to come back, once all are through.

    Returns
    -------
    events : list of Event
        Every micro-batch on every device; `kind` is ``"F0"`` for the forward pass of micro-batch 0, ``"B0"`` for
        its backward pass.
    needs : list of list of int
        Which events each waits for.
    """
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
