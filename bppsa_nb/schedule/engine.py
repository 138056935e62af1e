"""The scheduler's loops, compiled: greedy placement of operations on workers, and longest chains."""

from heapq import heappop, heappush

import numpy as np

from bppsa_nb.machine.compiling import njit


@njit(cache=True)
def _followers(needs):
    """Turn who needs whom around: ``followers[first[i]:first[i + 1]]`` wait for i, which waits for ``waiting[i]``."""
    n, k = needs.shape
    first, waiting = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    for i in range(n):
        for j in range(k):
            if needs[i, j] >= 0:
                first[needs[i, j] + 1] += 1
                waiting[i] += 1
    first = np.cumsum(first)
    followers = np.empty(first[n], np.int64)
    place = first[:n].copy()
    for i in range(n):
        for j in range(k):
            before = needs[i, j]
            if before >= 0:
                followers[place[before]] = i
                place[before] += 1
    return first, followers, waiting


@njit(cache=True)
def greedy(group, sizes, duration, needs, rank):
    """Place operations: a free worker always starts its group's ready operation of the lowest rank.

    `group`, `duration` and `rank` [shape=(n,)] are by operation, and `needs` [shape=(n, k)] are the operations that
    each one waits for, -1 for none. Of each group there are `sizes` workers, and any of them does any of its
    operations. Returns when each starts [shape=(n,)], NaN for those that wait for each other in a circle, and which
    worker of its group does it [shape=(n,)].
    """
    first, followers, waiting = _followers(needs)
    ready = [[(rank[0], 0) for _ in range(0)] for _ in sizes]  # heaps, one for each group, as the next
    free = [[worker for worker in range(size)] for size in sizes]
    for i in np.flatnonzero(waiting == 0):
        heappush(ready[group[i]], (rank[i], i))
    start, chosen = np.full(len(group), np.nan), np.zeros(len(group), np.int64)
    running = [(0.0, 0) for _ in range(0)]  # a heap, by their ends
    # Sums of the same costs in another order differ by rounding: what ends this close together ends together.
    close, now = 1e-12 * duration.sum(), 0.0
    while True:
        for g in range(len(sizes)):
            while len(free[g]) and len(ready[g]):
                task = heappop(ready[g])[1]
                start[task], chosen[task] = now, heappop(free[g])
                heappush(running, (now + duration[task], task))
        if not len(running):
            return start, chosen
        soonest = running[0][0]
        while len(running) and running[0][0] <= soonest + close:
            now, task = heappop(running)
            heappush(free[group[task]], chosen[task])
            for i in followers[first[task] : first[task + 1]]:
                waiting[i] -= 1
                if not waiting[i]:
                    heappush(ready[group[i]], (rank[i], i))


@njit(cache=True)
def chains(duration, needs):
    """Find the longest chain up to the start of every operation (NaN for those in a circle), and after its end."""
    n, k = needs.shape
    first, followers, waiting = _followers(needs)
    order, ready = np.empty(n, np.int64), np.flatnonzero(waiting == 0)
    head, tail = np.full(n, np.nan), np.zeros(n)
    at, done = 0, len(ready)
    order[:done] = ready
    while at < done:
        i = order[at]
        at += 1
        head[i] = 0.0
        for j in range(k):
            before = needs[i, j]
            if before >= 0:
                head[i] = max(head[i], head[before] + duration[before])
        for after in followers[first[i] : first[i + 1]]:
            waiting[after] -= 1
            if not waiting[after]:
                order[done] = after
                done += 1
    for at in range(done - 1, -1, -1):
        i = order[at]
        for after in followers[first[i] : first[i + 1]]:
            tail[i] = max(tail[i], tail[after] + duration[after])
    return head, tail


@njit(cache=True)
def busy_bound(mine, head, duration, tail):
    """Bound what one worker makes the makespan take.

    Jackson's preemptive schedule: the worker always goes on with the operation of the longest tail, even if that
    means to interrupt another one. For any set of its operations it takes at least as long as the least time before
    them, their work, and the least time after them (Carlier 1982). `mine` are its operations, by rising heads.
    """
    left = duration[mine]
    came, bound, now = 0, 0.0, 0.0
    ready = [(0.0, 0) for _ in range(0)]  # a heap, the longest tail first
    while came < len(mine) or len(ready):
        if not len(ready):
            now = max(now, head[mine[came]])
        while came < len(mine) and head[mine[came]] <= now:
            heappush(ready, (-tail[mine[came]], came))
            came += 1
        after, task = ready[0]
        if came < len(mine) and now + left[task] > head[mine[came]]:
            left[task] -= head[mine[came]] - now
            now = head[mine[came]]
        else:
            now += left[task]
            bound = max(bound, now - after)
            heappop(ready)
    return bound
