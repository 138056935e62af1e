"""The seam to the compilers of CUDA for Python, numba-cuda and numba-cuda-mlir: which is there, and PTX of a kernel."""

import sys
import warnings
from contextlib import nullcontext
from functools import cached_property, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec

GENERATION = 9, 0  # of the GPU that a compiler is told of where there is none
MISSING = "CUDA kernels need a compiler: `pip install 'numba-cuda[cu12]'` brings one, not for macOS"
OPTIONS = "fastmath", "opt", "launch_bounds"  # of a kernel's, those that make other PTX
# A function that is called with what compiles, and with all that this depends on; it may return what it has kept.
keep = lambda compiled, *what: compiled()  # noqa: E731


class Compiler:
    """A compiler; `cuda` is the module of that name, and `part` gives one of those that are inside of it."""

    def __init__(self, package, cuda, inside):
        self.package, self.cuda_name, self._inside = package, cuda, inside

    @cached_property
    def cuda(self):
        """The module that programs call `cuda`."""
        if find_spec(self.package) is None:
            raise ModuleNotFoundError(MISSING, name=self.package)
        return import_module(self.cuda_name)

    @cached_property
    def dispatcher(self):
        """The class of its kernels."""
        return type(self.cuda.jit(lambda: None))

    def part(self, name):
        """Return one of its modules."""
        return import_module(f"{self._inside}.{name}")


ALL = (Compiler("numba_cuda", "numba.cuda", "numba.cuda"),
       Compiler("numba_cuda_mlir", "numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda"))  # fmt: skip
MODULES = {each.cuda_name for each in ALL}  # after whose import a compiler is there


def present():
    """List the compilers that a program has imported, or the first that is installed; there may be none."""
    return imported() or [each for each in ALL if find_spec(each.package)][:1]


def imported():
    """List the compilers that a program has imported."""
    return [each for each in ALL if {each.package, each.cuda_name} <= sys.modules.keys()]


def of(kernel):
    """Return the compiler of a kernel that a decorator has made."""
    for each in imported():
        if isinstance(kernel, each.dispatcher) and not kernel.targetoptions.get("device"):
            return each
    if not present():
        raise ModuleNotFoundError(MISSING, name=ALL[0].package)
    raise TypeError(f"it is {kernel!r}, and no kernel of {' or '.join(sorted(MODULES))}")


_TEXTS = {}


def ptx_of(compiler, kernel, types):
    """Return the PTX of a kernel for arguments of these types, with the lines of its source."""
    options = {name: value for name in OPTIONS if (value := kernel.targetoptions.get(name)) is not None}
    compile_ptx = partial(compiler.cuda.compile_ptx, cc=GENERATION, **options)
    key = kernel.py_func, types, str(options)

    def compiled():
        try:
            return compile_ptx(kernel.py_func, types, lineinfo=True)[0]
        except compiler.part("core.errors").NumbaError:
            raise
        except Exception:  # of NVVM, which does not take all that is said of lines
            return compile_ptx(kernel.py_func, types)[0]

    if key not in _TEXTS:
        if kernel.targetoptions.get("link"):
            raise TypeError(f"{kernel.py_func.__name__} is linked with other files (link=...), which are not read here")
        from warpwatch import virtual  # which launches what is compiled here

        there = virtual.current() or compiler.cuda.is_available()  # a device, of which the compiler asks now and then
        with nullcontext() if there else virtual.device(), warnings.catch_warnings():
            # Of source that was never in a file: lines are right.
            warnings.filterwarnings("ignore", "Could not find source for function")
            _TEXTS[key] = keep(compiled, kernel.py_func, str(types), GENERATION, options)
    return _TEXTS[key]


@lru_cache(256)
def declared(dispatcher, types):
    """Return those types of a kernel's signatures that arguments of other types are cast to, as a launch does."""
    if dispatcher._can_compile or types in dispatcher.overloads:
        return types
    if len(dispatcher.overloads) == 1:  # which may take numbers for addresses
        return next(iter(dispatcher.overloads))
    signature = of(dispatcher).part("typing.templates").signature
    name, cases = dispatcher.py_func.__name__, [signature(None, *each) for each in dispatcher.overloads]
    best = dispatcher.typingctx.resolve_overload(name, cases, types, {}, allow_ambiguous=False)
    if best is None:
        raise TypeError(f"no signature of {name} takes {types}: {', '.join(map(str, dispatcher.overloads))}")
    return best.args
