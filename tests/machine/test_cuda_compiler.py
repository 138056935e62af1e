"""Which CUDA compiler is behind the package's kernels: a name in the environment says so, or is refused."""

import importlib.metadata
import importlib.util
import runpy
import sys

import pytest

from bppsa_nb.machine import cuda_compiler


def test_the_name_chooses(monkeypatch):
    monkeypatch.setenv("BPPSA_NB_CUDA", "nvcc")
    names = "'numba-cuda', 'numba-cuda-mlir', 'ptx'"
    with pytest.raises(ValueError, match=f"^BPPSA_NB_CUDA must be one of {names}, got 'nvcc'$"):
        runpy.run_path(cuda_compiler.__file__)
    for name in ("", "numba-cuda"):
        monkeypatch.setenv("BPPSA_NB_CUDA", name)
        assert runpy.run_path(cuda_compiler.__file__)["NAME"] == "numba-cuda"


def test_what_cannot_be_had_is_said(monkeypatch):
    monkeypatch.setenv("BPPSA_NB_CUDA", "numba-cuda-mlir")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"numba-cuda-mlir is missing: `pip install 'bppsa-nb\[gpu,mlir\]'`"):
        runpy.run_path(cuda_compiler.__file__)
    monkeypatch.delitem(sys.modules, "numba_cuda")
    with pytest.raises(ModuleNotFoundError, match=r"`pip install 'bppsa-nb\[gpu\]'` brings it, not for macOS$"):
        cuda_compiler.require()


def test_what_one_toolkit_wrote_is_not_another_ones(monkeypatch):
    names, content = [], cuda_compiler.compiling
    monkeypatch.setattr(content, "kept", lambda make, *values, **how: names.append(content.digest(*values, **how)))
    for version in ("12.9", "99.9", "99.9"):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, version=version: version)
        runpy.run_path(cuda_compiler.__file__)["compile_ptx"](None, ())
    assert names[0] != names[1] == names[2]


@pytest.mark.gpu
@pytest.mark.parametrize("generation", [(7, 5), (9, 0)])
def test_functions_of_a_known_signature_need_no_device(generation):
    cuda, real = cuda_compiler.cuda, cuda_compiler.types.float32

    @cuda.jit(real(real), device=True)
    def twice(x):
        return x + x

    def kernel(x):
        x[cuda.grid(1)] = twice(x[0])

    array = cuda_compiler.types.Array(real, 1, "C")
    text = cuda_compiler.compile_ptx(kernel, (array,), generation)
    assert f".target sm_{generation[0]}{generation[1]}" in text and ".entry" in text
