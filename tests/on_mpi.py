"""Runs Python on MPI ranks of this machine, for tests."""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from texts import beside

pytest.importorskip("mpi4py")

from bppsa_nb.papers.ranks.engines import find_mpiexec

REPO = Path(__file__).parents[1]
ENVIRONMENT = {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | {
    "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'tests'}",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",  # ranks that wait for others leave them the cores
}


def command(ranks, *arguments):
    """Return the command that runs Python on so many ranks; on 0 of them without mpiexec."""
    launcher = [find_mpiexec(), "-n", str(ranks)] if ranks else []
    return [*launcher, sys.executable, "-W", "error", *map(str, arguments)]


FAULTY = beside(__file__)["FAULTY"]


def start(ranks, *arguments, seconds=100):
    """Run Python on ranks of its own; all of them must end in time.

    It is for what ends processes, or is about their start; `Session` is quicker for anything else.
    """
    run = {"env": os.environ | ENVIRONMENT, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(command(ranks, *arguments), **run, timeout=seconds)


class Session:
    """Ranks that run one program after another, as `rank_session.py` says: modules are imported, and compiled code is
    loaded once. `size` of them start with the first program, and anew after one that did not end as it should.
    """

    def __init__(self, size):
        self.size, self._process, self._ranks, self._said = size, None, [], None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop()

    def run(self, ranks, *arguments, seconds=200):
        """Run a program on the first of the ranks: a file, or ``"-m"`` and a module, and what it is given.

        All of them must end in so many seconds. Returned is a subprocess.CompletedProcess, with the largest exit code,
        and what was printed, rank after rank. RuntimeError, with what was printed, is raised if a rank raised anything
        but SystemExit, was lost, or did not end in time.
        """
        if not 1 <= ranks <= self.size:
            raise ValueError(f"ranks must be from 1 to {self.size}, got {ranks}")
        try:
            if not self._ranks:
                self._begin()
            with tempfile.TemporaryDirectory() as folder:
                task = {"ranks": ranks, "command": [*map(str, arguments)], "folder": folder, "seconds": seconds}
                ended = self._do(ranks, json.dumps(task), seconds)
                out, err = ("".join(_read(folder, rank, name) for rank in range(ranks)) for name in ("out", "err"))
            if wrong := [f"rank {rank} {how}" for rank, how in ended.items() if not isinstance(how, int)]:
                raise RuntimeError(f"{', '.join(wrong)}: {' '.join(task['command'])}\n{out}{err}{self._rest()}")
        except BaseException:
            if self._process is not None:
                self._process.terminate()  # whoever waits for others would wait for ever
            self._stop()
            raise
        return subprocess.CompletedProcess(task["command"], max(ended.values()), out, err)

    def found(self, ranks, *arguments):
        """Run a program that writes JSON to the file of its last argument, and return what it wrote."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "found.json")
            done = self.run(ranks, *arguments, path)
            assert done.returncode == 0, done.stderr
            return json.loads(path.read_text())

    def measure(self, ranks, program, *arguments):
        """Stand in for `bppsa_nb.papers.ranks.run`: return what a program measures."""
        return self.found(ranks, "-m", "bppsa_nb.papers.ranks", program, *arguments, "--output")

    def _begin(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{folder}/door")
            door.listen(self.size)
            door.settimeout(1)
            program = command(self.size, REPO / "tests" / "rank_session.py", f"{folder}/door")
            run = {"env": os.environ | ENVIRONMENT, "stdin": subprocess.DEVNULL}
            self._said = tempfile.TemporaryFile()
            self._process = subprocess.Popen(program, **run, stdout=self._said, stderr=subprocess.STDOUT)
            end = time.monotonic() + 100
            while len(self._ranks) < self.size:
                try:
                    self._ranks.append(door.accept()[0])
                except TimeoutError:
                    if self._process.poll() is not None or time.monotonic() > end:
                        raise RuntimeError(f"{len(self._ranks)} of {self.size} ranks started: {self._rest()}") from None
            self._ranks.sort(key=_receive)

    def _do(self, ranks, task, seconds):
        """Return the exit code of every rank, or in words how it ended instead."""
        for rank in self._ranks[:ranks]:
            rank.sendall(f"{task}\n".encode())
        ended, end = {}, time.monotonic() + seconds + 5  # in which ranks print where they are
        waiting = {connection: rank for rank, connection in enumerate(self._ranks[:ranks])}
        while waiting and (ready := select.select(waiting, [], [], max(0, end - time.monotonic()))[0]):
            for connection in ready:
                code = _receive(connection)
                ended[waiting.pop(connection)] = "raised" if code is None else code
                if code != 0:
                    end = min(end, time.monotonic() + 10)  # in which others end, too, or never
        return dict(sorted((ended | dict.fromkeys(waiting.values(), "did not end")).items()))

    def _rest(self):
        """Return what mpiexec printed, and what ranks print that are not at work."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def _stop(self):
        for connection in self._ranks:
            connection.close()  # which ends the rank
        self._ranks = []
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            self._said.close()


def _receive(connection):
    """Return what a rank says, or how it was lost."""
    try:
        said = connection.recv(100)
    except ConnectionError:
        said = b""
    return json.loads(said) if said else "was lost"


def _read(folder, rank, name):
    path = Path(folder, f"{rank}.{name}")
    return path.read_text(errors="replace") if path.exists() else ""
