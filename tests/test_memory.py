import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from bppsa_nb.memory import keep_freed_memory

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
