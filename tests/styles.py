"""Right answers to the puzzles about scans, in the styles in which people write: names and sources."""

_LOOP = """def totals(items, op):
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found
"""
_TEXT = r"""
# totals
def totals(items, op):
    total = items[0]
    return [total] + [total := op(total, item) for item in items[1:]]

# totals
def totals(items, op):
    out, i = [items[0]], 0
    while (i := i + 1) < len(items):
        out.append(op(out[-1], items[i]))
    return out

# totals
def totals(items, op):
    out, i = items[:1], 1
    while True:
        if i == len(items):
            break
        out += [op(out[i - 1], items[i])]
        i += 1
    return out

# totals
def totals(items, op):
    match items:
        case [one]:
            return [one]
        case [*some, last]:
            out = totals(some, op)
            return [*out, op(out[-1], last)]

# totals
def totals(items, op):
    def go(rest):
        if rest:
            yield rest[0]
            yield from (op(rest[0], each) for each in go(rest[1:]))
    return [*go(items)]

# totals
def totals(items, op):
    total = items[0]

    def step(item):
        nonlocal total
        total = op(total, item)
        return total

    return [total, *map(step, items[1:])]

# totals
def totals(items, op):
    out = [None] * len(items)
    out[:1] = items[:1]
    for i in range(1, len(items)):
        out[i:i + 1] = [op(out[i - 1], items[i])]
    return out

# totals
def totals(items, op):
    first, *rest = items
    out = [first]
    for item in rest:
        *_, last = out
        out = [*out, op(last, item)]
    return out

# totals
def totals(items, op):
    if len(items) == 1:
        return items[:]
    half = len(items) // 2
    left, right = totals(items[:half], op), totals(items[half:], op)
    return left + [op(left[-1], item) for item in right]

# totals
def totals(items, op):
    out = []
    for item in items:
        try:
            item = op(out[-1], item)
        except IndexError:
            pass
        else:
            assert item
        finally:
            out.append(item)
    return out

# totals
def totals(items, op):
    out = {0: items[0]}
    out |= {i: None for i in range(1, len(items))}
    for i in range(1, len(items)):
        out[i] = op(out[i - 1], items[i])
    return [*out.values()]

# totals
def totals(items, op):
    from functools import cache

    @cache
    def upto(i):
        return op(upto(i - 1), items[i]) if i else items[0]

    return [upto(i) for i in range(len(items))]

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
    return list(islice(accumulate(items, op), 0, len(items), 1))

# totals
def totals(items, op):
    import itertools as it; return [items[0], *it.islice(it.accumulate(items[1:], op, initial=items[0]), 1, None)];

# totals
def totals(items, op):
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found


check('totals', totals)
if __name__ == '__main__':
    print(totals([1], max))

# totals
def totals(items, op, /, *, start=None):
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found

# totals
def totals(
    items, \
    op,
):
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found

# totals
def totals(*given):
    items, op = given
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found

# totals
from typing import Callable, List, TypeVar
W = TypeVar('W')
def totals(items: List[W], op: Callable[[W, W], W]) -> list[W] | None:
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found

# totals
from dataclasses import dataclass, field

@dataclass
class Run:
    op: object
    out: list = field(default_factory=list)

    def add(self, item):
        self.out.append(self.op(self.out[-1], item) if self.out else item)

def totals(items, op):
    run = Run(op)
    for item in items:
        run.add(item)
    return run.out

# totals
from enum import Enum, auto

class State(Enum):
    FIRST = auto()
    LATER = auto()

def totals(items, op):
    out, state = [], State.FIRST
    for item in items:
        out.append(item if state is State.FIRST else op(out[-1], item))
        state = State.LATER
    return out

# totals
from typing import NamedTuple

class Run(NamedTuple):
    total: object

def totals(items, op):
    runs = [Run(items[0])]
    for item in items[1:]:
        runs.append(runs[-1]._replace(total=op(runs[-1].total, item)))
    return [run.total for run in runs]

# totals
class Totals:
    def __call__(self, items, op):
        out = []
        for item in items:
            out += [op(out[-1], item) if out else item]
        return out

totals = Totals()

# totals
import functools

def same(f):
    @functools.wraps(f)
    def g(*args, **kwargs):
        return f(*args, **kwargs)
    return g

@same
def totals(items, op):
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found

# totals
totals = lambda items, op: [*(t := totals(items[:-1], op)), op(t[-1], items[-1])] if items[1:] else items[:]

# totals
def totals(items, op):
    return help_me(items, op)

def help_me(items, op):
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found

# reduce
def reduce(a, op):
    h = 1
    while h < len(a):
        a[2*h-1::2*h] = [op(l, r) for l, r in zip(a[h-1::2*h], a[2*h-1::2*h])]
        yield h
        h <<= 1

# reduce
def reduce(a, op, half=1):
    if half >= len(a): return
    for r in range(2 * half - 1, len(a), 2 * half):
        a[r] = op(a[r - half], a[r])
    yield
    yield from reduce(a, op, 2 * half)

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
    '"""Totals — “all” of them."""  # it’s a comment, too',
    "print(f'{3 + 4 = } {12:03d}', int('101', 2), *'ab', sep='\\n')",
]
RIGHT = [(text.split()[0], "# " + text) for text in _TEXT.split("\n# ")[1:]]
RIGHT += [("totals", f"{first}\n{_LOOP}") for first in _FIRST]
RIGHT += [("totals", _LOOP.replace("    ", indent)) for indent in ("\t", "  ")]
RIGHT += [("totals", _LOOP.replace("\n", "\r\n")), ("totals", f"\n\n  \n{_LOOP}  \n\t\n")]
