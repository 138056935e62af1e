"""A rank that runs one program after another, for `on_mpi.Session`: mpiexec -n RANKS python rank_session.py ADDRESS.

It waits for lines on a Unix socket, without using its core. A line names a program, for how many ranks it is, and a
folder for what it prints. The program finds what mpiexec would give it: ``MPI.COMM_WORLD`` has so many ranks, and is
as new as if they had just started.
"""

import faulthandler
import json
import os
import queue
import runpy
import socket
import sys
import threading
import time
import traceback
from unittest.mock import patch

from mpi4py import MPI

WORLD = MPI.COMM_WORLD


def listen(connection, tasks):
    """Hand on what there is to do; end this process with the one that asks, soon also in the middle of a program."""
    for line in connection.makefile():
        tasks.put(json.loads(line))
    tasks.put(None)
    time.sleep(2)
    os._exit(1)


def run(program, *arguments):
    """Run a program, which is a file or a module; return its exit code, or None if it raised."""
    module = program == "-m"
    program, *arguments = arguments if module else [program, *arguments]
    try:
        with patch.object(sys, "argv", [program, *arguments]):
            if module:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program, run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, int | None):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return None
    return 0


def do(ranks, command, folder, seconds):
    """Run a program on some ranks, of which this is one; where it takes too long, print where it is."""
    comm = WORLD.Create_group(WORLD.group.Incl(range(ranks)))
    sizes = {name: str(ranks) for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE") if name in os.environ}
    with open(f"{folder}/{comm.rank}.out", "wb") as out, open(f"{folder}/{comm.rank}.err", "wb") as err:
        kept = [(number, os.dup(number)) for number in (1, 2)]
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        faulthandler.dump_traceback_later(seconds)
        try:
            with patch.object(MPI, "COMM_WORLD", comm), patch.dict(os.environ, sizes):
                code = run(*command)
        finally:
            faulthandler.cancel_dump_traceback_later()
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
    if code is not None:  # after an error the others may not come
        comm.Free()
    return code


def main(address):
    connection, tasks = socket.socket(socket.AF_UNIX), queue.SimpleQueue()
    connection.connect(address)
    connection.sendall(f"{WORLD.rank}\n".encode())
    threading.Thread(target=listen, args=(connection, tasks), daemon=True).start()
    while (task := tasks.get()) is not None:
        connection.sendall(f"{json.dumps(do(**task))}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
