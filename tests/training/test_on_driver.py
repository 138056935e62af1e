"""Training steps on a driver that launches nothing: what the host asks of a GPU, and how it takes a refusal."""

import json

import on_driver
import pytest

pytestmark = pytest.mark.outer

# Cell, method, H and layers; and what the environment says.
FIRST = (("rnn", "linear", 20, 2), {})
RECORDED = [(("rnn", "chunked", 20, 1), {}), (("rnn", "blelloch", 20, 1), {})]
FEW = {"DRIVER_MAX_THREADS": "288"}  # where 300 and 512 would be asked for
WIDE = [(("gru", "chunked", 100, 1), FEW), (("rnn", "blelloch", 130, 1), FEW)]
REFUSED = (("rnn", "linear", 20, 2), {"DRIVER_FAILS": "1"})
PLAIN = (("rnn", "linear", 20, 2), {"BPPSA_NB_CUDA_GRAPH": "0"})
# Those of a list in one process, which compiles every kernel once, and asks once what it may have.
FEW_KERNELS, MANY = [FIRST, REFUSED, PLAIN], [*WIDE, *RECORDED]
# Lines of its own go into the driver's log.
PROGRAM = """
import json, os, warnings
import numpy as np, bppsa_nb as bp

def say(*what):
    with open(os.environ["DRIVER_LOG"], "a") as log:
        print(*what, file=log)

def train(cell, method, hidden, layers):
    model = dict(rnn=bp.RNN, gru=bp.GRU)[cell](3, hidden, 4, layers, rng=0)
    trainer = bp.Trainer(model, bp.Adam(), method=method)
    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.step(np.zeros((50, 2, 3), np.float32), np.zeros(2, int))
        for warning in caught:
            say("WARNING", warning.filename, warning.message)
    say("STEPS", trainer.optimizer.steps)

def call():
    # An axis of one has no stride in NumPy, where it is made by None; and arrays of other libraries are on the GPU.
    from bppsa_nb.machine.cuda_compiler import cuda
    J, g = np.zeros((5, 2, 20, 20), np.float32), np.zeros(20, np.float32)[None]
    x, h0 = np.zeros((6, 1), np.float32)[..., None], np.zeros((2, 1, 20), np.float32)
    class Foreign:
        def __init__(self, array):
            self.there = cuda.to_device(np.ascontiguousarray(array).reshape(array.size).reshape(array.shape))
            self.__cuda_array_interface__ = self.there.__cuda_array_interface__ | {"strides": array.strides}
            self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
    model = bp.RNN(1, 20, 3, 2, rng=0)
    for method in ("linear", "chunked", "blelloch"):
        bp.backprop(J[:, :1], g, method=method, backend="cuda")
        assert type(bp.backprop(Foreign(J[:, 0].copy()), Foreign(g), method=method)) is type(cuda.device_array(1))
        model.backward(model.forward(x, backend="cuda"), np.zeros((1, 3), np.float32), method, backend="cuda")
        model.backward(model.forward(Foreign(x), Foreign(h0)), Foreign(np.zeros(3, np.float32)[None]), method)
    # Layers alone, with parameters on the GPU, and gradients at all that can be read.
    from bppsa_nb.cells import stacked_cuda
    from bppsa_nb.cells.unroll import SolverOptions
    for kind in (bp.RNN, bp.GRU, bp.LSTM):
        model, put = kind(1, 20, 3, 2, rng=0), cuda.to_device
        model.params = {name: put(param) for name, param in model.params.items()}
        last, each = np.zeros((1, 20), np.float32), np.zeros((6, 1, 20), np.float32)
        initial = [put(np.zeros((2, 1, 20), np.float32)) for _ in range(kind.cell.states)]
        for h0, options in ((None, SolverOptions("linear")), (initial, SolverOptions("chunked", 3))):
            saved, _ = stacked_cuda.forward(model, put(np.zeros((6, 1, 1), np.float32)), h0, options)
        for ends, terms in (([None, put(last)], None), ([put(last)] * 2, put(each)), ([None] * 2, put(each))):
            how = "linear", "cuda", None
            stacked_cuda.backward(model, put(np.zeros((6, 1, 1), np.float32)), saved, ends, terms, how, True)
    try:
        bp.backprop(Foreign(J[:, 0].transpose(0, 2, 1)), Foreign(g))
    except ValueError as error:
        say("REFUSED", error)

for case, environment in json.loads(CASES):
    say("CASE", json.dumps([case, environment]))
    os.environ.update(environment)
    train(*case)
    for name in environment:
        del os.environ[name]
say("CASE", json.dumps("arrays"))
if MANY:
    call()
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """What the driver was asked for, by case."""
    folder, found = tmp_path_factory.mktemp("driver"), {}
    if missing := on_driver.build(folder):
        pytest.skip(missing)

    def log(case):
        if (key := json.dumps(case)) not in found:
            cases = FEW_KERNELS if case in FEW_KERNELS else MANY
            for line in on_driver.run(folder, f"CASES, MANY = {json.dumps(cases)!r}, {cases == MANY}\n{PROGRAM}"):
                if line.startswith("CASE "):
                    here = found.setdefault(line.removeprefix("CASE "), [])
                else:
                    here.append(line)
        return found[key]

    return log


def test_arrays_of_any_strides_and_libraries_are_taken(logs):
    log = logs("arrays")
    assert not lines(log, "UNSAFE")
    said = "jacobians_T must be contiguous, row by row, got shape (5, 20, 20) in another order"
    assert lines(log, "REFUSED") == [f"REFUSED {said}"]


def launches(log):
    return [dict(zip(line.split()[::2], line.split()[1::2], strict=True)) for line in log if line.startswith("LAUNCH")]


def lines(log, *words):
    return [line for line in log if line.startswith(words)]


@pytest.mark.parametrize("case", [FIRST, *RECORDED], ids=str)
def test_steps_are_recorded_once_and_replayed(logs, case):
    log = logs(case)
    assert log[-1] == "STEPS 4" and not lines(log, "UNSAFE", "UNJOINED", "WARNING")
    assert len(lines(log, "BEGIN")) == 1 and len(lines(log, "REPLAY")) == 3
    (nodes,) = (int(line.split()[-1]) for line in lines(log, "END"))
    assert len(launches(log)) == 2 * nodes > 20  # launch by launch first, and then for the recording


@pytest.mark.parametrize("cases", [FEW_KERNELS, MANY], ids=["few", "many"])
def test_streams_wait_for_copies_that_are_still_on_their_way(logs, cases):
    streams = [line for case in cases for line in lines(logs(case), "STREAM")]
    assert len(streams) >= len(cases) and all(line.endswith(" waits for the legacy stream") for line in streams)


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_blocks_have_as_many_threads_as_there_are_registers_for(logs, case):
    log = logs(case)
    assert log[-1] == "STEPS 4" and max(int(launch["block"]) for launch in launches(log)) == 288


def test_a_step_that_cannot_be_recorded_is_launched_one_by_one_and_says_so_once(logs):
    log = logs(REFUSED)
    assert log[-1] == "STEPS 4"
    (warning,) = lines(log, "WARNING")  # that stands where the user's program called
    assert warning.startswith("WARNING <string> a training step could not be recorded as a CUDA graph; its launches")
    assert len(lines(log, "BEGIN")) == len(lines(log, "END")) == 1 and not lines(log, "REPLAY")


def test_launches_may_be_plain_from_the_start(logs):
    log = logs(PLAIN)
    assert log[-1] == "STEPS 4" and len(launches(log)) > 60 and not lines(log, "BEGIN", "REPLAY", "WARNING")
