"""What is read in machine code, of kernels whose code is known."""

import pytest
from rings import more

from bppsa_nb.papers.bppsa import machine_code

pytest.importorskip("cuda.core", reason="needs the gpu extra")


def read(generation="sm_90", **options):
    from bppsa_nb.machine.cuda_compiler import cuda, types

    @cuda.jit
    def kernel(x, out):
        total = x.dtype.type(0)
        for t in range(x.shape[0]):
            cuda.syncthreads()
            total = total * x[t] + x[t]
        out[0] = total

    array = types.Array(types.float32, 1, "C")
    return machine_code.compiled(kernel, (array, array), generation, **options)


@pytest.mark.parametrize("generation", [more("sm_75"), more("sm_80"), "sm_90"])
def test_a_loop_of_one_step(generation):
    code = read(generation)
    assert read(generation, lineinfo=True) == code
    assert 8 <= code.registers <= 64 and code.local == 0
    longest = code.part(code.loops[0])
    count = longest.names.count
    assert len(code.loops[0]) == longest.instructions < code.whole.instructions
    assert count("BAR") == count("FFMA") == longest.products >= 1  # one each per step, however many of them it unrolled
    assert count("LDG") == count("FFMA") and longest.waits >= 1
    assert longest.instructions < longest.cycles < 20 * longest.instructions


def test_without_a_disassembler(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="nvdisasm"):
        machine_code._disassemble(b"")
