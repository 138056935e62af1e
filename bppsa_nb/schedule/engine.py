"""The scheduler's loops, compiled: greedy placement of operations on workers, and longest chains."""

import numpy as np

from bppsa_nb.machine.compiling import njit


@njit(cache=True)
def _sift(heap, low, size, rank):
    """Let the first entry of a heap at ``heap[low:low + size]``, ordered by rank, sink to its place."""
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            return
        if child + 1 < size and rank[heap[low + child + 1]] < rank[heap[low + child]]:
            child += 1
        if rank[heap[low + i]] <= rank[heap[low + child]]:
            return
        heap[low + i], heap[low + child] = heap[low + child], heap[low + i]
        i = child


@njit(cache=True)
def _push(heap, low, size, item, rank):
    """Add an item to a heap of `size` entries."""
    i = size
    heap[low + i] = item
    while i and rank[heap[low + i]] < rank[heap[low + (i - 1) // 2]]:
        parent = (i - 1) // 2
        heap[low + i], heap[low + parent] = heap[low + parent], heap[low + i]
        i = parent


@njit(cache=True)
def _take(heap, low, size, rank):
    """Take the first entry out of a heap of `size` entries."""
    item = heap[low]
    heap[low] = heap[low + size - 1]
    _sift(heap, low, size - 1, rank)
    return item


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
    for i in range(n):
        first[i + 1] += first[i]
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
def greedy(worker, workers, duration, needs, rank):
    """Place operations: a free worker always starts its ready operation of the lowest rank.

    `worker`, `duration` and `rank` [shape=(n,)] are by operation, and `needs` [shape=(n, k)] are the operations that
    each one waits for, -1 for none. Returns when each starts [shape=(n,)], NaN for those that wait for each other in a
    circle.
    """
    n = len(worker)
    first, followers, waiting = _followers(needs)
    low = np.zeros(workers + 1, np.int64)  # each worker's part of the heaps
    total = 0.0
    for i in range(n):
        low[worker[i] + 1] += 1
        total += duration[i]
    for w in range(workers):
        low[w + 1] += low[w]
    heap, size = np.empty(n, np.int64), np.zeros(workers, np.int64)
    for i in range(n):
        if not waiting[i]:
            w = worker[i]
            _push(heap, low[w], size[w], i, rank)
            size[w] += 1
    start, end = np.full(n, np.nan), np.empty(n)
    free = np.ones(workers, np.bool_)
    running, runs = np.empty(workers, np.int64), 0  # a heap by their ends
    idle, idling = np.arange(workers), workers  # who got free, or got something to do
    asked = np.ones(workers, np.bool_)
    # Sums of the same costs in another order differ by rounding: what ends this close together ends together.
    close, now = 1e-12 * total, 0.0
    while True:
        while idling:
            idling -= 1
            w = idle[idling]
            asked[w] = False
            if free[w] and size[w]:
                task = _take(heap, low[w], size[w], rank)
                size[w] -= 1
                start[task], end[task], free[w] = now, now + duration[task], False
                _push(running, 0, runs, task, end)
                runs += 1
        if not runs:
            return start
        soonest = end[running[0]]
        while runs and end[running[0]] <= soonest + close:
            task = _take(running, 0, runs, end)
            runs -= 1
            now, w = end[task], worker[task]
            free[w] = True
            if not asked[w]:
                asked[w], idle[idling] = True, w
                idling += 1
            for place in range(first[task], first[task + 1]):
                i = followers[place]
                waiting[i] -= 1
                if not waiting[i]:
                    u = worker[i]
                    _push(heap, low[u], size[u], i, rank)
                    size[u] += 1
                    if not asked[u]:
                        asked[u], idle[idling] = True, u
                        idling += 1


@njit(cache=True)
def chains(duration, needs):
    """Find the longest chain up to the start of every operation (NaN for those in a circle), and after its end."""
    n, k = needs.shape
    first, followers, waiting = _followers(needs)
    order, done = np.empty(n, np.int64), 0
    head, tail = np.full(n, np.nan), np.zeros(n)
    for i in range(n):
        if not waiting[i]:
            order[done] = i
            done += 1
    at = 0
    while at < done:
        i = order[at]
        at += 1
        head[i] = 0.0
        for j in range(k):
            before = needs[i, j]
            if before >= 0:
                head[i] = max(head[i], head[before] + duration[before])
        for place in range(first[i], first[i + 1]):
            waiting[followers[place]] -= 1
            if not waiting[followers[place]]:
                order[done] = followers[place]
                done += 1
    for at in range(done - 1, -1, -1):
        i = order[at]
        for place in range(first[i], first[i + 1]):
            after = followers[place]
            tail[i] = max(tail[i], tail[after] + duration[after])
    return head, tail


@njit(cache=True)
def busy_bound(mine, head, duration, tail):
    """Bound what one worker makes the makespan take.

    Jackson's preemptive schedule: the worker always goes on with the operation of the longest tail, even if that
    means to interrupt another one. For any set of its operations it takes at least as long as the least time before
    them, their work, and the least time after them (Carlier 1982). `mine` are its operations, by rising heads.
    """
    m = len(mine)
    left, rank, heap = np.empty(m), np.empty(m), np.empty(m, np.int64)
    for i in range(m):
        left[i], rank[i] = duration[mine[i]], -tail[mine[i]]
    bound, now, came, size = 0.0, 0.0, 0, 0
    while came < m or size:
        if not size:
            now = max(now, head[mine[came]])
        while came < m and head[mine[came]] <= now:
            _push(heap, 0, size, came, rank)
            size += 1
            came += 1
        task = heap[0]
        if came < m and now + left[task] > head[mine[came]]:
            left[task] -= head[mine[came]] - now
            now = head[mine[came]]
        else:
            now += left[task]
            bound = max(bound, now - rank[task])
            _take(heap, 0, size, rank)
            size -= 1
    return bound
