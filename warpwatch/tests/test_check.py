"""The command that checks a kernel: its exit status, what it prints, and one line for whatever is wrong."""

from pathlib import Path

import numpy as np
import pytest
from helpers import beside

from warpwatch import cli

check = lambda *arguments: cli.main(["check", *arguments])  # noqa: E731
VECTOR_ADD = Path(__file__).parent / "kernels" / "vector_add.ptx"
REFUSED, KERNELS = beside(__file__).values()
MATRICES = ["a:float32[32,32]", "b:float32[32,32]", "c:float32[32,32]=empty"]
TILES = ["--grid", "2,2", "--block", "16,16", *MATRICES]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Give a folder of kernels, and be in it."""
    monkeypatch.chdir(tmp_path)
    Path("beside.py").write_text("NAME = 'beside'\n")
    Path("good.py").write_text(KERNELS.replace("BARRIER", "cuda.syncthreads()"))
    Path("bad.py").write_text(KERNELS.replace("BARRIER", "pass"))
    Path("raises.py").write_text("raise RuntimeError('on\\nimport')\n")
    Path("leaves.py").write_text("raise SystemExit(0)\n")
    Path("cut.ptx").write_text(VECTOR_ADD.read_text()[:600])
    text = VECTOR_ADD.read_text()
    Path("two.ptx").write_text(text + text[text.index(".visible") :].replace("vector_add", "again"))
    np.save("x.npy", np.arange(3.0))
    Path("packed.npy").write_bytes(b"PK\3\4 an archive")


def test_a_missing_barrier_is_found_from_the_command_line(files, capsys):
    assert check("good.py:matmul", *TILES) == 0 and "matmul: nothing found" in capsys.readouterr().out
    assert check("bad.py:matmul", *TILES) == 1
    said = capsys.readouterr().out
    line = next(n for n, text in enumerate(KERNELS.splitlines(), 1) if "# fault" in text)
    assert f"race: matmul, bad.py, line {line}: thread (0, 0)" in said and f"reads in line {line + 4}" in said


def test_files_beside_the_kernel_are_imported_and_arrays_of_files_are_read(files, capsys):
    assert check("good.py:show", "--grid", "1", "--block", "1", "x=x.npy", "n:int8=7", "out:int32[1]") == 0
    out = capsys.readouterr().out
    assert "imported beside" in out and "kernel 0.000000 7" in out and "show: nothing found" in out


def test_ptx_knows_arrays_by_the_names_that_came(files, capsys):
    arrays = ["--grid", "1", "--block", "40", "left:float32[40]", "right:float32[32]", "sum:float32[40]=0", "n=40"]
    assert check(str(VECTOR_ADD), *arrays) == 1
    assert "reads right[32]" in capsys.readouterr().out


@pytest.mark.parametrize("call, said", REFUSED)
def test_what_is_wrong_is_said_in_a_line(files, capsys, call, said):
    name, *more = call.split()
    assert check(name, "--grid", "1", "--block", "1", *more) == 2
    out, err = capsys.readouterr()
    assert err.startswith("warpwatch check: ") and err.count("\n") == 1 and said in err


def test_wrong_options_exit_with_2(capsys):
    with pytest.raises(SystemExit, match="2"):
        check("k.ptx", "--grid", "x", "--block", "1", "a=1")
    assert "--grid: invalid size value: 'x'" in capsys.readouterr().err
