"""Which backends run where Numba must not compile."""

import os
import subprocess
import sys

import numba  # noqa: F401  reads its environment when it is imported, so before any test changes that
import pytest
from rings import more
from texts import beside

from bppsa_nb.cells import calibrate
from bppsa_nb.machine import backends
from bppsa_nb.papers import cli

FORBIDDEN = "backend='{}' is compiled by Numba, which NUMBA_DISABLE_JIT=1 forbids: unset it before Python starts, or"
PROGRAM, COMPILE, LAUNCH = beside(__file__).values()


def test_where_numba_must_not_compile_auto_is_numpy():
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(FORBIDDEN.format("cpu")) and not done.stderr


@pytest.fixture(autouse=True)
def looked_at_again():
    """Have what changes in the environment be seen."""
    backends.compiles.cache_clear()
    yield
    backends.compiles.cache_clear()


def test_numba_compiles_unless_it_must_not(monkeypatch):
    for value in (None, "", "0"):
        monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
        if value is not None:
            monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
        backends.compiles.cache_clear()
        assert backends.resolve("cpu") == "cpu" and backends.resolve("auto") != "numpy"
        assert "cpu" in calibrate.runnable()


def test_commands_say_what_cannot_run(monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert cli.main(["info"]) == 0
    shown = capsys.readouterr().out
    assert "cpu: off, because NUMBA_DISABLE_JIT is set\n" in shown and "auto: takes numpy\n" in shown
    assert "not calibrated: numpy;" in shown
    for command in ("measure crossover_map", "train --backend cpu --samples 16 --length 3"):
        assert cli.main(command.split()) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"bppsa-nb: {FORBIDDEN.format('cpu')}") and said.count("\n") == 1


def test_a_gpu_s_kernels_are_compiled_too(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setattr(backends, "_device_found", lambda: True)
    assert backends.resolve("auto") == "numpy"
    with pytest.raises(backends.UnavailableError, match=FORBIDDEN.format("cuda")):
        backends.resolve("cuda")


def test_what_stands_in_for_a_gpu_is_taken_by_name_only(monkeypatch):
    monkeypatch.setattr(backends, "emulated", lambda: True)
    monkeypatch.setattr(backends, "_device_found", lambda: True)
    assert (backends.resolve("auto"), backends.resolve("cuda")) == ("cpu", "cuda")


@pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA publishes no numba-cuda for macOS")
@pytest.mark.parametrize(
    ("program", "said"),
    [(COMPILE, "True"), (LAUNCH.format(first=""), "ready"), more(LAUNCH.format(first="import numba.cuda"), "ready")],
)
def test_the_first_kernel_neither_fails_nor_warns(program, said):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    # What numba-cuda uses of NumPy and NumPy takes away is for them to settle.
    command = [sys.executable, "-W", "error", "-W", "ignore:The 'generic' unit:DeprecationWarning", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == said and not done.stderr, done.stderr
