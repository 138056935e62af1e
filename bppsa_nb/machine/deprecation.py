"""Public names on their way out: they warn, their documentation says so, and they name the version that drops them."""

import functools
import inspect
import warnings


def deprecated(*, since, removed, instead):
    """Mark a public function or method that is to go: deprecated `since` one version, gone in the version `removed`.

    It goes on working, but warns at the line that calls it, and its docstring gets a note. Both say what to use
    `instead`. The warning is a DeprecationWarning: who can change that line sees it, in a notebook's cell, a program of
    their own, or a test. A FutureWarning would also reach users of a library that calls it, who cannot change it.
    A test fails once the package has the version `removed`, and the name is still there.
    """

    def mark(function):
        if not inspect.isfunction(function):
            raise TypeError(f"a function or a method can be deprecated, got {function!r}")
        end = f"removed in {removed}: use {instead}"
        said = f"{function.__qualname__} is deprecated since version {since}, and will be {end}"

        @functools.wraps(function)
        def warned(*args, **options):
            warnings.warn(said, DeprecationWarning, stacklevel=2)
            return function(*args, **options)

        summary, _, rest = (inspect.getdoc(function) or "").partition("\n\n")
        note = f".. deprecated:: {since}\n   Will be {end}."
        warned.__doc__ = "\n\n".join(part for part in (summary, note, rest) if part)
        return warned

    return mark
