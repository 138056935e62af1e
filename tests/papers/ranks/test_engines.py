import os
import signal
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("mpi4py")
pytest.importorskip("ipyparallel")

from bppsa_nb.machine.files import root
from bppsa_nb.papers.ranks import engines


def look():
    import os

    from mpi4py import MPI
    from numba import config

    import bppsa_nb

    world = MPI.COMM_WORLD
    threads = config.NUMBA_NUM_THREADS, int(os.environ["OPENBLAS_NUM_THREADS"])
    return world.rank, world.size, world.allreduce(world.rank), threads, bppsa_nb.__file__


def wait_for_a_message_that_nobody_sends():
    from mpi4py import MPI

    MPI.COMM_WORLD.recv(source=MPI.COMM_WORLD.rank)


def die_while_others_wait():
    import os
    import signal
    import time

    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        MPI.COMM_WORLD.recv(source=1)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def test_ranks_run_what_they_are_given_and_leave_nothing_behind():
    before = set(psutil.Process().children(recursive=True))
    with engines.Engines(2) as view:
        started = set(psutil.Process().children(recursive=True)) - before
        addresses = {c.laddr.ip for p in started for c in p.net_connections() if c.status == "LISTEN"}
        found = view.apply(look)
        folder = view.client.cluster.profile_dir
    package = str(root() / "bppsa_nb" / "__init__.py")
    assert found == [(rank, 2, 1, (1, 1), package) for rank in range(2)]
    assert view.client.cluster.controller is None and not os.path.exists(folder)
    assert set(psutil.Process().children()) <= before
    assert not psutil.wait_procs(started, timeout=20)[1]
    if sys.platform == "linux":  # mpiexec's own port is open to all, and asks for a key
        assert addresses <= {"127.0.0.1", "0.0.0.0"}


@pytest.mark.outer
def test_a_killed_rank_is_an_error_and_no_hang():
    from ipyparallel.error import CompositeError

    ranks = engines.Engines(2)
    try:
        with pytest.raises(CompositeError, match="Engine 1 died while running task"):
            ranks.view.apply_async(die_while_others_wait).get(timeout=30)
    finally:
        ranks.stop()
    ranks.stop()  # once more changes nothing


@pytest.mark.full
def test_ranks_end_with_the_process_that_started_them():
    from texts import beside  # not at the top, for engines import this module

    command = [sys.executable, "-c", beside(__file__)["program"], os.path.dirname(__file__)]
    environment = os.environ | {"PYTHONPATH": f"{root()}{os.pathsep}{root() / 'tests'}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        folder = parent.stdout.readline().strip()
        started = psutil.Process(parent.pid).children(recursive=True)
        parent.send_signal(signal.SIGKILL)
    assert len(started) >= 4  # controller, mpiexec and two ranks, at least
    assert not psutil.wait_procs(started, timeout=20)[1]
    assert folder and not os.path.exists(folder)


@pytest.fixture
def mpiexec(tmp_path, monkeypatch):
    """Have an mpiexec found that does what the test says."""

    def write(script):
        program = tmp_path / "mpiexec"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(engines.sysconfig, "get_path", lambda name: str(tmp_path))

    return write


def test_mpiexec_is_the_one_beside_python(mpiexec, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.setattr(engines.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"neither beside .* nor on PATH; `pip install 'bppsa-nb\[mpi\]'`"):
        engines.Engines(2)
    (other / "mpiexec").touch(mode=0o755)
    assert engines.find_mpiexec() == str(other / "mpiexec")
    mpiexec("exit 0")
    assert engines.find_mpiexec() == str(tmp_path / "mpiexec")


@pytest.mark.parametrize("name", ["mpi4py", "ipyparallel"])
def test_what_is_missing_is_said(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{name}.*`pip install 'bppsa-nb\[mpi\]'`"):
        engines.Engines(2)


@pytest.mark.outer
def test_ranks_that_do_not_start_are_an_error(mpiexec):
    before = set(psutil.Process().children())
    mpiexec("echo too few slots; exit 3")
    with pytest.raises(RuntimeError, match="mpiexec ended before 2 ranks had started: too few slots"):
        engines.Engines(2)
    mpiexec("exec sleep 60")
    with pytest.raises(TimeoutError, match="0 of 2 ranks started in 1 s"):
        engines.Engines(2, timeout=1)
    assert set(psutil.Process().children()) == before
