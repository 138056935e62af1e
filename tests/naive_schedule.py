"""Schedules by loops: what the rules of Section 2 say, written out once more. Imports nothing of ours.

An operation is a tuple (kind, layer, micro-batch), layers counted from 1 and micro-batches from 0; a row of a schedule
is (worker, kind, layer, micro-batch, start, duration) with the worker's name.
"""


def pipeline_problem(forward, output, weight, device, boundary, micro_batches, first=False):
    """Durations, workers and needs of pipeline-parallel training; device[l - 1] holds layer l."""
    L, duration, worker, needs = len(forward), {}, {}, {}

    def add(kind, layer, m, where, takes, before):
        duration[kind, layer, m] = takes
        worker[kind, layer, m] = where
        needs[kind, layer, m] = before

    def after(kind, layer, to, m):
        """What layer `to` waits for: its neighbor's operation, or that its result is sent."""
        one, two, cost = device[layer - 1] + 1, device[to - 1] + 1, boundary[min(layer, to) - 1]
        if one == two or cost == 0:
            return [(kind, layer, m)]
        add(f"S[{kind}]", layer, m, f"link {one} to {two}", cost, [(kind, layer, m)])
        return [(f"S[{kind}]", layer, m)]

    for m in range(micro_batches):
        for layer in range(1, L + 1):
            before = after("F", layer - 1, layer, m) if layer > 1 else []
            add("F", layer, m, f"GPU {device[layer - 1] + 1}", forward[layer - 1], before)
        for layer in range(L, 0, -1):
            here, before = f"GPU {device[layer - 1] + 1}", [("F", L, m)]
            if layer < L:
                before = after("δO", layer + 1, layer, m)
            if layer > 1 or first:
                add("δO", layer, m, here, output[layer - 1], before)
            add("δW", layer, m, here, weight[layer - 1], before)
    return duration, worker, needs


def data_parallel_problem(forward, output, weight, sync, first=False):
    """Durations, workers and needs of data-parallel training: backward pass, synchronization, next forward pass."""
    L, duration, worker, needs = len(forward), {}, {}, {}
    for layer in range(L, 0, -1):
        before = [] if layer == L else [("δO", layer + 1, 0)]
        if layer > 1 or first:
            duration["δO", layer, 0], needs["δO", layer, 0] = output[layer - 1], before
        duration["δW", layer, 0], needs["δW", layer, 0] = weight[layer - 1], before
        duration["S[δW]", layer, 0], needs["S[δW]", layer, 0] = sync[layer - 1], [("δW", layer, 0)]
    for layer in range(1, L + 1):
        duration["F", layer, 0], needs["F", layer, 0] = forward[layer - 1], [("S[δW]", layer, 0)]
        if layer > 1:
            needs["F", layer, 0].append(("F", layer - 1, 0))
    for operation in duration:
        worker[operation] = "link" if operation[0] == "S[δW]" else "GPU"
    return duration, worker, needs


def devices_of(rows, layers):
    """Who holds each layer, from 0; wrong if a layer's operations are on two devices."""
    held = {}
    for who, kind, layer, _, _, _ in rows:
        if kind in ("F", "δO", "δW"):
            held.setdefault(layer, set()).add(who)
    assert sorted(held) == list(range(1, layers + 1)), "a layer is missing"
    for layer, who in held.items():
        assert len(who) == 1, f"layer {layer} is on {who}"
    return [int(held[layer].copy().pop().split()[1]) - 1 for layer in range(1, layers + 1)]


def check(rows, problem):
    """Hold a schedule to the rules."""
    duration, worker, needs = problem
    start, end = {}, {}
    for who, kind, layer, m, begins, takes in rows:
        operation = kind, layer, m
        assert operation in duration, f"{operation} does not belong there"
        assert operation not in start, f"{operation} is there twice"
        assert who == worker[operation], f"{operation} is on {who}"
        assert takes == duration[operation], f"{operation} takes {takes}"
        assert begins >= 0, f"{operation} starts at {begins}"
        start[operation], end[operation] = begins, begins + takes
    for operation in duration:
        assert operation in start, f"{operation} is missing"
        for before in needs[operation]:
            assert start[operation] >= end[before], f"{operation} starts before {before} is over"
    for one in start:
        for two in start:
            if one != two and worker[one] == worker[two]:
                assert end[one] <= start[two] or end[two] <= start[one], f"{one} and {two} at once"


def memory_at(time, rows, keeps, layers, synchronizes=False):
    """What devices keep from `time` on; `keeps` is (activation, output_grad, weight_grad, inner), each by layer."""
    start, end, worker, finish = {}, {}, {}, 0
    for who, kind, layer, m, begins, takes in rows:
        operation = kind, layer, m
        start[operation], end[operation], worker[operation] = begins, begins + takes, who
        finish = max(finish, begins + takes)

    def arrival(maker, send, receiver):
        if worker[maker] == worker[receiver]:
            return start[maker]
        return start[send] if send in start else end[maker]

    level = {}

    def keep(who, size, born, died):
        level.setdefault(who, 0)
        if born <= time < died:
            level[who] += size

    def keep_for(who, size, born, died):
        """Where weights are synchronized, the next forward pass is there; what it makes was there at the beginning."""
        keep(who, size, 0 if synchronizes else born, died)
        if synchronizes:
            keep(who, size, born, finish)

    for m in sorted({row[3] for row in rows}):
        for layer in range(1, layers + 1):
            weight, outer = ("δW", layer, m), ("δO", layer, m)
            who, used = worker[weight], end[weight]
            if outer in end:
                used = max(used, end[outer])
            if layer == 1:
                came = start["F", 1, m]
            else:
                came = arrival(("F", layer - 1, m), ("S[F]", layer - 1, m), weight)
            keep_for(who, keeps[0][layer - 1], came, used)
            if layer == layers:
                came = min(start[weight], start.get(outer, start[weight]))
            else:
                came = arrival(("δO", layer + 1, m), ("S[δO]", layer + 1, m), weight)
            keep(who, keeps[1][layer - 1], came, used)
            begun, passed = start["F", layer, m], end[outer] if outer in end else end[weight]
            keep_for(who, keeps[3][layer - 1], begun, passed)
    for layer in range(1, layers + 1):
        begins = min(start[operation] for operation in start if operation[:2] == ("δW", layer))
        died = end["S[δW]", layer, 0] if synchronizes else finish
        keep(worker["δW", layer, 0], keeps[2][layer - 1], begins, died)
    return level


def in_order(needs):
    """All operations, each after what it needs."""
    order, placed = [], set()
    while len(order) < len(needs):
        for operation in needs:
            if operation not in placed and all(before in placed for before in needs[operation]):
                order.append(operation)
                placed.add(operation)
    return order


def lower_bound(problem):
    """The longest chain, or any worker's work on what has a head and a tail no shorter than two of them."""
    duration, worker, needs = problem
    head, tail = dict.fromkeys(duration, 0), dict.fromkeys(duration, 0)
    order = in_order(needs)
    for operation in order:
        for before in needs[operation]:
            head[operation] = max(head[operation], head[before] + duration[before])
    for operation in reversed(order):
        for before in needs[operation]:
            tail[before] = max(tail[before], tail[operation] + duration[operation])
    bound = max(head[operation] + duration[operation] + tail[operation] for operation in duration)
    for who in set(worker.values()):
        mine = [operation for operation in duration if worker[operation] == who]
        for least_head in {head[operation] for operation in mine}:
            for least_tail in {tail[operation] for operation in mine}:
                chosen = [o for o in mine if head[o] >= least_head and tail[o] >= least_tail]
                if chosen:
                    bound = max(bound, least_head + sum(duration[o] for o in chosen) + least_tail)
    return bound


def list_schedule(problem, rank):
    """Moment by moment: every free worker starts what is ready and of the lowest rank. Return starts.

    What takes no time is over at once, but what is decided in the same moment does not know of it.
    """
    duration, worker, needs = problem
    start, end, now = {}, {}, 0
    while len(start) < len(duration):
        over = {operation for operation in end if end[operation] <= now}
        busy = {worker[operation] for operation in start if operation not in over}
        begins = []
        for who in set(worker.values()) - busy:
            own = [operation for operation in duration if worker[operation] == who and operation not in start]
            ready = [operation for operation in own if all(before in over for before in needs[operation])]
            if ready:
                begins.append(min(ready, key=lambda operation: rank[operation]))
        for operation in begins:
            start[operation], end[operation] = now, now + duration[operation]
        if not any(end[operation] <= now for operation in begins):
            now = min(end[operation] for operation in start if end[operation] > now)
    return start


def optimum(problem):
    """The least makespan: every order in which operations can follow each other, each started as soon as it can."""
    duration, worker, needs = problem
    best = [sum(duration.values())]
    after = dict.fromkeys(duration, 0)
    for operation in reversed(in_order(needs)):
        for before in needs[operation]:
            after[before] = max(after[before], after[operation] + duration[operation])
    seen = set()

    def go(end, free):
        if len(end) == len(duration):
            best[0] = min(best[0], max(end.values()))
            return
        state = frozenset(end.items())
        if state in seen:
            return
        seen.add(state)
        for operation in duration:
            if operation not in end and all(before in end for before in needs[operation]):
                who = worker[operation]
                over = max([free.get(who, 0)] + [end[before] for before in needs[operation]]) + duration[operation]
                left = sum(duration[o] for o in duration if o != operation and o not in end and worker[o] == who)
                if over + max(after[operation], left) < best[0]:
                    go({**end, operation: over}, {**free, who: over})

    go({}, {})
    return best[0]
