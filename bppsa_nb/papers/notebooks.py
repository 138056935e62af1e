"""Run the notebooks headless, as JupyterLab's Run All would, so that they regenerate their figures."""

import os
import re
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import bppsa_nb
from bppsa_nb.machine import files


class NotebookError(RuntimeError):
    """A cell raised; the message shows notebook, cell and traceback."""


def names():
    """List the notebooks, without suffix, in reading order; a FileNotFoundError outside a checkout of the project."""
    return sorted(path.stem for path in _folder().glob("*.ipynb"))


def run(name, scale="quick", keep=None):
    """Run a copy of a notebook, in a fresh kernel; the file stays as it is. Returns the seconds that it took.

    The kernel works in `notebooks/`, as JupyterLab's does, and imports this very package. Its figures go to `figures/`,
    its tables to `data/measured/`. The scale is set where the cell tagged `parameters` sets it. A copy with its outputs
    goes to the folder `keep`, if given, but not of a notebook that fails: there is a NotebookError if a cell raises or
    the kernel dies. A cell tagged `timed` runs alone, where folders can be locked: it waits for cells of the other
    notebooks of this checkout, and they wait for it.
    """
    start = time.perf_counter()
    kept = None if keep is None else Path(keep).resolve() / f"{name}.ipynb"
    for path in (files.root() / "figures" / name, files.root() / "data/measured" / name, kept):
        if path is not None:
            files.check_writable(path)
    with ExitStack() as running:
        with _turn():  # to load and to start is work, too: nothing is timed meanwhile
            import nbformat
            from nbclient import NotebookClient
            from nbclient.exceptions import CellExecutionError, DeadKernelError
            from tqdm import tqdm

            notebook = nbformat.read(_folder() / f"{name}.ipynb", as_version=4)
            _set_scale(notebook, name, scale)
            quiet = ["--log-level=ERROR"]  # the kernel's own log, not what cells print
            client = NotebookClient(notebook, timeout=None, shutdown_kernel="immediate", extra_arguments=quiet)
            running.enter_context(client.setup_kernel(env=_environment(), cwd=str(_folder())))
        cells = tqdm(notebook.cells, desc=name, unit="cell", leave=False, disable=None)
        for index, cell in enumerate(running.enter_context(cells)):
            try:
                with _turn(alone="timed" in cell.metadata.get("tags", [])):
                    client.execute_cell(cell, index)
            except (CellExecutionError, DeadKernelError) as error:
                message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
                where = f"{name}.ipynb, cell {index + 1} of {len(notebook.cells)}"
                raise NotebookError(f"{where}: {message}") from None
    if kept is not None:
        with files.atomic_write(kept, "w") as file:
            nbformat.write(notebook, file)
    return time.perf_counter() - start


def _folder():
    return files.shipped("notebooks")


@contextmanager
def _turn(alone=False):
    """Wait until a cell may run: one that times something alone, others beside each other."""
    with ExitStack() as held:
        with files.folder_lock(_folder()):  # no cell overtakes one that waits to be alone
            held.enter_context(files.folder_lock(files.root() / "data/measured", shared=not alone))
        yield


def _set_scale(notebook, name, scale):
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise ValueError(f"{name}.ipynb must have one cell tagged `parameters`, found {len(tagged)}")
    tagged[0].source, found = re.subn(r"^scale = .*$", f"scale = {scale!r}", tagged[0].source, flags=re.MULTILINE)
    if found != 1:
        raise ValueError(f"{name}.ipynb must set `scale` on one line of its cell tagged `parameters`, found {found}")


def _environment():
    package = str(Path(bppsa_nb.__file__).resolve().parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # ipykernel's debugger warns in every kernel otherwise
    }
    environment.pop("MPLBACKEND", None)  # the kernel has its own: figures are shown inline
    return environment
