"""Planted faults: all are found, with block, threads, array and line; and nothing in what is right.

Those beside this file are several in a kernel, and `which` says which is made.
"""

import linecache
import re
import textwrap

import numpy as np
import pytest
from helpers import beside
from numba import cuda, float32, from_dtype, int32

import warpwatch

F32 = np.float32
PADDED = from_dtype(np.dtype([("a", "i1"), ("b", "f4")], align=True))
SOURCES = beside(__file__)


def write(sources):
    """Write kernels as Python, and return it with what is found, by kernel and number: the line, the kind, and more."""
    lines, found = [], {}
    for name, source in sources.items():
        lines.append(f"def {name}(which, {source.pop('parameters')}):")
        lines += textwrap.indent(source.pop("begins"), "    ").splitlines()
        for which, body in source.items():
            lines.append(f"    {'' if which == '0' else 'el'}if which == {which}:")
            for line in textwrap.indent(body, "        ").splitlines():
                lines.append(line)
                if told := re.search(r"# finds: ([\w ]+)(, [^;]+)?", line):
                    found[name, int(which)] = len(lines), told[1], eval(f"dict({(told[2] or ', ')[2:]})")
    return "\n".join(lines), found


TEXT, FAULTS = write(SOURCES)
FILE = __file__.replace("test_faults", "faults")  # is not there, but what is compiled speaks of it
linecache.cache[FILE] = len(TEXT), None, TEXT.splitlines(keepends=True), FILE
exec(compile(TEXT, FILE, "exec"), names := {"cuda": cuda, "float32": float32, "int32": int32, "PADDED": PADDED})
KERNELS = {name: cuda.jit(names[name]) for name in SOURCES}  # compiled when they are run
RIGHT = 100
LAUNCHES = {"blocks": {"grid": 2, "block": 32}, "blocks 1": {"grid": 64, "block": 1}, "bounds 0": {"grid": 2}}
LAUNCHES |= {"written 2": {"x": warpwatch.empty(64)}, "barriers 4": {"block": 40, "x": np.ones(64, F32)}}


def go(name, which, **more):
    """Launch a kernel with a fault, as its own or its kernel's row says."""
    launch = {"grid": 1, "block": 64, "x": np.arange(64, dtype=F32), "out": np.zeros(96, F32)}
    launch |= LAUNCHES.get(f"{name} {which}", LAUNCHES.get(name, {})) | more
    args = (np.zeros((4, 16), F32),) if name == "bounds" else ()
    sizes, arrays = map(launch.pop, ("grid", "block")), map(launch.pop, ("x", "out"))
    return warpwatch.run(KERNELS[name], *sizes, which, *arrays, *args)


def expect(report, name, which, **changes):
    """Check that what a comment says is found in its line."""
    line, kind, wanted = FAULTS[name, which]
    wanted = {"kind": kind, "kernel": name, "line": line, "file": FILE} | wanted | changes
    found = [f for f in report.findings if (f.kind, f.line) == (wanted["kind"], line)]
    assert found, f"expected {wanted} at line {line}, found:\n{report}"
    assert {key: getattr(found[0], key) for key in wanted} == wanted
    assert f"faults.py, line {line}" in str(found[0])
    return found[0]


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_found_in_what_is_right(name):
    report = go(name, RIGHT)
    assert report.findings == [] and report.notes == [], report


@pytest.mark.parametrize(("name", "which"), FAULTS)
def test_a_fault_is_found_in_its_line(name, which, monkeypatch):
    monkeypatch.setattr("warpwatch.machine.IDLE", 1 << 14)
    monkeypatch.setattr("warpwatch.machine.SECONDS", 0)
    report, (line, kind, wanted) = go(name, which), FAULTS[name, which]
    if kind == "endless":
        assert report.findings[0].kind == kind
    elif kind == "note":  # since Volta a barrier waits for those that are there
        assert report.findings == [] and "returned, for which it does not" in str(report)
        assert report.notes[0].line == line
    elif name == "blocks":
        found = expect(report, name, which)
        assert found.other[0] != found.block and "blocks of a launch do not wait for each other" in str(found)
    else:
        expect(report, name, which, block=wanted.get("block", 0))


@pytest.mark.parametrize("writer, other, line", [(9, 5, 4), (5, 3, 6), (3, 5, 4)])
def test_both_lines_of_a_race_are_told(writer, other, line):
    @cuda.jit
    def two_readers(writer, x, out):
        i = cuda.threadIdx.x
        if i == 5:
            out[i] = x[0]
        if i == 3:
            out[i] = x[0]
        if i == writer:
            x[0] = 1

    (found,) = warpwatch.run(two_readers, 1, 64, writer, np.zeros(64, F32), np.zeros(64, F32)).findings
    first = two_readers.py_func.__code__.co_firstlineno
    assert (found.block, found.thread, found.other) == (0, writer, (0, other))
    assert f"which thread {other} of block 0 reads in line {first + line}; no barrier" in str(found)


def test_how_far_outside_an_index_leads_is_told():
    assert "0 bytes behind the end of its 256 bytes" in str(go("bounds", 1))
    expect(go("bounds", 0, grid=1, x=np.zeros(0, F32)), "bounds", 0, block=0, place=0)


def test_dynamic_shared_memory_that_is_too_small():
    @cuda.jit
    def dynamic(x, out):
        s = cuda.shared.array(0, float32)
        s[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        out[cuda.threadIdx.x] = s[63 - cuda.threadIdx.x]

    x, out = np.arange(64, dtype=F32), np.zeros(64, F32)
    warpwatch.assert_clean(dynamic, 1, 64, x, out, shared=256)
    assert (out == x[::-1]).all()
    first = warpwatch.run(dynamic, 1, 64, x, out, shared=128).findings[0]
    assert (first.kind, first.thread, first.place) == ("out of bounds", 32, 32)
    with pytest.raises(AssertionError, match="out of bounds: dynamic"):
        warpwatch.assert_clean(dynamic, 1, 64, x, out, shared=128)


def test_a_thread_has_so_much_local_memory_and_no_more():
    @cuda.jit
    def local(x):
        own = cuda.local.array(1 << 27, float32)
        own[x.size] = 1
        x[0] = own[x.size + cuda.threadIdx.x]

    with pytest.raises(ValueError, match="needs 536870912 bytes of local memory; it has at most 524288"):
        warpwatch.run(local, 1, 1, np.zeros(1, F32))


def test_memory_that_was_never_written():
    out, half = np.ones(96, F32), warpwatch.empty(64)
    go("written", 4, out=out)
    assert not out[:64].any()  # zeros, as Numba makes them
    assert go("written", 101).findings == go("written", 3, out=half).findings == []
    expect(go("written", 2, x=half), "written", 2, thread=32, place=32)
    odd = warpwatch.empty(4 * 64 + 1, "u1")[1:].view(F32)  # one of the host would be copied, to where it is aligned
    expect(go("written", 2, x=odd), "written", 2, kind="misaligned")


def test_kernels_print_thread_by_thread(capsys):
    @cuda.jit
    def printing(x):
        i = cuda.threadIdx.x
        if i != 1:
            print("100% of", i, x[i], i > 1, "é")
        cuda.syncthreads()
        x[i] = i

    x = np.float32([0.5, 1, -2])
    report = warpwatch.run(printing, 2, 3, x)
    told = "100% of 0 0.500000 False é\n100% of 2 -2.000000 True é\n"
    assert capsys.readouterr().out == 2 * told
    assert not any("%" in str(finding) for finding in report.findings) and x.tolist() == [0, 1, 2]


def test_a_kernel_that_goes_on_to_new_places_is_not_taken_for_endless(monkeypatch):
    @cuda.jit
    def walk(x, out, rounds):
        for _ in range(rounds):
            for k in range(x.size):
                out[k] = x[k]

    monkeypatch.setattr("warpwatch.machine.IDLE", 1 << 14)
    monkeypatch.setattr("warpwatch.machine.SECONDS", 0)
    monkeypatch.setattr("warpwatch.machine.LOOK", 1 << 10)
    x, out = np.ones(1000, F32), np.zeros(1000, F32)
    assert warpwatch.run(walk, 1, 1, x, out, 1).findings == [] and out.all()  # 2,000 accesses; 256 make one endless
    assert warpwatch.run(walk, 1, 1, x, out, 2).findings[0].kind == "endless"
    x, out = np.ones(100, F32), np.zeros(100, F32)
    assert warpwatch.run(walk, 1, 1, x, out, 2).findings == []


def test_threads_that_write_the_same_value_are_noted():
    report = go("blocks", 0, x=np.ones(64, F32))
    assert report.findings == [] and "with the same value" in str(report.notes[0]) and "note:" in str(report)


def test_blocks_and_threads_are_told_as_they_were_given():
    first = go("sharing", 0, grid=(1, 1), block=(32, 2)).findings[0]
    assert (first.kind, first.block, first.thread, first.place) == ("uninitialized", (0, 0), (0, 0), 63)
    first = go("bounds", 0, grid=(2,), block=(64,)).findings[0]
    assert (first.block, first.thread) == ((1,), (0,))


def test_counters():
    report = go("sharing", RIGHT)
    counters = report.counters
    names = "warp instructions, active lanes, sectors per request, shared passes per request, barriers, atomics"
    assert set(counters) == {*names.split(", "), "multiply-adds"}
    assert counters["sectors per request"] == 4 and counters["shared passes per request"] == 1
    assert str(report).startswith("kernel sharing: nothing found\n")
    assert str(go("sharing", 0)).startswith("kernel sharing: 1 finding\n")
    assert counters["barriers"] == 2 and counters["warp instructions"]["barrier"] == 4


def test_blocks_that_do_not_run_together_race_as_well(monkeypatch):
    monkeypatch.setattr("warpwatch.machine.LANES", 32)  # one block after the other
    found = expect(go("blocks", 3), "blocks", 3, block=1, thread=0, other=(0, 0), place=0, count=32)
    assert f" in line {found.line};" in str(found)
    found = go("blocks", 2, block=1).findings[0]
    assert (found.block, found.thread, found.other) == (1, 0, (0, 0))  # which reads what block 0 wrote
    assert go("blocks", RIGHT).findings == []


@pytest.mark.parametrize("writes", [False, True])
def test_an_index_does_not_lead_from_one_shared_array_into_the_next(writes):
    @cuda.jit
    def beyond(x, out):
        s, t, i = cuda.shared.array(8, float32), cuda.shared.array(8, float32), cuda.threadIdx.x
        s[i], t[i] = x[i], 1
        cuda.syncthreads()
        if writes:
            s[i + 1] = x[i]
            cuda.syncthreads()
        out[i] = t[i] + s[i + (not writes)]

    (found,) = warpwatch.run(beyond, 2, 8, np.ones(8, F32), warpwatch.empty(8)).findings
    assert (found.kind, found.thread, found.place) == ("out of bounds", 7, 8) and "shared array 1[8]" in str(found)


def test_threads_may_wait_for_others_whatever_their_numbers():
    @cuda.jit
    def waiting(flag, first):
        block, i = cuda.blockIdx.x, cuda.threadIdx.x
        if i == first:
            while cuda.atomic.add(flag, 0, 0) <= block:
                pass
        elif i == 32 - first:
            cuda.atomic.add(flag, 0, 1)

    for first in (0, 32):
        assert warpwatch.assert_clean(waiting, 3, 64, np.zeros(1, np.int32), first)


def test_barriers_open_while_others_spin(monkeypatch):
    @cuda.jit
    def spinning(flag):
        if cuda.blockIdx.x == 0:
            for _ in range(100):
                cuda.syncthreads()
            cuda.atomic.exch(flag, 0, 1)
        elif cuda.threadIdx.x == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass

    monkeypatch.setattr("warpwatch.machine.IDLE", 1 << 18)
    monkeypatch.setattr("warpwatch.machine.SECONDS", 0)
    assert warpwatch.assert_clean(spinning, 2, 32, np.zeros(1, np.int32)).counters["barriers"] == 100


def test_shared_arrays_take_what_a_gpu_grants():
    @cuda.jit
    def large(x):
        s = cuda.shared.array(20_000, float32)
        s[0] = x[0]
        x[1] = s[0]

    with pytest.raises(ValueError, match="shared arrays take 80000 bytes; only dynamic ones may take more"):
        warpwatch.run(large, 1, 1, np.ones(2, F32))


def test_where_lines_cannot_be_compiled_a_kernel_runs_without():
    @cuda.jit
    def stumbles(x, out):
        s, i = cuda.shared.array(4, int32), cuda.threadIdx.x
        if i < 4: s[i] = 0  # noqa: E701 - on one line NVVM does not take what Numba says of it
        cuda.syncthreads()
        cuda.atomic.add(s, i % 4, 1)
        cuda.syncthreads()
        if i < 4: out[i] = s[i]  # noqa: E701

    out = np.zeros(4, np.int32)
    assert not warpwatch.run(stumbles, 1, 64, np.zeros(4), out).findings and (out == 16).all()
