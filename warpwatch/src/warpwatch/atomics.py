"""Atomic operations of many lanes at once; what each lane finds and leaves is as if they came one after the other."""

import numpy as np

UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
          "xor": np.bitwise_xor}  # fmt: skip
# The others at many places at once, and what one place holds, from number to number.
ROUNDS = UFUNCS | {"inc": lambda a, v: np.where(a < v, a + 1, 0), "cas": lambda a, v, w: np.where(a == v, w, a),
                   "dec": lambda a, v: np.where((a > 0) & (a <= v), a - 1, v)}  # fmt: skip
CHAINS = {"inc": lambda a, v: [a] + [a := a + 1 if a < x else 0 for x in v],
          "dec": lambda a, v: [a] + [a := a - 1 if 0 < a <= x else x for x in v],
          "cas": lambda a, v, w: [a] + [a := y if a == x else a for x, y in zip(v, w, strict=True)]}  # fmt: skip
MANY = 128  # a place of more lanes is looked at by itself


def by_place(place):
    """Return lanes in the order of their places, and where each place begins."""
    near, bits = place - place.min(), len(place).bit_length()
    if int(near.max()).bit_length() + bits < 64:  # place and lane as one number: much faster than to sort stably
        order = np.sort(near << bits | np.arange(len(place))) & (1 << bits) - 1
    else:
        order = np.argsort(place, kind="stable")
    return order, np.flatnonzero(np.diff(place[order], prepend=-1))


def in_order(op, view, place, values):
    """Do an atomic operation, lane after lane; return what each found."""
    order, starts = by_place(place)
    values, sizes, at = [v[order] for v in values], np.diff(starts, append=len(order)), place[order[starts]]
    now, found, few = view[at], np.empty(len(order), view.dtype), np.flatnonzero(sizes <= MANY)
    if op == "exch":
        found[1:], found[starts], now = values[0][:-1], now, values[0][starts + sizes - 1]
    else:
        for n in np.flatnonzero(sizes > MANY):
            some = [v[starts[n] : starts[n] + sizes[n]] for v in values]
            if op in UFUNCS:
                made = UFUNCS[op].accumulate(np.append(now[n], some[0]), dtype=view.dtype)
            else:
                made = CHAINS[op](now[n].item(), *(v.tolist() for v in some))
            found[starts[n] : starts[n] + sizes[n]], now[n] = made[:-1], made[-1]
        for r in range(sizes[few].max(initial=0)):  # the r-th lane of each place
            few = few[sizes[few] > r]
            here = starts[few] + r
            found[here] = now[few]
            now[few] = ROUNDS[op](now[few], *(v[here] for v in values))
    view[at], old = now, np.empty_like(found)
    old[order] = found
    return old
