"""Training steps on a driver that launches nothing: what the host asks of a GPU, and how it takes a refusal."""

import json

import on_driver
import pytest
from texts import beside

pytestmark = pytest.mark.outer

# Cell, method, H and layers; and what the environment says.
FIRST = (("rnn", "linear", 20, 2), {})
RECORDED = [(("rnn", "chunked", 20, 1), {}), (("rnn", "blelloch", 20, 1), {})]
FEW = {"DRIVER_MAX_THREADS": "288"}  # where 300 and 512 would be asked for
WIDE = [(("gru", "chunked", 100, 1), FEW), (("rnn", "linear", 300, 1), FEW)]
REFUSED = (("rnn", "linear", 20, 2), {"DRIVER_FAILS": "1"})
PLAIN = (("rnn", "linear", 20, 2), {"BPPSA_NB_CUDA_GRAPH": "0"})
# Those of a list in one process, which compiles every kernel once, and asks once what it may have.
FEW_KERNELS, MANY = [FIRST, REFUSED, PLAIN], [*WIDE, *RECORDED]
# Lines of its own go into the driver's log.
PROGRAM = beside(__file__)["PROGRAM"]


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
    assert len(launches(log)) == 1 + 2 * nodes > 20  # initial states; launch by launch, and then for the recording


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
