"""What is not the core's: which extra brings a package, and a progress bar where tqdm is there."""

from contextlib import contextmanager, nullcontext, suppress

# By the name that each package is imported by.
BRINGS = {
    "notebooks": (
        *("IPython", "PIL", "ipywidgets", "joblib", "matplotlib", "nbclient", "nbformat", "pandas", "seaborn"),
        *("threadpoolctl", "tqdm"),
    ),
    "audio": ("librosa", "soundfile"),
    "data": ("pooch", "sklearn"),
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
