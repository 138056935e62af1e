"""MPI ranks that a notebook talks to: ipyparallel's engines, started by the mpiexec that belongs to this Python."""

import os
import runpy
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import bppsa_nb
from bppsa_nb.machine.checks import check_count

_INSTALL = "`pip install 'bppsa-nb[mpi]'` installs mpi4py, an MPI and ipyparallel"
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
# A thread each, or ranks take each other's cores; MPI's own sockets stay on this machine, as ipyparallel's do.
_ENVIRONMENT = dict.fromkeys(("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1") | dict.fromkeys(
    ("UCX_NET_DEVICES", "FI_TCP_IFACE", "HYDRA_IFACE"), _LOOPBACK
)


def find_mpiexec():
    """Return the path of the mpiexec beside this Python, or on ``PATH``; FileNotFoundError if there is none."""
    found = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or shutil.which("mpiexec")
    if found is None:
        raise FileNotFoundError(f"mpiexec is neither beside {sys.executable} nor on PATH; {_INSTALL}")
    return found


class Engines:
    """`n` MPI ranks on this machine, each of which runs what ``%px`` or a view hands it.

    They start at once, with a thread each, and import this very package; engine i is rank i of ``MPI.COMM_WORLD``. They
    end with `stop`, with the ``with`` block, whose variable is the view, or with this process, however that ends.
    `view` is an ipyparallel.DirectView of all ranks, whose calls wait for them; in IPython, ``%%px`` runs on it.

    There is a ModuleNotFoundError or FileNotFoundError with what to install if mpi4py, ipyparallel or mpiexec is
    missing, a RuntimeError with what mpiexec says if it ends instead, and a TimeoutError after `timeout` seconds.
    """

    def __init__(self, n, timeout=60):
        n, mpiexec = check_count("n", n, 1), find_mpiexec()
        try:
            import mpi4py  # noqa: F401 - the ranks need it
            from ipyparallel import Cluster
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}; {_INSTALL}", name=error.name) from None
        self._folder = tempfile.TemporaryDirectory(prefix="bppsa-nb-")  # no other cluster's, and no user's settings
        paths = [str(Path(bppsa_nb.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]
        environment = _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-m", "bppsa_nb.papers.ranks.engines", str(os.getpid())]
        # Engines have registered when a heart has beaten, every 3 s if nothing else is said.
        controller = ["--usethreads", "--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=60"]
        how = {"profile_dir": self._folder.name, "load_profile": False, "delay": 0, "log_level": 40}
        self._cluster = Cluster(engines="mpi", n=n, controller_ip="127.0.0.1", controller_args=controller, **how)
        launchers = {"Base": {"environment": environment}, "MPI": {"mpi_cmd": [mpiexec]}}
        launchers |= {"Controller": {"controller_cmd": [*command, "controller"]}}
        launchers |= {"Engine": {"engine_cmd": [*command, "engine"]}}
        self._cluster.config.merge({f"{name}Launcher": given for name, given in launchers.items()})
        self._client = None
        try:
            self.view = self._start(n, timeout)
        except BaseException:
            self.stop()
            raise

    def _start(self, n, timeout):
        from IPython import get_ipython

        end = time.monotonic() + timeout
        self._cluster.start_cluster_sync(n)
        self._client = self._cluster.connect_client_sync()
        while len(self._client.ids) < n:
            ranks = self._cluster.engine_set
            if not ranks.process.is_running():  # `ranks.running` would wait for an event loop to tell it
                raise RuntimeError(f"mpiexec ended before {n} ranks had started: {ranks.get_output().strip()}")
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self._client.ids)} of {n} ranks started in {timeout} s")
            time.sleep(0.05)
        view = self._client[:]
        view.block = True
        if get_ipython() is not None:
            view.activate()
        return view

    def stop(self):
        """End all ranks and wait until they have; a second call does nothing."""
        if self._client is not None:
            self._client.close()
        self._cluster.stop_engines_sync()
        self._cluster.stop_controller_sync()
        self._folder.cleanup()

    def __enter__(self):
        return self.view

    def __exit__(self, *exception):
        self.stop()


def _end_with(pid):
    """End this process, and those that it started, as soon as another has ended."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    shutil.rmtree(os.environ["IPP_PROFILE_DIR"], ignore_errors=True)
    os._exit(1)


def _main(pid, program, *arguments):
    """Run ipyparallel's controller or engine for as long as the process that started it."""
    threading.Thread(target=_end_with, args=(int(pid),), daemon=True).start()
    sys.argv[1:] = arguments
    runpy.run_module(f"ipyparallel.{program}", run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
