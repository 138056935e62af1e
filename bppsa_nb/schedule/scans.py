"""Scans that were traced: what they cost, and how workers share them."""

from bppsa_nb.machine.checks import check_amount, check_count, check_kind
from bppsa_nb.scan.trace import UNIT, Trace, span_label
from bppsa_nb.schedule import events


def multiply_adds(hidden):
    """Return what ⋄ costs over dense Jacobians [shape=(H, H)]: H³ multiply-adds, or H² for a gradient."""
    hidden = check_count("hidden", hidden, 1)
    return {"mm": hidden**3, "mv": hidden**2}


def list_schedule(trace, workers, cost=UNIT):
    """Run a trace on a number of workers, greedily and without waiting between levels; moving data is free.

    Parameters
    ----------
    trace : Trace
        The products and what they wait for.
    workers : int
        How many products can be computed at once.
    cost : dict
        What a product of kind ``"mm"`` and ``"mv"`` takes.

    Returns
    -------
    list of Event
        ``events[i]`` computes ``trace.products[i]``; :func:`bppsa_nb.schedule.events.makespan` says when all are
        done.

    Raises
    ------
    TypeError, ValueError
        For arguments that are no such.
    """
    check_kind("trace", trace, Trace, "what bppsa_nb.scan.trace.trace returned")
    check_kind("cost", cost, dict, "a dict with entries 'mm' and 'mv'")
    for kind in UNIT:
        check_amount(f"cost[{kind!r}]", cost.get(kind))
    durations = [cost[product.product] for product in trace.products]
    placed = events.list_schedule(durations, trace.needs, workers)
    return [
        events.Event(worker, start, duration, span_label(product), product.product)
        for product, (worker, start), duration in zip(trace.products, placed, durations, strict=True)
    ]
