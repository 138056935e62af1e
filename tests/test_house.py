"""The house: fourteen rooms, imports that go one way, modules and functions that fit on a few screens."""

import ast
import re
from collections import namedtuple
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1] / "bppsa_nb"
WATCH = HOUSE.parent / "warpwatch"
ROOMS = [
    *("machine", "scan", "operands", "chains", "cells", "networks", "schedule", "multigrid", "training"),
    *("puzzles", "distributed", "papers"),
]
BELOW = {room: set(ROOMS[: i + 1]) for i, room in enumerate(ROOMS)}
BELOW |= {"scan": {"scan"}, "graphs": {"graphs", "machine", "scan", "cells"}}
BELOW["papers"] |= {"graphs"}
BELOW["torch"] = BELOW["training"] | {"torch"}
# The public names: whoever stands above all they name may use them.
FACADES = {"bppsa_nb", "bppsa_nb.sparse", "bppsa_nb.torch"}
UP = [("bppsa_nb.machine.process", "bppsa_nb.distributed")]  # for comm=, and nothing else
# Lines of Python. They only go down: what adds lines takes others out.
LINES = {"library": 25_632, "papers": 11_300, "tests": 26_800, "warpwatch": 4_300, "warpwatch's tests": 3_400}
PARAMETERS = 8
# What has more: public calls, whose options are keywords; kernels, which a GPU is handed array by array.
MANY_PARAMETERS = {
    *("cells.recurrent.forward", "schedule.draw.timeline", "training.trainer.__init__"),
    *("multigrid.model.__init__", "multigrid.solver.solve", "multigrid.solver.solve_adjoint"),
    *("cells.chunked_cuda.run_chunks", "cells.cell_cuda.unit", "cells.cell_cuda.step"),
    *("cells.cell_cpu.step", "cells.cell_cpu.back"),
    *("chains.kernels_cuda.step", "chains.kernels_cuda.sweep_chunks"),
    *("chains.multiply_cuda._kept_of_step", "chains.multiply_cuda.multiply_chunks", "chains.multiply_cuda.settle"),
    *("networks.residual_steps_cuda.sweep_layers", "operands.products_cpu.scale_rows"),
    "operands.products_cuda.sums",
}
# Private attributes of other objects that are reached: a class's own constructors, and what other libraries do not
# make public.
PRIVATE = {
    *(("chains.chain", "_fix"), ("operands.pattern", "_hold")),
    ("papers.ranks.engines", "_exit"),
    *(("machine.compiling", "_overload_func"), ("machine.compiling", "_jit_options"), ("machine.compiling", "_cache")),
    *(("machine.intrinsics", "_getvalue"), ("papers.stepper", "_repr_mimebundle_")),
    *(("torch.layers", name) for name in ("_C", "_current_level", "_len_torch_dispatch_stack", "_functorch")),
    ("torch.layers", "_DisableFuncTorch"),
    *(("torch.solve", name) for name in ("_C", "_are_functorch_transforms_active", "_functorch")),
}


def _name(path):
    return ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in sorted(HOUSE.rglob("*.py"))}


def room(name):
    return name.split(".")[1] if "." in name else ""


@pytest.fixture(scope="module")
def trees():
    """What the modules are made of; not kept, for the collector of garbage would walk through it all day."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


@pytest.fixture(scope="module")
def imports(trees):
    """What imports what, in functions too: pairs of modules."""
    pairs = set()
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                pairs |= {(name, alias.name) for alias in node.names if alias.name in MODULES}
            elif isinstance(node, ast.ImportFrom) and (node.module or "") in MODULES:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                pairs |= {(name, each if each in MODULES else node.module) for each in inner}
    return sorted(pairs)


def test_there_are_fourteen_rooms():
    assert {room(name) for name in MODULES} - {"", "sparse", "torch"} == {*ROOMS, "graphs"}
    assert len({*ROOMS, "graphs"}) == 13  # and what PyTorch needs


def test_imports_go_down(imports):
    programs = ".__main__"  # stand above all rooms
    up = [
        (one, other)
        for one, other in imports
        if not one.endswith(programs)
        and one not in FACADES
        and other not in FACADES
        and room(other) not in BELOW[room(one)]
    ]
    assert up == []


def called(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def test_what_is_imported_by_name_is_known(trees):
    """Names made at run time: twins, in the same room; public names; experiments; and what runs over ranks."""
    calls = {}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node).endswith(("import_module", "__import__")):
                calls.setdefault(name, []).append(ast.unparse(node.args[0]))
    assert calls.pop("bppsa_nb.machine.process") == ["f'bppsa_nb.distributed.{module}'"] and len(UP) == 1
    assert set(calls) <= {"bppsa_nb.machine.dispatch", "bppsa_nb.papers.experiments"}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) == "implementation":
                named = node.args[0].value if isinstance(node.args[0], ast.Constant) else name
                assert name in FACADES or room(named) in BELOW[room(name)], name


def test_the_facades_are_used_from_above(imports):
    """What the public names stand for is no secret to those below them."""
    for one, other in imports:
        if other in FACADES and one not in FACADES and not one.endswith("__main__"):
            assert room(one) == "papers" or one in ("bppsa_nb.papers.ranks.engines", "bppsa_nb.machine.backends"), one


def test_there_are_no_circles(imports):
    waiting = {name: {other for one, other in imports if one == name} - {name} - FACADES for name in MODULES}
    while free := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert sorted(waiting) == []


def test_one_module_names_the_cuda_compiler():
    """Kernels and launchers run on whichever is behind it; what learners write names numba-cuda."""
    named = re.compile(r"numba[._]cuda|from numba import [\w\s,(]*\bcuda\b")
    found = [name for name, path in MODULES.items() if named.search(path.read_text(encoding="utf-8"))]
    assert found == ["bppsa_nb.machine.cuda_compiler"]


def test_no_experiment_imports_an_experiment(trees, imports):
    def is_experiment(name):
        functions = {node.name for node in trees[name].body if isinstance(node, ast.FunctionDef)}
        return name.startswith("bppsa_nb.papers.") and {"measure", "plot"} <= functions

    assert [pair for pair in imports if all(map(is_experiment, pair))] == []


def test_the_scan_is_read_in_one_sitting(trees):
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in (HOUSE / "scan").glob("*.py")]
    assert sum(lines) <= 450
    outside = {
        node.module.split(".")[0]
        for name, tree in trees.items()
        if room(name) == "scan"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert outside <= {"bppsa_nb", "dataclasses", "functools", "typing"}


def test_the_path_to_the_scan_is_short_and_its_length_is_true():
    guide = (HOUSE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Read it in one sitting")[1]
    said, steps = re.search(r"(\d+) lines:\n\n(.*?)\n\n", guide, re.DOTALL).groups()
    files = re.findall(r"`(\w+/\w+\.py)`", steps)
    lines = sum(len((HOUSE / file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert len(files) == 9 and lines <= 700 and abs(lines - int(said)) <= 20, lines


def test_modules_and_functions_are_short(trees):
    assert [name for name, path in MODULES.items() if len(path.read_text(encoding="utf-8").splitlines()) > 450] == []
    long = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
                if node.end_lineno - first.lineno + 2 > 60:
                    long.append((name, node.name))
    assert long == []


def test_what_experiments_define_is_described_but_for_plot(trees):
    """The linter cannot leave out one name: `plot` draws what the alternative text of its module describes."""
    bare = set()
    for name, tree in trees.items():
        for node in tree.body if room(name) == "papers" else ():
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_" and not ast.get_docstring(node):
                bare.add(node.name)
    assert bare == {"plot"}


def test_the_house_does_not_grow():
    count = dict.fromkeys(LINES, 0)
    folders = {HOUSE: "library", HOUSE / "papers": "papers", Path(__file__).parent: "tests"}
    folders |= {WATCH / "src": "warpwatch", WATCH / "tests": "warpwatch's tests"}
    for folder, part in folders.items():
        for path in folder.rglob("*.py"):
            if part != "library" or HOUSE / "papers" not in path.parents:
                count[part] += len(path.read_text(encoding="utf-8").splitlines())
    too_many = {part: f"{lines - LINES[part]} lines must go" for part, lines in count.items() if lines > LINES[part]}
    assert too_many == {}


def test_functions_have_few_parameters(trees):
    many = set()
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                args = node.args
                every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
                if len([each for each in every if each and each.arg not in ("self", "cls")]) > PARAMETERS:
                    many.add(f"{name.removeprefix('bppsa_nb.')}.{node.name}")
    assert many == MANY_PARAMETERS


def test_private_attributes_are_private(trees):
    """What begins with an underscore is reached through an object itself; the methods of named tuples are public."""
    reached = set()
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
                own = ast.unparse(node.value) in ("self", "cls", "super()")
                if not own and not hasattr(namedtuple("Any", ""), node.attr):
                    reached.add((name.removeprefix("bppsa_nb."), node.attr))
    assert reached == PRIVATE
