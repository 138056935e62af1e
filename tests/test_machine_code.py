"""The CUDA kernels as machine code, for three generations of GPUs: nothing spilled, and time steps within a budget.

Two of their four gates; `test_cuda.py` has the others. A kernel is compiled in two steps: Numba writes PTX, for the
oldest generation and those after it, and NVIDIA's linker makes machine code of it for one of them. On a GPU, Numba
writes PTX for that very generation: `make test-full` does so for each, and asks numba-cuda-mlir for the same.
"""

import math
import os
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
from rings import large, more

import bppsa_nb as bp
from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.lstm import LSTM
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.chains import plan
from bppsa_nb.machine import compiling, cuda_compiler
from bppsa_nb.machine.cuda import REGISTERS
from bppsa_nb.papers.bppsa import machine_code
from warpwatch.lanes import program_of

OLDEST, WIDEST = "sm_75", None
REALS = ["float32", "float64"]
MLIR = cuda_compiler.NAME == "numba-cuda-mlir"


def kernels(real, sizes):
    """Yield every kernel of the package, with the signatures that it is compiled for where numbers are of a dtype.

    Time loops that are made for one H come for some `sizes`; `WIDEST` is as wide as weights stay in registers.
    """
    from bppsa_nb.cells import cell_cuda
    from bppsa_nb.cells import chunked_cuda as chunked
    from bppsa_nb.cells import layer_cuda as cells
    from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
    from bppsa_nb.chains import levels_cuda as scan
    from bppsa_nb.chains import methods_cuda as structured
    from bppsa_nb.chains import multiply_cuda as multiply
    from bppsa_nb.machine import arrays_cuda
    from bppsa_nb.machine.items_cuda import kernel_of
    from bppsa_nb.networks import residual_steps_cuda as multigrid
    from bppsa_nb.operands import products_cpu as sparse
    from bppsa_nb.operands import products_cuda as sparse_cuda
    from bppsa_nb.training import kernels_cuda as training

    types, of_models = cuda_compiler.types, [RNN.cell, GRU.cell, LSTM.cell]
    number_of, real = getattr(np, real), getattr(types, real)
    most = 32 * REGISTERS // real.bitwidth
    a1, a2, a3, a4, a5 = (types.Array(real, ndim, "C") for ndim in (1, 2, 3, 4, 5))
    lost, exps, i3 = (types.Array(types.int32, ndim, "C") for ndim in (1, 2, 3))
    number, flag = types.int64, types.boolean
    diagonals, chunks = (a2, a4, a3, flag), (number, number, real, number, a3, a3, a3, a3, lost)
    links = (a4, flag, *diagonals)
    for size in (most if size is WIDEST else size for size in sizes):
        yield scan.prepare_of(min(size, 108), number_of), (a4, a4, exps, lost)
        for level in (scan.up_level_of, scan.across_blocks_of, scan.down_level_of):
            yield level(min(size, 108), number_of), (a4, exps, a3, flag, number, lost)
        for count in (1, 3):
            for held, rows in ((True, min(size, 108, most // count)), (False, min(size, 108))):
                made = structured.prepare_of(rows, count, count == 3, held, number_of)
                yield made, (a2, a4, a3, a4, exps, lost)
        for cell in of_models:
            steps = cell_cuda.steps_of(cell, size, number_of), cell.states
            yield cells.run_forward_of(*steps), (a3, a2, a1, a4, a4)
            yield chunked.run_chunks_of(*steps), (a3, a2, a1, a4, a4, *chunks)
        for count, keep in ((1, True), (3, False)):
            sweep = structured.sweep_chunks_of(min(size, most // count), count, count == 3, keep, number_of)
            yield sweep, (a2, a4, a3, number, number, a3, a3)
        for count in (1, 3):
            teams = ((H, multiply.team_of(H, count * H, np.dtype(number_of))) for H in range(1, size + 1))
            H, team = max(pair for pair in teams if pair[1])
            made = multiply.multiply_chunks_of(H, count, count == 3, team, number_of)
            yield made, (a1, a1, a1, number, number, a4, i3, lost)
        yield multiply.multiply_stored_of(min(size, most // 2), number_of), (a4, number, number, a4, i3, lost)
        for affine in (True, False) if WIDEST in sizes else (True,):
            yield structured.across_chunks_of(size, affine, number_of), (a1, i3, a3, a3, lost)
    yield structured.sweep_chunks, (*links, number, number, a3, a3, flag)
    yield multiply.multiply_chunks, (*links, number, number, number, a4, i3, lost)
    yield structured.across_chunks, (a4, i3, a3, flag, a3, lost)
    yield cells.input_products, (a2, a2, a1, a2)
    yield cells.transpose, (a2, a2)
    for cell in of_models:
        steps = cell_cuda.any_steps_of(cell, number_of), cell.states
        yield cells.run_forward_of(*steps), (a3, a2, a1, a4, a4)
        yield chunked.run_chunks_of(*steps), (a3, a2, a1, a4, a4, *chunks)
        for state in range(cell.states):
            yield cell_cuda.derive_of(cell, state, number_of), (a1, a1, number, number, a1, a1)
        yield cell_cuda.preact_gradients_of(cell, number_of), (a1, a1, a1, number, number, a1)
    yield structured._join_weights, (a3, a3)
    yield structured._join_diagonals, (a1, a1, a1, a1, number, number)
    yield weight_gradients.outer_products_of(5, 3, number_of), (a1, a1, a1, number, number, a3)
    yield weight_gradients.sum_parts, (a3, number, number, number, a2, a2, a1, a1)
    yield cells.input_gradients_kernel, (a3, number, number, a2, a2)
    yield arrays_cuda._fill, (a1, real)
    yield arrays_cuda._copy, (a1, a1)
    yield arrays_cuda._add, (a1, a1)
    yield arrays_cuda._put_rows, (a2, a2)
    yield arrays_cuda._find_lost, (a1, lost)
    doubles = types.Array(types.float64, 1, "C")
    yield training.cross_entropy, (a2, a1, doubles, a1, lost)
    yield training.flag_overflow, (a1, a1, lost, lost)
    for optimizer, averages in ((bp.Adam(), 2), (bp.SGD(0.1, 0.9), 1), (bp.SGD(0.1), 0)):
        yield training.update_of(optimizer.rule_of(math.sqrt), averages), (a1, a1, a1, a1, a1, a1)
    columns = types.Array(types.int32, 1, "C")
    for index in (types.Array(whole, 1, "C") for whole in (types.int32, types.int64)):
        yield sparse_cuda.sums, (index, columns, a2, index, columns, a2, number, number, index, columns, a2)
        yield kernel_of(sparse.scale_rows), (index, columns, a2, index, a2, index, a2, number, number)
        yield kernel_of(sparse.apply_rows), (index, columns, a2, a2, a2, number, number)
    yield kernel_of(sparse.scale_columns), (columns, a2, a2, a2, number, number)
    kind = types.int32 if real == types.float32 else types.int64
    bits, found = (types.Array(kind, ndim, "C") for ndim in (2, 3))
    yield kernel_of(sparse.find_sizes), (bits, kind, kind, found, found, number, number)
    yield kernel_of(sparse.scale_values), (a2, a1, a2, number, number)
    whole = types.Array(types.int64, 1, "C")
    yield multigrid.sweep_layers, (a5, a5, flag, a5, whole, whole, a1, a5, a1, a5, number)
    yield multigrid.add_up_gradients, (a5, a5, a5, real, a5, a2)
    yield multigrid.copy_points, (a2, a2, whole, flag)
    yield multigrid.subtract, (a1, a1, a1)
    yield multigrid.square_sums, (a2, a1, a1)


def verdict_of(ptx, generation):
    return machine_code.link(ptx, generation)[1]


def check(real, compiled_for, linked_for, sizes=(20,), **options):
    pytest.importorskip("cuda.core", reason="needs the gpu extra")
    from cuda.bindings import nvjitlink

    cc, version = (int(compiled_for[3]), int(compiled_for[4])), nvjitlink.version()
    found = [(k, cuda_compiler.compile_ptx(k.py_func, types, cc, **options)) for k, types in kernels(real, sizes)]
    assert len({(kernel.py_func.__module__, kernel.py_func.__name__) for kernel, _ in found}) == 39
    for kernel, text in found:
        assert program_of(text).functions  # every instruction is one that `ptx` knows
        if real == "float32" and kernel.py_func.__name__ != "cross_entropy":  # whose loss is in double precision
            assert ".f64" not in text, kernel  # single precision stays single
        # Each alone: two kernels made by one function have one name, if numba-cuda-mlir gave it.
        verdict = compiling.kept(partial(verdict_of, text, linked_for), "verdict", text, linked_for, version)
        ((name, memory),) = re.findall(r"ptxas info *: Function properties for (\S+)\n(.*)", verdict)
        assert memory.split()[2:] == "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads".split(), name


def test_every_kernel_compiles_for_one_target_without_spills():
    """At the size, for the target and with the options with which other tests run it, so that they find it compiled."""
    check("float32", "sm_90", "sm_90", sizes=(3,), lineinfo=True, fastmath=False, opt=True)


@pytest.mark.outer
@pytest.mark.parametrize("generation", [OLDEST, "sm_80", "sm_90"])
@pytest.mark.parametrize("real", ["float32", large("float64")])
def test_every_kernel_compiles_without_spills(real, generation):
    check(real, OLDEST, generation)


@pytest.mark.full
@pytest.mark.parametrize("generation", ["sm_80", "sm_90"])
@pytest.mark.parametrize("real", REALS)
def test_every_kernel_compiles_without_spills_from_ptx_of_its_own(real, generation):
    # At H = 128, numba-cuda-mlir's products of stored Jacobians have more numbers than it keeps in registers.
    check(real, generation, generation, sizes=(20,) if MLIR else (20, WIDEST))


# The most instructions of a step, at the papers' size, by the toolkits 12.9, 13.0 and 13.5; `machine_code.step_of` says
# what that is.
BUDGETS = {"RNN forward": 78, "GRU forward": 148, "LSTM forward": 205, "RNN forward, chunks": 78}
BUDGETS |= {"GRU forward, chunks": 148, "RNN sweep": 80, "GRU sweep": 155, "RNN products": 175, "GRU products": 260}
BUDGETS |= {"dense products": 1230, "across chunks": 305, "up-sweep": 3, "down-sweep": 14, "weight gradients": 2}
BUDGETS |= {"RNN assembly": 26, "GRU assembly": 78, "sparse products": 55}
if MLIR:
    BUDGETS |= {"across chunks": 420, "RNN assembly": 40, "GRU assembly": 110, "RNN products": 240, "GRU products": 310}
INNER = "RNN forward", "GRU sweep"


@pytest.mark.parametrize("name", [name if name in INNER else more(name) for name in machine_code.kernels()])
def test_hot_kernels_keep_to_their_budget(name):
    pytest.importorskip("cuda.core", reason="needs the gpu extra")
    found = machine_code.read(name)
    assert found.spilled == 0 and found.instructions <= BUDGETS[name]
    if name.endswith("products") and name != "sparse products":
        assert found.products >= found.instructions / 3
    if machine_code.step_of(name) == "a time step":  # and not several: the loop may be unrolled
        assert found.products // 20 == {"GRU sweep": 3, "LSTM forward": 2}.get(name, 1)


@pytest.mark.parametrize(("name", "weights"), [("RNN sweep", 1), more("GRU sweep", 3)])
def test_prices_of_steps_on_a_gpu_follow_from_machine_code(name, weights):
    pytest.importorskip("cuda.core", reason="needs the gpu extra")
    dtype = np.dtype(np.float32)
    long, short = (plan.known(T, 1, 20, dtype, "cuda", weights).seconds["linear"] for T in (2000, 1000))
    assert machine_code.read(name).seconds == pytest.approx((long - short) / 1000, rel=0.3)


@pytest.mark.full
@pytest.mark.skipif(MLIR or find_spec("numba_cuda_mlir") is None, reason="needs the mlir extra, and is what runs it")
def test_numba_cuda_mlir_passes_the_same_gates():
    """A compiler is chosen before kernels are imported, so the other one has a process of its own."""
    environment = os.environ | {"BPPSA_NB_CUDA": "numba-cuda-mlir", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "full or not full", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
