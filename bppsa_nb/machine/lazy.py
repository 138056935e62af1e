"""Names of a module that load on first use (PEP 562), so that importing it stays quick."""

import sys
from importlib import import_module


def names(module, homes):
    """Return `__getattr__`, `__dir__` and `__all__` of a module, whose ``__name__`` is given.

    `homes` are modules, seen from the package's top, and which of their names this one has, too.
    """
    home = {name: place for place, names in homes.items() for name in names}
    public = sorted(home)

    def __getattr__(name):
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(f"bppsa_nb.{home[name]}"), name)
        setattr(sys.modules[module], name, value)
        return value

    def __dir__():
        return sorted([*vars(sys.modules[module]), *public])

    return __getattr__, __dir__, public
