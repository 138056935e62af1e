"""What is compiled is kept where that is possible, and said once where somebody waits for it."""

import errno
import os
import signal
import subprocess
import sys
import threading
import types

import pytest
from numba.core import caching, event
from numba.core.caching import IndexDataCacheFile
from rings import large, more
from texts import beside

from bppsa_nb.machine import compiling


def plus_one(x):
    return x + 1


def one_more(x):
    return x + 1


plus_one.__module__ = "bppsa_nb.pretended"


@pytest.fixture
def says(monkeypatch):
    """Have nothing said so far, and somebody watch."""
    monkeypatch.setattr(compiling, "_watched", lambda: True)
    for listener in compiling.event._registered["numba:compile"]:
        if isinstance(listener, compiling._Compiles):
            monkeypatch.setattr(listener, "said", False)


def test_the_first_compilation_says_so_and_no_other(says, capsys):
    compiling.numba.njit(lambda x: x)(1)  # somebody else's function, and one of no module
    made = {}
    exec("def plus_one(x): return x + 1", made)
    assert made["plus_one"].__module__ is None and compiling.numba.njit(made["plus_one"])(1) == 2
    assert capsys.readouterr().err == ""
    for argument in (1, 1.0, 1j):
        assert compiling.njit()(plus_one)(argument) == argument + 1
    assert capsys.readouterr() == ("", "bppsa_nb: compiling, once\n")


@pytest.mark.parametrize(("ranks", "terminal", "notebook", "watched"), [
    ((0, 1), False, False, False), ((0, 1), True, False, True), ((0, 1), False, True, True),
    ((0, 3), False, False, True), ((1, 3), True, True, False), ((0, 3), None, True, False),
])  # fmt: skip
def test_who_is_told(monkeypatch, ranks, terminal, notebook, watched):
    monkeypatch.setattr("bppsa_nb.machine.compiling.rank_and_size", lambda: ranks)
    stream = None if terminal is None else types.SimpleNamespace(isatty=lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "ipykernel", compiling) if notebook else sys.modules.pop("ipykernel", None)
    assert compiling._watched() == watched


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Keep what is compiled in a folder of this test's own."""
    monkeypatch.setattr(compiling.numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def by_njit():
    return compiling.njit(cache=True)(one_more)


def by_cfunc():
    return compiling.cfunc("float64(float64)")(one_more).ctypes


@pytest.mark.parametrize("compiled", [by_njit, by_cfunc])
def test_no_folder_for_compiled_code_stops_nothing(tmp_path, monkeypatch, compiled):
    """As where the package is another user's, and so is the home folder."""

    def refuse(dir):
        refused.append(dir)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), dir)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where there are none, Numba makes folders
    refused = []
    monkeypatch.setattr(caching.tempfile, "TemporaryFile", refuse)
    words = "every process compiles anew: .*one_more.*no locator available.*; NUMBA_CACHE_DIR can name a folder"
    with pytest.warns(RuntimeWarning, match=words):
        function = compiled()
    assert len(refused) >= 2
    assert function(1.0) == 2


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("compiled", [by_njit, by_cfunc])
def test_damaged_files_stop_nothing_and_are_replaced(folder, compiled, kind):
    assert compiled()(1.0) == 2
    (path,) = folder.glob(f"*/*.{kind}")
    for damaged in b"", path.read_bytes()[:20]:
        path.write_bytes(damaged)
        assert compiled()(1.0) == 2
        assert len(path.read_bytes()) > 20


def test_processes_that_compile_at_once_do_not_take_each_others_code(folder, monkeypatch):
    """Both find nothing, the first name is free, and both write there; the index is the float's, the code the int's."""
    with monkeypatch.context() as at_once:
        at_once.setattr(IndexDataCacheFile, "_load_index", lambda self: {})
        assert by_njit()(1.5) == 2.5
        at_once.setattr(IndexDataCacheFile, "_save_index", lambda self, overloads: None)
        assert by_njit()(1) == 2
    assert by_njit()(1.5) == 2.5
    assert by_cfunc()(1.5) == 2.5


class Lasting(event.Listener):
    """Holds the compiler up until somebody forks, or a while."""

    def __init__(self):
        self.entered, self.forked = threading.Event(), threading.Event()

    def on_start(self, happens):
        self.entered.set()
        self.forked.wait(0.2)

    def on_end(self, happens):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_is_forked_while_a_thread_compiles_can_compile():
    lasting = Lasting()
    with event.install_listener("numba:compile", lasting):
        other = threading.Thread(target=compiling.njit()(one_more), args=(1,))
        other.start()
        assert lasting.entered.wait(60)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)  # rather than wait for a lock forever
            os._exit(0 if compiling.njit()(plus_one)(1) == 2 else 1)
        lasting.forked.set()
        other.join()
    assert os.waitpid(child, 0)[1] == 0
    assert compiling.njit()(plus_one)(1) == 2


@pytest.mark.parametrize("first", [more("gru"), large("scan")])
def test_a_first_step_compiles_little_and_a_second_process_nothing(tmp_path, first):
    """Seconds are for benchmarks; here, what they are spent on is counted."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    (step, most), count, little = (beside(__file__)[name] for name in (first, "COUNT", "LITTLE"))
    for check in little.replace("MOST", str(most)), "assert not Compiled.found, Compiled.found":
        program = f"{count}\n{step}\n{check}"
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
