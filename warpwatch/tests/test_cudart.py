"""Whole CUDA programs, host code too: what they print, return and do wrong, and what is said where they cannot run."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import beside, more
from test_readme import go

from warpwatch import cudart

FAULTS, RARER, FILES, PLAIN = beside(__file__).values()
PROGRAMS = Path(__file__).parent / "programs"
LINES = (PROGRAMS / "faults.cu").read_text(encoding="utf-8").splitlines()
MARKS = {line.partition("  // ")[2]: n for n, line in enumerate(LINES, 1) if "  // " in line}
OPTIONS = cudart.OPTIONS.partition("nvcc ")[2].split()
needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
needs_nvcc = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("nvcc")), reason="needs nvcc")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Give a function that compiles a program, once, and returns its path."""
    folder = tmp_path_factory.mktemp("programs")

    @cache
    def compiling(name, *options):
        path = folder / f"{name}-{len(options)}"
        command = ["nvcc", "-Xlinker", "-zlazy", *(options or OPTIONS), PROGRAMS / f"{name}.cu", "-o", path]
        subprocess.run(command, check=True, capture_output=True)
        return str(path)

    return compiling


@needs_nvcc
@pytest.mark.parametrize("shell", [False, more(True)])
def test_a_program_that_is_right_does_all_that_it_does_on_a_gpu(compiled, tmp_path, shell):
    command = ["bash", "-c", f"{compiled('clean')} x"] if shell else [compiled("clean"), "x"]
    status, said = go(tmp_path, "warpwatch", "run", *command, PYTHONUNBUFFERED="")
    printed = "host 2\nkernel: prints 2\nhost 3\nkernel: prints 3\nhost 4, 2 arguments\n"
    assert status == 7 and said.startswith(printed), said
    assert "launches: 12; kernels: 4, of which faulty: 0" in said, said


@needs_nvcc
@pytest.mark.parametrize("fault, wanted, text", [*FAULTS, *(more(*each) for each in RARER)])
def test_each_fault_is_told(compiled, tmp_path, fault, wanted, text):
    status, said = go(tmp_path, "warpwatch", "run", compiled("faults"), fault)
    assert status == wanted and text.format(**MARKS) in said, said
    assert wanted != 1 or said.count("(in 1 of them)") == 1, said  # and nothing else


@needs_nvcc
def test_rules_of_pyproject_leave_out_what_programs_do(compiled, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.warpwatch]\nignore = ["shift: race", "cudaFree"]\n')
    for fault, kernel in (("race", "shift "), ("freed twice", "cudaFree")):
        status, said = go(tmp_path, "warpwatch", "run", compiled("faults"), fault)
        assert status == 0 and f"{kernel}         1  nothing, 1 left out by `ignore`" in said, said


@needs_nvcc
@pytest.mark.parametrize("options, text", [(OPTIONS[:1], "has the CUDA runtime in it"), (OPTIONS[:3], "has no PTX as")])
def test_a_program_that_was_compiled_otherwise_is_refused(compiled, tmp_path, options, text):
    status, said = go(tmp_path, "warpwatch", "run", compiled("faults", *options), "race")
    assert status == 2 and text in said and f"; {cudart.OPTIONS}\n" in said, said


@pytest.mark.parametrize("data, text", FILES)
def test_what_a_program_lacks_is_said_before_it_runs(tmp_path, monkeypatch, data, text):
    (tmp_path / "program").write_text(data)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="program " + text):
        cudart.prepare([str(tmp_path / "program")], SimpleNamespace(path=tmp_path / "launches"))


def test_the_readme_names_the_options():
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"\n{cudart.OPTIONS.removeprefix('compile it with ')} reverse.cu -o reverse\n" in text


@needs_cc
@pytest.mark.parametrize("name", [cudart.NAMES[0], *map(more, cudart.NAMES[1:])])
def test_the_stand_in_has_the_name_and_the_structures_of_a_version(tmp_path, name):
    (tmp_path / "plain.c").write_text(PLAIN)
    cudart.build(tmp_path, name)
    subprocess.run(["cc", "plain.c", "-o", "plain", f"./{name}"], check=True, cwd=tmp_path)
    (tmp_path / name).unlink()
    status, said = go(tmp_path, "warpwatch", "run", "./plain")
    assert status == 0 and said.startswith(f"{name.split('.')[2]}000 4 65536 0\n"), said
