import io
import os
import platform
import subprocess
import sys

import pytest
from texts import beside

from bppsa_nb.machine import memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide for themselves")
def test_large_arrays_reuse_their_memory():
    def faults(*args):
        command = [sys.executable, "-c", beside(__file__)["PROGRAM"], *args]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert faults("keep") < faults() / 2


def test_memory_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 3 * 2**29)
    memory.require(3 * 2**29, "just as much")
    with pytest.raises(MemoryError, match=r"^the dense matrix takes 2\.5 GiB, but 1\.5 GiB are available$"):
        memory.require(5 * 2**29, "the dense matrix")


def test_available_memory_is_a_part_of_all_there_is_where_the_system_says(monkeypatch):
    if sys.platform == "linux":
        assert 0 < memory.available() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    monkeypatch.setattr(memory, "open", lambda *_: io.BytesIO(b"MemFree: 9 kB\nMemAvailable:  3 kB\n"), raising=False)
    assert memory.available() == 3 * 2**10

    def missing(name, mode):
        raise FileNotFoundError(name)

    monkeypatch.setattr(memory, "open", missing, raising=False)
    assert memory.available() is None
    memory.require(2**62, "whatever")
