import ast
import inspect
import tomllib
import warnings
from pathlib import Path

import pytest
from packaging.version import Version

from bppsa_nb.machine.deprecation import deprecated

REPO = Path(__file__).parents[2]
VERSION = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def overdue(source, version):
    """Return what a module's source marks as deprecated, and should no longer have in a version."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for mark in getattr(node, "decorator_list", []):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).split(".")[-1] == "deprecated":
                said = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
                assert Version(said["since"]) < Version(said["removed"]), node.name
                if Version(said["removed"]) <= Version(version):
                    found.append(node.name)
    return found


def test_what_is_deprecated_is_gone_in_the_version_that_it_names():
    modules = [path.read_text(encoding="utf-8") for path in (REPO / "bppsa_nb").rglob("*.py")]
    assert [name for source in modules for name in overdue(source, VERSION)] == []


def test_what_has_outlived_its_version_is_found():
    source = '@deprecated(since="0.2.0", removed="0.10.0", instead="new")\ndef old():\n    pass\n'
    source += f"class Kept:\n    {source.replace('old', 'method').replace(chr(10), chr(10) + '    ')}"
    source = source.replace("@deprecated", "@deprecation.deprecated", 1)
    assert overdue(source, "0.9.1") == []
    assert overdue(source, "0.10.0") == overdue(source, "1.0") == ["old", "method"]


@deprecated(since="0.2.0", removed="0.4.0", instead="`backprop`")
def old(x, *, times=2):
    """Multiply a number.

    It may be any number.
    """
    return times * x


class Model:
    @deprecated(since="0.2.0", removed="0.4.0", instead="`Model.forward`")
    def run(self):
        return self


def test_it_works_as_before_and_warns_at_the_line_that_calls_it():
    with pytest.warns(DeprecationWarning) as found:
        line, result = inspect.currentframe().f_lineno, old(3, times=5)
    (warning,) = found
    assert (warning.filename, warning.lineno, result) == (__file__, line, 15)
    assert str(warning.message) == "old is deprecated since version 0.2.0, and will be removed in 0.4.0: use `backprop`"
    model = Model()
    with pytest.warns(DeprecationWarning, match=r"^Model\.run is deprecated .* use `Model\.forward`$"):
        assert model.run() is model
    assert inspect.signature(old) == inspect.signature(old.__wrapped__) and old.__name__ == "old"


def test_only_who_calls_it_by_a_line_of_their_own_sees_the_warning():
    """Python's own filters: shown in `__main__`, which a notebook's cells and programs are; ignored in modules."""
    for module, seen in (("__main__", 1), ("some_library", 0)):
        with warnings.catch_warnings(record=True) as found:
            warnings.resetwarnings()
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
            exec("old(1)", {"__name__": module, "old": old})
        assert len(found) == seen


def test_its_documentation_says_so_where_numpydoc_looks():
    assert old.__doc__.splitlines() == [
        *("Multiply a number.", ""),
        *(".. deprecated:: 0.2.0", "   Will be removed in 0.4.0: use `backprop`.", "", "It may be any number."),
    ]
    assert Model.run.__doc__.startswith(".. deprecated:: 0.2.0")


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="a function or a method can be deprecated, got <class '.*Model'>"):
        deprecated(since="0.2.0", removed="0.4.0", instead="x")(Model)
