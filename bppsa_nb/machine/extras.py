"""What is not the core's: which extra brings a package, and a progress bar where tqdm is there."""

from contextlib import contextmanager, nullcontext
from functools import cache

from bppsa_nb.machine.interrupts import interrupts_held

# By the name that each package is imported by.
BRINGS = {
    "notebooks": (
        *("IPython", "PIL", "ipywidgets", "joblib", "matplotlib", "nbclient", "nbformat", "pandas", "seaborn"),
        *("threadpoolctl", "tqdm"),
    ),
    "audio": ("librosa", "soundfile"),
    "data": ("requests", "sklearn"),
    "gpu": ("cuda",),
    "mpi": ("ipyparallel", "mpi4py", "psutil"),
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
        for extra, packages in BRINGS.items():
            if missing in packages:
                said = f"{missing} is missing: `pip install 'bppsa-nb[{extra}]'` installs it"
                raise MissingError(said, name=missing) from None
        raise


class _NoBar(nullcontext):
    """What shows nothing where tqdm would."""

    def __init__(self, iterable=(), **how):
        super().__init__(self)
        self._iterable, self.n = iterable, 0

    def __iter__(self):
        return iter(self._iterable)

    def update(self, count=1):
        self.n += count

    def set_postfix_str(self, text, refresh=True):
        pass


@cache
def _bars():
    """Return tqdm's bars, but Ctrl-C waits while one holds the lock of them all: other threads would wait for ever."""
    from tqdm.auto import tqdm

    held = {name: interrupts_held()(getattr(tqdm, name)) for name in ("close", "refresh")}
    return type("Bar", (tqdm,), held | {"__del__": staticmethod(bool)})  # nothing: Ctrl-C would be lost in it


def bar(*iterable, **how):
    """Return a progress bar of tqdm's with these arguments; without tqdm, one that shows nothing."""
    try:
        kind = _bars()
    except ModuleNotFoundError:
        kind = _NoBar
    with interrupts_held():
        return kind(*iterable, **how)
