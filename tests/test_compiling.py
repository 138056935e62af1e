"""What is compiled is kept where that is possible, and said once where somebody waits for it."""

import os
import subprocess
import sys

import pytest
from numba.core.caching import FunctionCache

from bppsa_nb import compiling


def plus_one(x):
    return x + 1


plus_one.__module__ = "bppsa_nb.pretended"


@pytest.fixture
def says(monkeypatch):
    """Have nothing said so far, and somebody watch."""
    monkeypatch.setattr(compiling._Says, "said", False)
    monkeypatch.setattr(compiling, "_watched", lambda: True)
    for listener in [each for each in compiling.event._registered["numba:compile"] if type(each) is compiling._Says]:
        listener.__dict__.pop("said", None)


def test_the_first_compilation_says_so_and_no_other(says, capsys):
    compiling.numba.njit(lambda x: x)(1)
    assert capsys.readouterr().err == ""  # somebody else's function
    for argument in (1, 1.0, 1j):
        assert compiling.njit()(plus_one)(argument) == argument + 1
    assert capsys.readouterr() == ("", "bppsa_nb: compiling, once\n")


@pytest.mark.parametrize(
    ("ranks", "terminal", "notebook", "watched"),
    [
        ((0, 1), False, False, False),
        ((0, 1), True, False, True),
        ((0, 1), False, True, True),
        ((0, 3), False, False, True),
        ((1, 3), True, True, False),
    ],
)
def test_who_is_told(monkeypatch, ranks, terminal, notebook, watched):
    monkeypatch.setattr("bppsa_nb.ranks.place", lambda: ranks)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setitem(sys.modules, "ipykernel", compiling) if notebook else sys.modules.pop("ipykernel", None)
    assert compiling._watched() == watched


def test_a_disk_that_is_full_stops_nothing(monkeypatch):
    def full(self, name, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FunctionCache, "save_overload", full)
    with pytest.warns(RuntimeWarning, match="compiled code is not kept, .* No space left on device"):
        assert compiling.njit(cache=True)(plus_one)(1) == 2


def test_no_folder_for_compiled_code_stops_nothing(monkeypatch):
    def nowhere(self, function):
        raise RuntimeError("cannot cache function 'plus_one': no locator available")

    monkeypatch.setattr(FunctionCache, "__init__", nowhere)
    with pytest.warns(RuntimeWarning, match="compiled code is not kept, .* no locator available"):
        compiled = compiling.njit(cache=True)(plus_one)
    assert compiled(1) == 2


COUNT = """
import numpy as np
from numba.core import event

class Compiled(event.Listener):
    found = []
    def on_start(self, happens):
        function, given = happens.data["dispatcher"].py_func, str(happens.data["args"])
        self.found.append((function.__module__, function.__qualname__, function.__code__.co_firstlineno, given))
    def on_end(self, happens):
        pass

event.register("numba:compile", Compiled())
import bppsa_nb as bp
x, y = np.ones((30, 16, 1), np.float32), np.zeros(16, int)
"""
FIRST = {
    "rnn": ("bp.Trainer(bp.RNN(1, 20, 10), bp.Adam(), backend='cpu').step(x, y)", 18),
    "gru": ("bp.Trainer(bp.GRU(1, 20, 10), bp.Adam(), backend='cpu').step(x, y)", 18),
    "scan": ("bp.backprop(np.repeat(x[..., None], 20, 0), x[0], method='blelloch', backend='cpu')", 25),
}
LITTLE = """
own = [each for each in Compiled.found if each[0].startswith("bppsa_nb.")]
assert own and len(set(own)) == len(own), f"twice: {own}"
for each in Compiled.found:
    assert "float64" not in each[3], f"in a precision that nobody uses: {each}"
    assert "unicode" not in each[3], f"words of an error that never comes: {each}"
assert len(Compiled.found) <= MOST, Compiled.found
"""


@pytest.mark.parametrize("first", FIRST)
def test_a_first_step_compiles_little_and_a_second_process_nothing(tmp_path, first):
    """Seconds are for benchmarks; here, what they are spent on is counted."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    step, most = FIRST[first]
    for check in LITTLE.replace("MOST", str(most)), "assert not Compiled.found, Compiled.found":
        program = f"{COUNT}\n{step}\n{check}"
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
