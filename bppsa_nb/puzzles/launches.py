"""Launch what a learner wrote, watched, on the CPU: what is wrong is told by line, block and thread; who did what."""

import inspect
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bppsa_nb.machine.cuda_compiler import NumbaError, cuda, require
from bppsa_nb.machine.process import explained
from bppsa_nb.puzzles.checker import Wrong, changed, said, shown

DONE = "The numbers are right, but"
STEPS = 1 << 14  # basic blocks that a launch may run; a right one takes some dozens


class Launched(NamedTuple):
    """What arrays hold after a launch, the `Report` on it, and who stored into the last one, as `launch` has it."""

    arrays: list
    report: object
    stored: np.ndarray


def launch(kernel, blocks, threads, *arguments):
    """Run a kernel on copies of arrays, from its PTX on the CPU, every access watched: `Launched`, or `Wrong`.

    All arrays but the last one are only to be read. Of that one, `stored` has rows (element, block, thread), each once.
    Of what is found, a barrier is the cause of the rest.
    """
    check_kernels(kernel)
    report, given = watch(kernel, blocks, threads, *arguments)
    if report.findings:
        raise Wrong(told_finding(report, kernel, given))
    *others, last = (name for name, each in given.items() if isinstance(each, np.ndarray))
    see_unchanged(report, *others)
    return Launched([given[name] for name in (*others, last)], report, report.stores[last])


def check_kernels(*kernels):
    """See that an answer has kernels, as Numba makes them."""
    for kernel in kernels:
        if not isinstance(kernel, type(cuda.jit(lambda: None))) or kernel.targetoptions.get("device"):
            name = shown(getattr(kernel, "__name__", kernel))
            raise Wrong(f"{name} is a function and no kernel; write @cuda.jit above it")
        if inspect.isgeneratorfunction(kernel.py_func):
            raise Wrong("it has a yield, which makes it wait for one who asks; a kernel's threads run to the end, once")


def watch(kernel, blocks, threads, *arguments):
    """Run a kernel on copies of arrays; return the report, and by the kernel's names what it was given."""
    with explained():
        from bppsa_nb.puzzles.stores import launch as launch_watched
    require()
    copies = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
    try:
        report = launch_watched(kernel, blocks, threads, copies, STEPS)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise Wrong(_told(error, kernel.py_func)) from error
    return report, dict(zip(inspect.signature(kernel.py_func).parameters, copies, strict=True))


def see_unchanged(report, *names):
    """See that a launch has stored nothing into arrays, not even what was there before."""
    for name in names:
        if len(report.stores[name]):
            raise changed(name)


def told_finding(report, kernel, arguments):
    """Say what was found in a launch, in lines of the learner's own; `arguments` are arrays and numbers by name."""
    order = ("barrier", "shuffle", "")  # what is asked of lanes that are not there says more than their mask
    found = min(report.findings, key=lambda found: order.index(found.kind if found.kind in order else ""))
    first = kernel.py_func.__code__.co_firstlineno
    what = re.sub(r"(?<= line )\d+", lambda line: f"{int(line[0]) - first + 1} of yours", found.message)
    if found.kind == "endless":
        what = f"{what.replace('is here', 'still runs')}. Does every loop of yours end?"
    elif found.kind == "barrier":
        what += "; all threads of a block reach the same barriers"
    elif found.kind == "out of bounds" and found.array in arguments:
        what = f"{what.partition(':')[0]}, which is not there: {found.array} has shape {arguments[found.array].shape}"
        what += ", and an index beyond its axis leads on into the next row" * (arguments[found.array].ndim > 1)
    return f"{_where(found.file, found.line, kernel.py_func)}thread {found.thread} of block {found.block} {what}"


def see_who(launched, block, groups, what):
    """See that the work of a launch is shared: each block stores a group of its own, and its threads equal parts.

    `groups` are elements of the last array; `block` is how many threads one has, as it was launched; `what` are the
    groups, in words.
    """
    report, (element, blocks, threads) = launched.report, launched.stored.T
    number, seen = int(np.prod(block)), {}
    for n, group in enumerate(groups):
        mine = np.isin(element, group)
        (first, *others), most = np.unique(blocks[mine]), -(-len(group) // number)
        if others:
            raise Wrong(f"{DONE} {len(others) + 1} blocks store parts of one of the {what}; each block makes its own")
        name, _ = report.form((int(first), 0))
        if first in seen:
            raise Wrong(f"{DONE} block {name} stores several of the {what}, while others wait; each makes its own")
        seen[first] = n
        stores = np.bincount(threads[mine], minlength=number)
        idle = int((stores == 0).sum())
        if stores.max() > most and (idle or not report.atomics):  # which are for several to add to one number
            _, thread = report.form((0, int(stores.argmax())))
            raise Wrong(
                f"{DONE} thread {thread} of block {name} stores {stores.max()} numbers, where {most} for each of its "
                f"{number} threads {'are' if most > 1 else 'is'} enough" + f"; {idle} of them store none" * (idle > 0)
            )
    for n, work in enumerate(report.work.reshape(-1, number)):
        if 0 < 2 * work.mean() <= work.max():
            (name, thread), most = report.form((n, int(work.argmax()))), -(-work.sum() // number)
            raise Wrong(
                f"{DONE} thread {thread} of block {name} makes {work.max()} of the block's {work.sum()} "
                f"multiplications, where {most} for each of its {number} threads {'are' if most > 1 else 'is'} enough; "
                "each makes what it stores"
            )


def see_even(launched, most):
    """See that no thread stores more numbers than its part."""
    who, counts = np.unique(launched.stored[:, 1:], axis=0, return_counts=True)
    if counts.max(initial=0) > most:
        block, thread = launched.report.form(tuple(map(int, who[counts.argmax()])))
        raise Wrong(
            f"{DONE} thread {thread} of block {block} stores {counts.max()} of them, where {most} for each thread "
            f"{'are' if most > 1 else 'is'} enough"
        )


def see_sectors(kernel, report, best, least, why):
    """See that no warp asks for more than `least` sectors at a time, and so in all for more than the best known."""
    each = report.sectors / np.maximum(report.requests, 1)
    if report.sectors.sum() > 1.2 * best.sectors.sum() and each.max() > least:
        file, line = report.program.instructions[int(each.argmax())].source or ("", 0)
        where = _where(file, line, kernel.py_func).replace(": ", "")
        raise Wrong(
            f"{DONE} a warp asks global memory for {each.max():.3g} sectors at a time, where {least} are enough"
            f"{f' (in {where})' * bool(where)}: {why}"
        )


def costs(yours, best):
    """Return what launches cost, and what the best known ones do, as a `Verdict` has it: lists of `Report`.

    Who takes another way, through shared memory or without, is not held up to its passes and barriers.
    """
    rows, other = [], _count(best, "passes per request") == 0 < _count(yours, "passes per request")
    for what in ("warp instructions", "idle lanes, in percent", "sectors", "passes per request", "barriers", "atomics"):
        took, least = _count(yours, what), _count(best, what)
        alike = not other or what not in ("passes per request", "barriers")
        rows += [(what, took, least)] if alike and (least or took and what != "passes per request") else []
    return rows


def _count(reports, what):
    total = lambda name: sum(float(getattr(each, name).sum()) for each in reports)  # noqa: E731
    if what == "warp instructions":
        return sum(each.counters[what].total() for each in reports)
    if what == "idle lanes, in percent":
        issued = [each.counters["warp instructions"].total() for each in reports]
        active = sum(n * each.counters["active lanes"] for n, each in zip(issued, reports, strict=True))
        return round(100 * (1 - active / sum(issued)))
    if what == "sectors":
        return total(what)
    if what == "passes per request":
        return total("passes") / max(total("shared_requests"), 1)
    return sum(each.counters[what] for each in reports)


def _where(file, line, function):
    """Say which line of a learner's function it is, or nothing if it is none of them."""
    code = function.__code__
    own = Path(file).name == Path(code.co_filename).name and line in {number for *_, number in code.co_lines()}
    return f"line {line - code.co_firstlineno + 1} of yours: " if own else ""


def _told(error, function):
    """Say what a compiler, or the launch, says of a kernel, and of which line."""
    compiler = error if isinstance(error, NumbaError) else error.__cause__
    if not isinstance(compiler, NumbaError):
        compiled = compiler is None or not isinstance(error, TypeError)
        return said(error, function) if compiled else f"it does not compile: {type(compiler).__name__}: {compiler}"
    text, file = str(compiler), Path(function.__code__.co_filename).name
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in")]
    if called := re.search("^ *>{3} (.*)", text, re.MULTILINE):
        lines = [f"there is no {called[1].strip()}"]
    at = re.search(rf'{re.escape(file)}", line (\d+)', text)
    return f"it does not compile: {_where(file, int(at[1]), function) if at else ''}{lines[0]}"
