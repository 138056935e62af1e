"""The device that runs compiled kernels on the CPU, under everything that stands on a GPU."""

import numpy as np
import pytest

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
