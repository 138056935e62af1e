"""Marks of what runs on the CUDA simulator, and on a GPU."""

import pytest

from bppsa_nb.machine import backends

simulator = [
    pytest.mark.simulator,
    pytest.mark.skipif(not backends.simulated(), reason="needs NUMBA_ENABLE_CUDASIM=1"),
]
on_simulator = lambda *args: pytest.param(*args, marks=simulator)  # noqa: E731
on_gpu = lambda *args: pytest.param(*args, marks=pytest.mark.gpu)  # noqa: E731
