"""The seam to the compilers of CUDA for Python, numba-cuda and numba-cuda-mlir: which is there, and PTX of a kernel."""

import os
import sys
import warnings
from collections import namedtuple
from contextlib import nullcontext
from functools import cached_property, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

GENERATION = 9, 0  # of the GPU that a compiler is told of where there is none
MISSING = "CUDA kernels need a compiler: `pip install 'numba-cuda[cu12]'` brings one, not for macOS"
OPTIONS = "fastmath", "opt", "launch_bounds"  # of a kernel's, those that make other PTX
# A function that is called with what compiles, and with all that this depends on; it may return what it has kept.
keep = lambda compiled, *what: compiled()  # noqa: E731


class Compiler(namedtuple("Compiler", "package cuda_name inside")):
    """A compiler; `cuda` is the module of that name, and `part` gives one of those that are inside of it."""

    @cached_property
    def cuda(self):
        """The module that programs call `cuda`."""
        return import_module(self.cuda_name)

    @cached_property
    def dispatcher(self):
        """The class of its kernels."""
        return type(self.cuda.jit(lambda: None))

    def part(self, name):
        """Return one of its modules."""
        return import_module(f"{self.inside}.{name}")


ALL = (Compiler("numba_cuda", "numba.cuda", "numba.cuda"),
       Compiler("numba_cuda_mlir", "numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda"))  # fmt: skip
MODULES = {each.cuda_name for each in ALL}  # after whose import a compiler is there


def present():
    """List the compilers that a program has imported, or the first that is installed; there may be none."""
    imported = [each for each in ALL if {each.package, each.cuda_name} <= sys.modules.keys()]
    return imported or [each for each in ALL if find_spec(each.package)][:1]


def of(kernel):
    """Return the compiler of a kernel that a decorator has made."""
    if not (there := present()):
        raise ModuleNotFoundError(MISSING, name=ALL[0].package)
    for each in there:
        if isinstance(kernel, each.dispatcher) and not kernel.targetoptions.get("device"):
            return each
    raise TypeError(f"it is {kernel!r}, and no kernel of {' or '.join(sorted(MODULES))}")


_TEXTS = {}


def ptx_of(compiler, kernel, types):
    """Return the PTX of a kernel for arguments of these types, with the lines of its source."""
    options = {name: value for name in OPTIONS if (value := kernel.targetoptions.get(name)) is not None}
    debug, link = kernel.targetoptions.get("debug"), tuple(kernel.targetoptions.get("link") or ())
    key = kernel.py_func, types, str(options), debug, link
    if link and compiler.package != "numba_cuda":
        raise TypeError(f"{kernel.py_func.__name__} is linked with other files (link=...), which are not read here")

    def compiled():
        compile_ptx = partial(compiler.cuda.compile_ptx, cc=GENERATION, **options)
        if compiler.package == "numba_cuda":
            compile_ptx = partial(_linked, compiler, kernel.targetoptions | {"link": [*link]})
        try:
            return compile_ptx(kernel.py_func, types, lineinfo=not debug)[0]
        except compiler.part("core.errors").NumbaError:
            raise
        except Exception:  # of NVVM, which does not take all that is said of lines
            return compile_ptx(kernel.py_func, types, lineinfo=False)[0]

    if key not in _TEXTS:
        from warpwatch import virtual  # which launches what is compiled here

        with nullcontext() if virtual.current() else virtual.device(), warnings.catch_warnings():
            # Of source that was never in a file: lines are right.
            warnings.filterwarnings("ignore", "Could not find source for function")
            kept = not debug and not link  # what these name may change
            _TEXTS[key] = keep(compiled, kernel.py_func, str(types), GENERATION, options) if kept else compiled()
    return _TEXTS[key]


def _linked(compiler, options, function, types, lineinfo):
    """Return the PTX of a kernel, and of all that it is linked with, as one text."""
    library = compiler.part("dispatcher")._Kernel(function, types, **options | {"lineinfo": lineinfo}).library
    texts, code = [*library.get_asm_strs()], compiler.part("cudadrv.linkable_code").LinkableCode
    for file in sorted(library._linking_files, key=str):
        linked = code.from_path_or_obj(file)
        kind, name, text = type(linked).__name__, file if isinstance(file, str) else linked.name, linked.data
        other = getattr(linked.setup_callback or linked.teardown_callback, "__module__", "numba")[:5] != "numba"
        if kind not in ("CUSource", "PTXSource") or other:
            what = f"{function.__name__} is linked with {name}, {kind}{' with a callback, which gets a module' * other}"
            raise TypeError(f"{what}; CUDA source and PTX are read here")
        if kind == "CUSource":
            try:
                text = compiler.part("cudadrv.nvrtc").compile(text, name, GENERATION, lineinfo=True)[0].code
            except Exception as error:  # of NVRTC
                raise ValueError(f"{name} does not compile: {error}") from error
        texts.append(text if isinstance(text, str) else text.decode())
    return "\n".join(texts).replace("\0", ""), None  # with which NVRTC ends a text


RAISED, FIRST = [], 1 << 20  # class, arguments, function, file and line of what kernels raise; the first one's code


def _return_exception(convention, builder, exc, exc_args=None, loc=None, func_name=None):
    """Let a function return an exception's code, which is like no other function's."""
    where = "", "", 0
    if builder.debug_metadata:
        at = dict(builder.debug_metadata.operands)
        scope = dict(at["scope"].operands)
        file = dict(scope["file"].operands)
        where = scope["name"].rpartition(".")[2], os.path.join(file["directory"], file["filename"]), at["line"]
    RAISED.append((exc or RuntimeError, exc_args or (), *where))
    convention._return_errcode_raw(builder, FIRST + len(RAISED) - 1)


def places(compiler):
    """Return what is exchanged while numba-cuda compiles: exceptions have places, and with debug=True axes ends."""
    if compiler.package != "numba_cuda":
        return {}
    convention, context, cgutils, nvrtc = map(compiler.part, ("core.callconv", "target", "cgutils", "cudadrv.nvrtc"))
    plain, program, driver = cgutils.get_item_pointer, nvrtc.Program, import_module("cuda.bindings.driver")

    def check(context, builder, index, length, axis=None):
        with cgutils.if_unlikely(builder, builder.icmp_unsigned(">=", index, length)):
            context.fndesc.call_conv.return_user_exc(builder, IndexError, (f"index is out of bounds for axis {axis}",))

    def pointer(context, *args, wraparound=False, boundscheck=False):  # of atomic operations, which wrap around
        return plain(context, *args, wraparound=wraparound, boundscheck=wraparound and context.enable_boundscheck)

    debug = property(lambda context: getattr(context.error_model, "raise_on_fp_zero_division", False))
    return {(convention.CUDACallConv, "return_user_exc"): _return_exception, (cgutils, "do_boundscheck"): check,
            (context.CUDATargetContext, "enable_boundscheck"): debug, (cgutils, "get_item_pointer"): pointer,
            # CUDA source is compiled without a word of warnings; `cuda.core` asks if the driver is new enough for that.
            (nvrtc, "Program"): lambda *source, **how: SimpleNamespace(
                compile=lambda kind, logs=None: program(*source, **how).compile(kind)),
            (driver, "cuDriverGetVersion"): lambda: (driver.CUresult.CUDA_SUCCESS, 99000)}  # fmt: skip


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
