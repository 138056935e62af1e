import io
import os
import platform
import subprocess
import sys

import pytest

from bppsa_nb.machine import memory

PROGRAM = """
import resource, sys
import numpy as np
from bppsa_nb.machine.memory import keep_freed_memory

def work():
    arrays = [np.ones(2**18) for _ in range(8)]  # eight times 2 MiB

if "keep" in sys.argv:
    keep_freed_memory()
work()
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide for themselves")
def test_large_arrays_reuse_their_memory():
    def faults(*args):
        run = subprocess.run([sys.executable, "-c", PROGRAM, *args], capture_output=True, text=True, check=True)
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
