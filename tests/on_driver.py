"""A program run on a CUDA driver that launches nothing (`driver/driver.c`): what it asks of a GPU, without one."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("driver") / "driver.c"


def build(folder):
    """Compile the driver into a folder, or return why it cannot be."""
    compiler, runtime = shutil.which("cc"), find_spec("nvidia.cuda_runtime")
    if not sys.platform.startswith("linux") or compiler is None or runtime is None:
        return "needs Linux, a C compiler, and cuda.h of the gpu extra"
    include = Path(runtime.submodule_search_locations[0]) / "include"
    command = [compiler, "-shared", "-fPIC", f"-I{include}", SOURCE, "-o", folder / "libcuda.so.1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return None


def run(folder, program, cwd=None):
    """Run a program on the driver built in `folder`, and return the driver's log, in lines."""
    (log := folder / "log").unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    kept |= {"PYTHONPATH": os.pathsep.join(sys.path), "LD_LIBRARY_PATH": str(folder), "DRIVER_LOG": str(log)}
    done = subprocess.run([sys.executable, "-c", program], env=kept, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return log.read_text().splitlines()
