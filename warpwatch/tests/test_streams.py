"""Streams, events and graphs on the device that runs PTX: what nothing orders races, and what is ordered does not."""

import numpy as np
import pytest
from helpers import beside

from warpwatch import device
from warpwatch.host import array_of
from warpwatch.memory import owner_of

pytest.importorskip("cuda.core", reason="needs the gpu extra")
from numba import cuda

N = 100


@cuda.jit
def produce(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = i + value


@cuda.jit
def consume(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]


@cuda.jit
def count(x, total):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i])


PROGRAMS = [(program, each["said"]) for each in beside(__file__).values() for program in each["programs"]]


def go(program, right):
    x, y, host = cuda.device_array(N, np.float32), cuda.device_array(N, np.float32), np.arange(N, dtype=np.float32)
    names = dict(zip("abc", iter(cuda.stream, None), strict=False), x=x, y=y, host=host, e=cuda.event())
    names["moment"] = lambda stream: [event := cuda.event(), event.record(stream)][0]
    names["block"] = lambda stream: stream.auto_synchronize()(lambda: None)()  # around nothing
    names["fill"] = lambda stream, x, value=0: produce[2, 64, stream](x, value)
    names["use"] = lambda stream, x, y: consume[(2,), 64, stream](x, y)
    names["add"] = lambda stream, total: count[2, 64, stream](host, total)  # two that add may meet
    for step in program.split("; "):
        if not step.endswith("?!"[not right]):
            eval(step.rstrip("?!"), names, {"cuda": cuda})
    return y.copy_to_host()


@pytest.mark.parametrize(("program", "said"), PROGRAMS)
def test_what_nothing_orders_races(program, said):
    with device(watch=True):
        np.testing.assert_array_equal(go(program, True), 2 * np.arange(N, dtype=np.float32))
        with pytest.raises(AssertionError, match=said):
            go(program, False)
    with device():
        go(program, False)  # which nobody watches


def test_a_race_names_both_launches_and_the_line():
    with device(watch=True):
        (a, b), x = (cuda.stream() for _ in range(2)), cuda.device_array((2, N), np.float32)
        with pytest.raises(AssertionError) as error:
            produce[2, 64, a](x[1], 0), consume[2, 64, b](x[1], x[0])
    begin, line = consume.py_func.__code__.co_firstlineno, error.traceback[0].lineno + 1
    first, second = (f" on {stream.name} (test_streams.py, line {line})" for stream in (a, b))
    said = f"reads x[0], which produce{first} writes; consume{second} does not wait for that (and 99 more)"
    assert f"race: consume, test_streams.py, line {begin + 4}: thread 0 of block 0 {said}" in str(error.value)


def test_what_is_over_is_forgotten_and_a_long_loop_keeps_little():
    with device(watch=True):
        (x, y), a = (cuda.device_array(64, np.float32) for _ in range(2)), cuda.stream()
        produce[1, 64, a](x, 0)
        for _ in range(20):
            consume[1, 64, a](x, y)
        assert [len(owner_of(array_of(array)).touched) for array in (x, y)] == [2, 1]
        a.synchronize()
        consume[1, 64, cuda.stream()](x, y)
        assert [len(owner_of(array_of(array)).touched) for array in (x, y)] == [1, 1]
