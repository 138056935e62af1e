"""Compiled code is found again as long as nothing that it depends on has changed; CUDA's and the CPU's."""

import importlib
import os
import pkgutil
import subprocess
import sys
from inspect import signature
from types import FunctionType

import pytest
from numba.core.dispatcher import Dispatcher
from texts import beside

import bppsa_nb
from bppsa_nb.machine import compiling, items

CHANGED, SOURCE, PROGRAM, ONE, TWO = beside(__file__).values()


def digest(source, **how):
    names = {}
    exec(compile(source, "a file.py", "exec"), names)
    return compiling.digest(names["kernel"], **how)


def test_what_has_not_changed_is_found():
    assert digest(SOURCE) == digest(SOURCE) == digest(SOURCE.replace("def half", "# of nothing\ndef half"))
    assert digest(SOURCE) == digest(SOURCE.replace("other.unused = 7, 8", "other.unused = 7, 9"))


@pytest.mark.parametrize(("old", "new"), CHANGED)
def test_what_has_changed_is_seen(old, new):
    assert SOURCE.count(old) == 1 and digest(SOURCE) != digest(SOURCE.replace(old, new))


def test_another_line_in_the_report_is_seen_where_lines_count():
    moved = SOURCE.replace("    x[0] = ", "\n        x[0] = ")
    assert digest(SOURCE) == digest(moved) and digest(SOURCE, with_lines=True) != digest(moved, with_lines=True)


@pytest.mark.parametrize("value", ["{1: object()}", "__import__('re').compile('a')", "iter([])", "object()"])
def test_what_cannot_be_told_is_unknown(value):
    with pytest.raises(compiling.Unknown):
        digest(SOURCE.replace("SCALE = 2", f"SCALE = {value}"))


def test_functions_that_call_themselves_come_to_an_end():
    assert digest(SOURCE.replace("return x / by", "return half(x) if x > 1 else x"))


def test_a_digest_counts_its_parts_and_versions(monkeypatch):
    one = compiling.digest("a", ("float32",))
    assert one == compiling.digest("a", ("float32",)) != compiling.digest("a", ("float64",))
    monkeypatch.setattr(compiling, "_VERSIONS", ("3.99", *compiling._VERSIONS[1:]))
    assert one != compiling.digest("a", ("float32",))


def test_a_text_is_made_once_and_kept_for_some_time_and_no_folder_stops_nothing(tmp_path, monkeypatch):
    def times(folder):
        made = []
        monkeypatch.setenv("BPPSA_NB_CACHE", str(folder))
        assert compiling.kept(lambda: made.append(1) or "text", "name") == "text"
        return len(made)

    assert [times(tmp_path / "a"), times(tmp_path / "a"), times(tmp_path / "b")] == [1, 0, 1]
    old, new = tmp_path / "a" / "compiled" / "old", tmp_path / "a" / "compiled" / compiling.digest("name")
    old.write_text("")
    os.utime(old, (1e9, 1e9))
    new.unlink()
    assert times(tmp_path / "a") == 1 and new.exists() and not old.exists()
    (tmp_path / "file").write_text("")
    assert [times(tmp_path / "file"), times(tmp_path / "file")] == [1, 1]


def test_of_all_compiled_functions_it_can_be_told_what_they_depend_on():
    names = [each.name for each in pkgutil.walk_packages(bppsa_nb.__path__, "bppsa_nb.") if each.name.endswith("_cpu")]
    modules = map(importlib.import_module, names)
    values = {id(value): value for module in modules for value in vars(module).values()}.values()
    kept = [value for value in values if isinstance(value, Dispatcher) and isinstance(value._cache, compiling._Cache)]
    plain = [value for value in values if isinstance(value, FunctionType)]
    bodies = [items._loop(value) for value in plain if [*signature(value).parameters][-2:] == ["first", "last"]]
    kept += bodies
    assert len(bodies) == 5 and len(kept) > 30 and len({compiling.digest(value.py_func) for value in kept}) == len(kept)


def test_an_edit_of_another_module_is_seen_by_the_next_process_and_a_moved_folder_is_the_same(tmp_path):
    """Numba's own rule looks at the time of the file that the function stands in."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(two, folder):
        folder.mkdir(exist_ok=True)
        (folder / "one.py").write_text(ONE)
        (folder / "two.py").write_text(two)
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().split()

    first = tmp_path / "first"
    assert run(TWO, first)[:2] == ["3.0", "run"] and run(TWO, first) == ["3.0"]
    assert run(TWO.replace("2 * x", "3 * x"), first)[:2] == ["4.0", "run"]
    assert run(TWO.replace("MORE = 1", "MORE = 5"), first)[:2] == ["7.0", "run"]
    moved = first.rename(tmp_path / "moved")
    assert run(f"# moved\n{TWO}", moved) == ["3.0"]
