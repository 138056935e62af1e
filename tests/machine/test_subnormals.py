"""Subnormal numbers pass for zero where compiled code says so, and nowhere else."""

import threading

import numpy as np
import pytest
from llvmlite import binding, ir
from numba import njit
from texts import beside

import bppsa_nb as bp
from bppsa_nb.machine import intrinsics
from bppsa_nb.machine.intrinsics import flush, restore

each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
here = pytest.mark.skipif(intrinsics._KIND is None, reason="this processor has no such state that is known")


@njit(nogil=True)
def scale(numbers, factor, out):
    before = flush()
    for i in range(numbers.size):
        out[i] = numbers[i] * numbers.dtype.type(factor)
    restore(before)


@njit(nogil=True)
def multiply(rows, matrix, out):
    before = flush()
    np.dot(rows, matrix, out)
    restore(before)


def assert_not_flushed(dtype):
    tiny = np.array([np.finfo(dtype).tiny])
    assert (tiny * dtype(0.5))[0] == np.finfo(dtype).tiny / 2 > 0


@here
@each_dtype
def test_what_is_subnormal_is_zero_and_nothing_else(dtype):
    info = np.finfo(dtype)
    numbers = np.array([0.0, 1.0, -3.0, 2 * info.tiny, -2 * info.tiny, info.max, np.inf, -np.inf, np.nan], dtype)
    out = np.empty_like(numbers)
    scale(numbers, 0.5, out)
    np.testing.assert_array_equal(out, numbers / 2)
    for factor, number in ((0.5, info.tiny), (2.0, info.tiny / 2)):  # small results, and small operands
        out[:] = 1
        scale(np.full(9, number, dtype), factor, out)
        assert not out.any()
    out = np.ones((16, 16), dtype)
    multiply(np.full((16, 16), info.tiny, dtype), np.eye(16, dtype=dtype) / 2, out)  # by BLAS
    assert not out.any()
    assert_not_flushed(dtype)


@here
def test_other_threads_do_not_notice():
    out, seen = np.ones(1, np.float32), []
    scale(np.full(1, np.finfo(np.float32).tiny, np.float32), 0.5, out)

    def work():
        assert_not_flushed(np.float32)
        numbers = np.full(2**20, np.finfo(np.float32).tiny, np.float32)
        scale(numbers, 0.5, numbers)
        assert_not_flushed(np.float32)
        seen.append(numbers.any())

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        assert_not_flushed(np.float32)
    thread.join()
    assert seen == [False]


@pytest.mark.parametrize("kind, triple, instructions", beside(__file__)["processors"])
def test_machine_code(kind, triple, instructions, monkeypatch):
    """The instructions of both kinds of processors, whichever this one is."""
    monkeypatch.setattr(intrinsics, "_KIND", kind)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    intrinsics._write(builder, builder.or_(intrinsics._read(builder), ir.IntType(64)(intrinsics._FLUSHED[kind])))
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    code = binding.Target.from_triple(triple).create_target_machine().emit_assembly(binding.parse_assembly(str(module)))
    assert all(instruction in code for instruction in instructions), code


def test_other_processors_flush_nothing(monkeypatch):
    monkeypatch.setattr(intrinsics, "_KIND", None)

    @njit
    def halved(x):
        before = flush()
        x = x / 2
        restore(before)
        return x

    assert halved(np.finfo(np.float64).tiny) > 0


@here
@pytest.mark.parametrize("which", ["weights", "slopes", "carry", "grad_output"])
def test_what_structured_chains_count_as_zero(which):
    """As `backprop` says: on backend "cpu" whatever is subnormal, however large what it is multiplied by."""
    parts = {"weights": np.ones((1, 1, 1)), "slopes": np.ones((1, 1, 1, 1)), "carry": np.ones((1, 1, 1))}
    parts |= {"grad_output": np.ones((1, 1))}
    parts = {name: part.astype(np.float32) for name, part in parts.items()}
    parts[which][...], others = np.float32(1e-40), {"carry"} if which != "carry" else {"weights", "slopes"}
    for name in others:
        parts[name][...] = 0  # the other one of the two sums
    parts["grad_output" if which != "grad_output" else "weights"][...] = 1e20
    gradient = parts.pop("grad_output")
    chain = bp.StructuredChain(**parts)
    by_backend = {backend: bp.backprop(chain, gradient, backend=backend)[0, 0, 0] for backend in ("numpy", "cpu")}
    assert by_backend["numpy"] == pytest.approx(1e-20, rel=1e-4) and by_backend["cpu"] == 0
