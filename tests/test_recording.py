"""Launches that are recorded and replayed where kernels run on the CPU: by a GPU's rules, and watched as others are."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs a CUDA compiler: the gpu extra")
from numba import cuda
from recorder import record

from bppsa_nb.machine.cuda import follow
from warpwatch import device
from warpwatch.streams import Stream


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


@pytest.mark.parametrize("right", [True, False])
def test_a_graph_is_replayed_with_the_same_checks(right):
    with device(watch=True) as reports:
        x, y = cuda.device_array(64, np.float32), cuda.device_array(64, np.float32)
        main, side, other = (Stream() for _ in range(3))

        def issue(stream):
            produce[1, 64, stream](x, 0)
            follow(side, stream)
            consume[1, 64, side](x, y)
            if right:
                follow(stream, side)
            produce[1, 64, stream](x, 1)
            follow(stream, side)

        launch = record(issue, main).launch
        assert not reports  # nothing has run
        if right:
            for stream in (main, other):  # a replay waits for the last one
                launch(stream)
            assert len(reports) == 6 and y.copy_to_host().tolist() == [2.0 * i for i in range(64)]
            launch(main)
        with pytest.raises(AssertionError, match=r"which consume on .*, recorded, " + ("writes" if right else "reads")):
            y.copy_to_host(stream=other) if right else launch(main)


def test_what_cannot_be_recorded_is_told():
    with device(watch=True) as reports:
        x, (main, side, other) = cuda.device_array(64, np.float32), (Stream() for _ in range(3))

        def unjoined(stream):
            follow(side, stream)
            produce[1, 64, side](x, 0)

        wrong = {
            r"which is recorded, does not wait for produce on stream \d+ \(test_recording.py, line": unjoined,
            "stream 0 waits for all others": lambda stream: produce[1, 64](x, 0),
            "cannot wait for stream .*: only one of them is recorded": lambda stream: follow(stream, other),
            "the host cannot wait for": lambda stream: stream.sync(),
            "what copies an array of the host, or to it": lambda stream: x.copy_to_host(stream=stream),
            "what copies an array of the": lambda stream: produce[1, 64, stream](np.zeros(64, np.float32), 0),
        }
        for match, issue in wrong.items():
            with pytest.raises(RuntimeError, match=match):
                record(issue, main)
        produce[1, 64, main](x, 0)  # which is recorded no longer
        assert len(reports) == 1


def test_a_graph_does_not_keep_what_it_touches():
    with device(watch=True):
        x, y, stream = cuda.device_array(64, np.float32), cuda.device_array(64, np.float32), Stream()
        produce[1, 64, stream](x, 0)
        launch = record(lambda stream: consume[1, 64, stream](x[:], y), stream).launch
        launch(stream)
        x = None
        with pytest.raises(AssertionError, match=r"freed: an array of shape \(64,\)"):
            launch(stream)
