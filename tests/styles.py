"""Right answers to the puzzles about scans, in the styles in which people write: names and sources."""

_LOOP = """def totals(items, op):
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found
"""
_TEXT = r"""
# totals
def totals(items, op, /, *, start=None):
    '''Totals — “all” of them.'''  # it’s a comment, too
    first, *rest = items
    print(f'{3 + 4 = } {12:03d}', int('101', 2), *'ab', sep='\n')
    return [total := first] + [total := op(total, item) for item in rest if True]
if __name__ == '__main__':
    check('totals', totals)

# totals
def totals(*given):
    match given:
        case [[one], _]:
            return [one]
        case [*some, last], op:
            out = totals(some, op)
            return [*out, op(out[-1], last)]

# totals
def totals(items, \
           op):
    def go(rest):
        if rest:
            yield rest[0]
            yield from (op(rest[0], each) for each in go(rest[1:]))
    return [*go(items)]

# totals
def totals(items, op):
    out, total = [None] * len(items), items[0]
    def step(item):
        nonlocal total
        total = op(total, item)
        return total
    out[:1], out[1:] = [total], map(step, items[1:])
    return out

# totals
def totals(items, op):
    if len(items) == 1: return items[:]
    half = len(items) // 2
    left, right = totals(items[:half], op), totals(items[half:], op); return left + [op(left[-1], x) for x in right];

# totals
def totals(items, op):
    out, i = [], 0
    while True:
        if i == len(items):
            break
        try:
            out.append(op(out[-1], items[i]))
        except IndexError:
            out += [items[i]]
        finally:
            i += 1
    return out

# totals
import functools
def same(f):
    @functools.wraps(f)
    def g(*args, **kwargs):
        return f(*args, **kwargs)
    return g
@same
def totals(items, op):
    @functools.cache
    def upto(i):
        return op(upto(i - 1), items[i]) if i else items[0]
    return [*{i: upto(i) for i in range(len(items))}.values()]

# totals
def totals(items, op):
    def keep():
        total = yield
        while True:
            total = op(total, (yield total))
    kept = keep()
    next(kept)
    return [kept.send(item) for item in items]

# totals
def totals(items, op):
    from itertools import accumulate, islice, pairwise
    return [items[0], *islice(accumulate(items[1:], op, initial=items[0]), 1, None)]

# totals
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Callable, List, NamedTuple, TypeVar
W = TypeVar('W')
class State(Enum):
    FIRST = auto()
    LATER = auto()
class Run(NamedTuple):
    total: object
@dataclass
class Totals:
    state: State = State.FIRST
    runs: list = field(default_factory=list)
    def __call__(self, items: List[W], op: Callable[[W, W], W]) -> list[W] | None:
        runs, self.state = [Run(items[0])], State.LATER
        for item in items[1:]:
            runs.append(runs[-1]._replace(total=op(runs[-1].total, item)))
        return [run.total for run in runs]
totals = Totals()

# totals
totals = lambda items, op: [*(t := totals(items[:-1], op)), op(t[-1], items[-1])] if items[1:] else items[:]

# reduce
def reduce(a, op, h=1):
    if h >= len(a): return
    a[2*h-1::2*h] = [op(l, r) for l, r in zip(a[h-1::2*h], a[2*h-1::2*h])]
    yield h
    yield from reduce(a, op, h << 1)

# before
def before(letters, r, d):
    return letters[:(r >> (d + 1)) << (d + 1)]

# down_sweep
import copy
def down_sweep(a, op, pairs, levels):
    for d in range(levels - 1, -1, -1):
        b = copy.copy(a)
        for l, r in pairs(d):
            a[l] = b[r]
            a[r] = op(b[r], b[l])
        yield d

# pairs
import math
def pairs(n, d):
    h = int(math.pow(2, d))
    return [[f + h - 1, min(f + 2 * h - 1, n)] for f in range(0, n + 1, 2 * h) if f + h <= n]

# affine
def affine(first, second):
    match first, second:
        case (A, p), (B, q):
            return B @ A, q + B @ p

# exscan
from functools import reduce
from itertools import accumulate
def exscan(run, op, identity):
    before = yield reduce(op, run, identity)
    return list(accumulate(run, op, initial=before or identity))[:-1]
"""
_FIRST = [  # what stands before a loop
    "import abc, array, bisect, cmath, copy, datetime, decimal, fractions, heapq, io, json, math, numbers, operator",
    "import contextlib, inspect, os, pprint, random, re, statistics, string, struct, sys, textwrap, types, warnings",
    "import logging, queue, threading, time, timeit, traceback, weakref\ntime.sleep(0.001)",
    "from __future__ import annotations\nfrom bppsa_nb.puzzles import check, hint, progress, solution",
    "try:\n    import numpy as np\nexcept ImportError:\n    np = None",
]
RIGHT = [(text.split()[0], "# " + text) for text in _TEXT.split("\n# ")[1:]]
RIGHT += [("totals", f"{first}\n{_LOOP}") for first in _FIRST]
RIGHT += [("totals", _LOOP.replace("    ", indent)) for indent in ("\t", "  ")]
RIGHT += [("totals", _LOOP.replace("\n", "\r\n")), ("totals", f"\n\n  \n{_LOOP}  \n\t\n")]
