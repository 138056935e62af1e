"""The device that runs compiled kernels on the CPU, under everything that stands on a GPU."""

import numpy as np
import pytest

import warpwatch
from warpwatch.virtual import current, device

pytest.importorskip("cuda.core", reason="needs the gpu extra")
from numba import cuda


def test_arrays_are_the_process_s_own_memory():
    with device():
        line = cuda.device_array(6, np.float32)
        square = line.reshape(2, 3)
        square[1] = np.float32([1, 2, 3])
        assert line.copy_to_host()[3:].tolist() == [1, 2, 3] and len(square) == 2 and square[1, 2] == 3
        taken = cuda.to_device(line.copy_to_host())
        taken.copy_to_device(np.zeros(6, np.float32))
        assert line.copy_to_host()[4] == 2 and taken.copy_to_host().sum() == 0
        with pytest.raises(NotImplementedError):
            square[:, 1:].reshape(4)  # which would be a copy


def test_what_is_found_ends_the_launch_and_names_the_line():
    @cuda.jit
    def shifted(x, out):
        shared, i = cuda.shared.array(64, np.float32), cuda.threadIdx.x
        shared[i] = x[i]
        out[i] = shared[63 - i]  # without a barrier

    with device(watch=True):
        with pytest.raises(AssertionError, match="race: shifted, test_device.py, line .* no barrier orders the two"):
            shifted[1, 64](cuda.to_device(np.ones(64, np.float32)), cuda.device_array(64, np.float32))
    assert not current()


def test_afterwards_numba_has_its_own_functions_again():
    before = cuda.is_available, cuda.devices._runtime, vars(cuda.driver.driver).copy()
    with pytest.raises(ZeroDivisionError), device():
        assert current() and cuda.is_available() and cuda.current_context().device.id == 0
        raise ZeroDivisionError
    assert (cuda.is_available, cuda.devices._runtime, vars(cuda.driver.driver)) == before and not current()


@cuda.jit(device=True, debug=True, opt=False)
def positive(x):
    if x < 0:
        raise ValueError("negative")
    return x


def careful(x, out, n, by):
    i = cuda.grid(1)
    if i >= 60:
        raise AssertionError("too many")  # for pytest changes what `assert` is
    tile = cuda.shared.array((4, 16), np.int64)
    tile[i // 16, i % 16] = positive(x[i])
    cuda.atomic.add(out, (i // 8, i % 8 + by), 1)
    out[i // 8, i % 8] += tile[i // 16, i % 16] // n


def arguments(count=60, n=1, by=0, first=1, size=64):
    """Return how `careful` is called: with a block, and arguments."""
    x = np.ones(size, "i8")
    x[0] = first
    return count, (x, np.zeros((8, 8), "i8"), n, by)


@pytest.mark.parametrize("opt", [False, True])
@pytest.mark.parametrize("change, kind, said, line, thread, count", [
    ({"count": 64}, AssertionError, "too many", 3, 60, 4), ({"first": -1}, ValueError, "negative", -4, 0, 1),
    ({"n": 0}, ZeroDivisionError, "integer division by zero", 7, 0, 60),
    ({"by": 1}, IndexError, "index is out of bounds for axis 1", 6, 7, 7),
    ({"size": 30}, IndexError, "index is out of bounds for axis 0", 5, 30, 30)])  # fmt: skip
@pytest.mark.filterwarnings("ignore:debug=True with opt=True")
def test_exceptions_in_kernels_are_found_and_raised(change, kind, said, line, thread, count, opt):
    kernel, line = cuda.jit(debug=True, opt=opt)(careful), line + careful.__code__.co_firstlineno
    threads, given = arguments(**change)
    report = warpwatch.run(kernel, 1, threads, *given)
    (found,) = (f for f in report.findings if f.kind == "exception")
    codes = [array for name, array in report.program.kernel.arrays.items() if name.endswith("__errcode__")]
    assert codes and not any(array.any() for array in codes)  # nothing is left for the next launch
    assert (found.line, found.thread, found.count) == (line, thread, count)
    assert f"test_device.py, line {line}: thread {thread} of block 0 raises {kind.__name__}: {said}" in str(found)
    with device():
        with pytest.raises(kind, match=rf"line {line}, tid=\[0, 0, {thread}\] ctaid=\[0, 0, 0\]: {said}"):
            kernel[1, threads](*given)
        with pytest.raises(AssertionError, match=f"exception: careful, .*, line {line}: "), device(watch=True):
            kernel[1, threads](*given)
        threads, given = arguments()
        kernel[1, threads](*given)
    assert given[1].sum() == 120


def test_without_debug_nothing_is_raised():
    threads, given = arguments(count=64, n=0, by=1, first=-1)
    assert not [f for f in warpwatch.run(cuda.jit(careful), 1, threads, *given).findings if f.kind == "exception"]
