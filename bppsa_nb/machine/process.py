"""What concerns a process as a whole: which of several it is, Ctrl-C, what it prints, and which extras it has."""

import io
import os
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module

from bppsa_nb.machine.checks import check_count


def partition(steps: int, ranks: int) -> list[slice]:
    """Share out the steps of a chain or sequence among ranks: consecutive parts, as even as can be.

    Parameters
    ----------
    steps
        At least 0.
    ranks
        At least 1. Where there are more of them than steps, some parts are empty.

    Returns
    -------
    list of slice [length=ranks]

    Examples
    --------
    >>> partition(10, 4)
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    steps, ranks = check_count("steps", steps), check_count("ranks", ranks, 1)
    bounds = [steps * rank // ranks for rank in range(ranks + 1)]
    return [slice(start, stop) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]


def rank_and_size():
    """Tell which of how many processes of mpiexec this is, without loading MPI; (0, 1) if mpiexec did not start it."""
    env = os.environ
    said = [env.get(f"PMI_{name}") or env.get(f"OMPI_COMM_WORLD_{name}") or "" for name in ("RANK", "SIZE")]
    return tuple(map(int, said)) if all(map(str.isdecimal, said)) else (0, 1)


def over_ranks(module):
    """Return a module of `bppsa_nb.distributed`: what runs where ``comm=`` was given. No other import goes up."""
    return import_module(f"bppsa_nb.distributed.{module}")


@contextmanager
def interrupts_held():
    """Let Ctrl-C wait until the block is through, and SIGTERM, where it does not simply end the process."""
    arrived, handlers = [], {}
    if threading.current_thread() is threading.main_thread():  # Python delivers signals there only
        handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: arrived.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in dict.fromkeys(arrived):
        signal.raise_signal(number)


def run(program, *arguments):
    """Run a program that prints, with letters that a terminal lacks escaped; return 1, quietly, if its reader goes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return program(*arguments)
        finally:
            if sys.stdout is not None:  # closed from the start
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # which Python flushes at exit, once more
        return 1


# By the name that each package is imported by.
BRINGS = {
    "notebooks": "IPython PIL ipywidgets joblib matplotlib nbclient nbformat pandas seaborn threadpoolctl tqdm".split(),
    **{"audio": ["librosa", "soundfile"], "data": ["pooch", "sklearn"], "gpu": ["cuda"]},
    "mpi": ["ipyparallel", "mpi4py", "psutil"],
}


class MissingError(ImportError):
    """A package is missing that an extra brings."""


@contextmanager
def explained():
    """Say which extra brings a package that is not found within; functions can be decorated, too."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        known = [f"`pip install 'bppsa-nb[{extra}]'` installs it" for extra in BRINGS if missing in BRINGS[extra]]
        known += ["`pip install -e ./warpwatch`"] * (missing == "warpwatch")
        if known:
            raise MissingError(f"{missing} is missing: {known[0]}", name=missing) from None
        raise


class _NoBar(nullcontext):
    """What shows nothing where tqdm would."""

    def __init__(self, iterable=(), *_, **how):
        super().__init__(self)
        self._iterable, self.n = iterable, 0

    def __iter__(self):
        return iter(self._iterable)

    def update(self, count=1):
        self.n += count

    def set_postfix_str(self, text, refresh=True):
        pass

    set_postfix = set_postfix_str


def bar(*iterable, disable=False, **how):
    """Return a progress bar of tqdm's with these arguments; without tqdm, or disabled, one that shows nothing."""
    kind = _NoBar
    if disable is not True:
        with suppress(ModuleNotFoundError):
            from tqdm.auto import tqdm as kind
    return kind(*iterable, disable=disable, **how)
