"""The shortest schedule of small instances, found and proved by search."""

import numpy as np

from bppsa_nb.machine.arguments import Size, checked
from bppsa_nb.machine.compiling import njit
from bppsa_nb.schedule.engine import busy_bound, chains, greedy
from bppsa_nb.schedule.operations import F, W
from bppsa_nb.schedule.timeline import Timeline

_MOST = 400  # operations: each one more makes all partial schedules longer, and their number larger
_CLOSE = 1e-12  # relative: sums of the same costs in another order differ by rounding


@checked
def optimum(timeline: Timeline, nodes: Size = 20_000) -> Timeline:
    """Find the shortest schedule of a timeline's operations on the same workers, and prove that it is.

    Only what operations need counts, not what else a policy makes them wait for. Schedules are built up operation by
    operation. Of two partial schedules that have placed the same operations, one is dropped if the other leaves every
    operation to come no later a start. One is dropped, too, if a lower bound shows that it ends no sooner than the
    shortest schedule known.

    Parameters
    ----------
    timeline
        Of `pipeline` or `data_parallel`.
    nodes
        How many partial schedules with the same number of operations may be kept.

    Returns
    -------
    Timeline
        Of policy ``"optimum"``. No schedule is shorter by more than rounding: one part in 10^12.

    Raises
    ------
    TypeError
        For the two streams of `joint_regions`, whose operations slow each other down.
    ValueError
        If the search is too large: more than 400 operations, or more partial schedules than `nodes` at a time. The
        message says between which bounds the optimum lies.

    Notes
    -----
    Operations start as early as what is placed before them allows, and leave no gap that another one which is ready
    could fill (Giffler and Thompson 1960). A partial schedule's bound is `Timeline.lower_bound`, of what is left.
    The search first keeps only the most promising partial schedules, which finds good ones soon, and then more, until
    nothing is dropped but for the two reasons above. A hundred operations usually take less than a second.
    """
    if type(timeline) is not Timeline:  # where two streams slow each other down, durations are not given
        raise TypeError(f"timeline must be a Timeline of pipeline or data_parallel, got {timeline!r}")
    ops, low, width = timeline.operations, timeline.lower_bound, 0
    problem = ops.worker, np.ones(len(ops.workers), np.int64), ops.duration, _ordered(ops)
    head, tail = chains(*problem[2:])
    best = timeline.start
    # What has the longest way to the end first: mostly better than what a policy finds.
    urgent, _ = greedy(*problem, np.argsort(np.argsort(-tail - ops.duration, kind="stable")))
    if _makespan(urgent, ops) < _makespan(best, ops):
        best = urgent
    proved = False
    while not proved and _makespan(best, ops) > low * (1 + _CLOSE):
        if width == nodes or len(ops) > _MOST:
            most = f"nodes={nodes} partial schedules" if len(ops) <= _MOST else f"a search of {_MOST} operations"
            between = f"an optimum, which lies between {low:g} and {_makespan(best, ops):g}"
            raise ValueError(f"timeline of {len(ops)} operations needs more than {most} to prove {between}")
        width = min(max(100, 30 * width), nodes)
        best, proved = _search(problem, head, tail, low, best, _makespan(best, ops), width)
    return Timeline(ops, best, "optimum", timeline.flush)


def _makespan(start, ops):
    """Return when the last operation ends."""
    return float((start + ops.duration).max())


def _ordered(ops):
    """Return what operations need, and an order of those that are alike: some optimal schedule keeps to it."""
    first = ops.select(F)[:, 0]
    after = np.full((len(ops), 2), -1)
    after[first[1:], 0] = first[:-1]  # micro-batches are alike
    # Of δW that nothing needs, those of higher layers can run sooner: it is well if they do, where they cost as much.
    free = ~np.isin(np.arange(len(ops)), ops.needs)
    for column in ops.select(W):
        last = {}
        for i in column[free[column]][::-1]:
            alike = ops.worker[i], ops.duration[i]
            after[i, 1] = last.get(alike, -1)
            last[alike] = i
    return np.column_stack([ops.needs, after])


def _search(problem, head, tail, low, best, makespan, width):
    """Place operation by operation; return the best starts known, and whether nothing was left out."""
    n, proved = len(head), True
    order = np.argsort(chains(np.ones(n), problem[-1])[0], kind="stable")  # everything after what it needs
    limit = makespan * (1 - _CLOSE)
    # One row per partial schedule: what is placed, when everything starts (or could), and its bound.
    placed, at, bound = np.zeros((1, n), np.bool_), head[None, :].copy(), np.full(1, low)
    for _ in range(n):
        placed, at, bound = _extended(placed, at, order, problem, tail, limit)
        alike = np.unique(np.packbits(placed, axis=1), axis=0, return_inverse=True)[1].ravel()
        kept = _undominated(np.lexsort((at.sum(axis=1), alike)), alike, placed, at, bound, makespan * _CLOSE / 100)
        if len(kept) > width:
            kept, proved = kept[np.lexsort((at[kept].sum(axis=1), bound[kept]))[:width]], False
        placed, at, bound = placed[kept], at[kept], bound[kept]
    return (at[bound.argmin()] if len(bound) else best), proved


@njit(cache=True)
def _extended(placed, at, order, problem, tail, limit):
    """Place one more operation, in every way that could lead to an optimal schedule.

    Returns, for each of them, what is placed [shape=(s, n)]; starts of that, and the others' earliest starts [shape=(s,
    n)]; and what no schedule that goes on so ends before [shape=(s,)]: below the limit. If all is placed, when it ends.
    """
    worker, workers, duration, needs = problem
    states, n = at.shape
    row, choice, many = np.empty(states * n, np.int64), np.empty(states * n, np.int64), 0
    for s in range(states):
        soonest, next_one = np.inf, -1
        for i in order:
            if not placed[s, i] and at[s, i] + duration[i] < soonest:
                soonest, next_one = at[s, i] + duration[i], i
        # What could be done first is ready: what it needs would be done no later. On its worker, either it is next, or
        # something that starts before it could be done, which is ready for the same reason.
        for i in range(n):
            if not placed[s, i] and worker[i] == worker[next_one] and (i == next_one or at[s, i] < soonest):
                row[many], choice[many] = s, i
                many += 1

    new_placed, new_at = np.empty((many, n), np.bool_), np.empty((many, n))
    new_bound, kept = np.empty(many), 0
    for pair in range(many):
        s, i = row[pair], choice[pair]
        now, starts = new_placed[kept], new_at[kept]
        now[:], starts[:] = placed[s], at[s]
        now[i] = True
        free = starts[i] + duration[i]
        bound = free  # what is last on its worker ends no sooner than what was last on others before
        for j in order:
            if now[j]:
                continue
            if worker[j] == worker[i]:
                starts[j] = max(starts[j], free)
            for before in needs[j]:
                if before >= 0:
                    starts[j] = max(starts[j], starts[before] + duration[before])
            bound = max(bound, starts[j] + duration[j] + tail[j])
        left, mine = np.argsort(starts), np.empty(n, np.int64)
        for w in range(len(workers)):
            if bound >= limit:
                break
            size = 0
            for j in left:
                if worker[j] == w and not now[j]:
                    mine[size] = j
                    size += 1
            bound = max(bound, busy_bound(mine[:size], starts, duration, tail))
        if bound < limit:
            new_bound[kept] = bound
            kept += 1
    return new_placed[:kept], new_at[:kept], new_bound[:kept]


@njit(cache=True)
def _undominated(order, alike, placed, at, bound, close):
    """Keep of rows with the same operations placed those that no other one is as good as."""
    kept, size, low = np.empty(len(order), np.int64), 0, 0
    n = at.shape[1]
    for x in order:
        if size and alike[kept[size - 1]] != alike[x]:
            low = size
        for y in kept[low:size]:
            better = bound[y] <= bound[x] + close
            for i in range(n):
                if not better:
                    break
                better = at[y, i] <= at[x, i] + close or placed[x, i]
            if better:
                break
        else:
            kept[size] = x
            size += 1
    return kept[:size]
