"""The ranks that tests share: what programs find there, and what becomes of those that do not end as they should."""


import pytest
from on_mpi import Session

SEES = """
import os, sys
from mpi4py import MPI
from bppsa_nb.distributed import ranks
comm = MPI.COMM_WORLD
assert ranks.world() is comm and ranks.rank_and_size() == (comm.rank, comm.size) and comm.allreduce(1) == comm.size
assert comm.Get_attr(ranks._keyval(MPI, "own")) is None  # as new
ranks.group(comm)
print(comm.rank, comm.size, sys.argv[1:], flush=True)
os.write(2, b"by the system\\n")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def few():
    with Session(3) as session:
        yield session


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def test_a_program_finds_what_mpiexec_would_give_it(few, program):
    for ranks, code in (1, 0), (3, 2), (2, 0):
        done = few.run(ranks, program(SEES), code)
        assert (done.returncode, done.stderr) == (code, "by the system\n" * ranks)
        assert done.stdout == "".join(f"{rank} {ranks} ['{code}']\n" for rank in range(ranks))
    done = few.run(2, "-m", "bppsa_nb.multigrid", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: python -m bppsa_nb.distributed layers")
    with pytest.raises(ValueError, match="ranks must be from 1 to 3, got 4"):
        few.run(4, program(SEES), 0)


@pytest.mark.parametrize(
    "first, second, seconds, said",
    [
        ("pass", "raise OSError('lost')", 100, "^rank 1 raised: .*before the fault.*Traceback.*OSError: lost"),
        ("time.sleep(60)", "os.kill(os.getpid(), signal.SIGKILL)", 100, "^rank .*1 was lost: .*before the fault"),
        ("time.sleep(60)", "time.sleep(60)", 0.5, "^rank 0 did not end, rank 1 did not end: .*Timeout.* in do"),
    ],
)
def test_a_program_that_does_not_end_as_it_should_is_an_error_and_the_next_one_runs(
    few, program, first, second, seconds, said
):
    text = f"""import os, signal, time
from mpi4py import MPI
print("before the fault", flush=True)
if MPI.COMM_WORLD.rank == 0: {first}
else: {second}
"""
    with pytest.raises(RuntimeError, match=f"(?s){said}"):
        few.run(2, program(text), seconds=seconds)
    assert few.run(2, program(SEES), 0).returncode == 0
