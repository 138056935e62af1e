"""Layer-parallel training: the layers of a residual network solved by nonlinear multigrid (FAS, MGRIT)."""

from importlib import import_module as _import_module

_HOME = {
    "ResidualModel": "multigrid.model",
    "ResidualNetwork": "networks.residual",
    "Solution": "multigrid.solver",
    "partition": "multigrid.grids",
    "solve": "multigrid.solver",
    "solve_adjoint": "multigrid.solver",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    # Names load on first use (PEP 562), and the compiled loops with them.
    if name not in _HOME:
        raise AttributeError(f"module 'bppsa_nb.multigrid' has no attribute {name!r}")
    value = getattr(_import_module(f"bppsa_nb.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
