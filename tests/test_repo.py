"""Promises that the repository makes as a whole."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import bppsa_nb
from bppsa_nb.machine import process
from bppsa_nb.papers import provenance, report
from bppsa_nb.puzzles import contents

REPO = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
(ALL,) = EXTRAS.pop("all")
INSTALLED = PROJECT["dependencies"], *(EXTRAS[name] for name in (*Requirement(ALL).extras, "test"))  # by make


def requirements(*groups):
    return {r.name: r for r in (Requirement(line) for group in groups for line in group)}


def test_import_is_light():
    heavy = {"numba", "matplotlib", "seaborn", "pandas", "librosa", "torch", "jax", "IPython", "nbclient", "mpi4py"}
    script = f"import sys, bppsa_nb, bppsa_nb.multigrid.solver; print(*{heavy}.intersection(sys.modules))"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, check=True).stdout.split() == []


def test_every_dependency_is_bounded_below_and_above():
    for name, requirement in requirements(PROJECT["dependencies"], *EXTRAS.values()).items():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, f"{name}{requirement.specifier}"


def test_conda_environment_agrees_with_pyproject():
    entries = yaml.safe_load((REPO / "environment.yml").read_text())["dependencies"]
    (pip,) = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    assert pip == ["-e ./warpwatch", "-e ."]
    conda = dict(entry.partition(" ")[::2] for entry in entries if isinstance(entry, str))
    conda = {name: SpecifierSet(bounds) for name, bounds in conda.items()}
    assert conda.pop("python") == SpecifierSet(PROJECT["requires-python"])
    assert conda.pop("pip") == SpecifierSet()
    # The gpu extra: numba-cuda[cu12] there is numba-cuda with CUDA 12 here.
    assert requirements(EXTRAS["gpu"])["numba-cuda"].extras == {"cu12"}
    assert conda.pop("cuda-version") == SpecifierSet(">=12,<13")
    conda["soundfile"] = conda.pop("pysoundfile")
    conda["nvidia-cuda-nvdisasm"] = conda.pop("cuda-nvdisasm")
    wanted = requirements(*INSTALLED)
    assert conda == {name: requirement.specifier for name, requirement in wanted.items()}


def test_constraints_are_exact_and_within_bounds():
    lines = (REPO / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert all(re.fullmatch("[a-z0-9-]+", name) and Version(version) for name, version in pins.items())
    assert list(pins) == sorted(pins)
    for name, requirement in requirements(PROJECT["dependencies"], *EXTRAS.values()).items():
        assert pins[canonicalize_name(name)] in requirement.specifier, name


def test_the_first_version_of_this_python_takes_the_constraints():
    """Debian 12, for one, has Python 3.11.2."""
    first = ".".join(map(str, (*sys.version_info[:2], 0)))
    for line in (REPO / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        with suppress(PackageNotFoundError):  # an extra that is not installed
            about = metadata(name)
            if about["Version"] == version:
                assert first in SpecifierSet(about["Requires-Python"] or ""), line


def test_only_what_names_the_peers_installs_and_imports_them():
    recipes = dict(re.findall(r"^(\S+):.*\n((?:\t.*\n)+)", (REPO / "Makefile").read_text(), re.MULTILINE))
    assert [name for name, recipe in recipes.items() if "[bench]" in recipe or " torch\n" in recipe] == [".venv/.peers"]
    assert not {"torch", "jax", "jaxlib"} & set(requirements(*INSTALLED))
    for path in (REPO / "tests").rglob("*.py"):
        assert not re.search(r"importorskip\(\W(torch|jax)", path.read_text(encoding="utf-8")), f"{path}: mark it peers"


@pytest.mark.outer
def test_tests_that_need_the_peers_fail_without_them_where_they_are_asked_for(tmp_path):
    (tmp_path / "lacking.py").write_text("import sys\nsys.modules |= dict.fromkeys(('torch', 'jax'))\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "lacking", "-q", "-m", "peers", "tests/networks/test_weights.py"]
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout


def imported(paths):
    """Return the packages that modules import, by the names they are imported by; Python's own and ours excepted."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"bppsa_nb"}


def test_the_package_imports_what_pyproject_names():
    called = {"PIL": "pillow", "IPython": "ipython", "sklearn": "scikit-learn", "cuda": "cuda-core"}
    assert list(requirements(PROJECT["dependencies"])) == ["numba", "numpy", "scipy"]
    assert set(Requirement(ALL).extras) == set(process.BRINGS)
    for extra, packages in process.BRINGS.items():
        assert {called.get(name, name) for name in packages} <= set(requirements(EXTRAS[extra])), extra
    layers = [*(REPO / "bppsa_nb" / "torch").rglob("*.py")]
    paths = {*(REPO / "bppsa_nb").rglob("*.py")} - {*layers}
    core = {"numba", "llvmlite", "numpy", "scipy"}
    asked = {"numba_cuda_mlir", "warpwatch"}  # for which only their names in the environment ask, or checks of kernels
    assert imported(paths) == core.union(asked, *process.BRINGS.values())
    assert imported(layers) == {"numpy", "torch"}  # PyTorch here only, JAX and benchmarks nowhere


@pytest.mark.outer
def test_the_core_needs_three_packages():
    done = subprocess.run([sys.executable, REPO / "tests" / "on_core.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ALONE = """import sys
class Only:
    def find_spec(name, *_):
        if name.partition(".")[0] not in {"bppsa_nb", "brython", "mistune", "puzzle_page", *sys.stdlib_module_names}:
            raise ModuleNotFoundError(f"make puzzles does not install {name}", name=name)
sys.meta_path.insert(0, Only)
sys.path.insert(0, "docs")
import puzzle_page
puzzle_page.PAGE = puzzle_page.Path(sys.argv[1])
puzzle_page.main()"""


def test_the_page_of_puzzles_needs_two_packages_and_has_each_puzzle_with_its_check(tmp_path):
    pytest.importorskip("brython", reason="needs what `make puzzles` installs")
    page, environment = tmp_path / "made" / "puzzles.html", os.environ | {"BROWSER": "echo opened %s"}
    command = [sys.executable, "-c", ALONE, page]
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"The puzzles are in {page}", f"opened {page.as_uri()}"], done.stderr
    text = page.read_text(encoding="utf-8")
    for name in contents.SCANS:
        assert f"<h2>{contents.title(name)}</h2>" in text and f'<textarea id="{name}"' in text
    worker = json.loads(re.search(r"^<script>self.puzzleWorker = (.*);$", text, re.MULTILINE)[1])
    for name in ("bppsa_nb/puzzles/scans.py", "docs/judge.py"):
        assert json.dumps((REPO / name).read_text(encoding="utf-8")) in worker
    assert not re.search(r'(src|href)="(?!#)', text) and text.count("</script>") == 2


def test_a_commit_is_linted_by_the_same_ruff_and_workflows_run_what_is_there():
    (hook,) = yaml.safe_load((REPO / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert hook["additional_dependencies"][0] in (REPO / "constraints.txt").read_text().splitlines()
    jobs = yaml.safe_load((REPO / ".github/workflows/ci.yml").read_text())["jobs"].values()
    steps = [step.get("run", "").split() for job in jobs for step in job["steps"]]
    assert {word for words in steps for word in words if "/" in word} == {".ci/run", "tests/on_core.py"}


def targets():
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    return re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_and_the_page_without_make_name_every_target():
    said = subprocess.run(["make", "help"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^make (\S+) ", said, re.MULTILINE) == [name for name in targets() if name != "help"]
    page = (REPO / "docs" / "without_make.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `make ([\w-]+)` \| `?\S", page, re.MULTILINE)) == sorted({*targets()} - {"help"})


def test_every_make_command_that_a_page_names_is_a_target():
    pages = [*REPO.glob("*.md"), *(REPO / "docs").glob("*.md"), *(REPO / "notebooks").glob("*.md")]
    for page in pages:
        for name in re.findall(r"(?:`|^)make ([a-z][\w-]*)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert name in targets(), f"{page.name}: make {name}"


def test_the_version_is_told_once():
    assert bppsa_nb.__version__ == PROJECT["version"]
    assert yaml.safe_load((REPO / "CITATION.cff").read_text())["version"] == PROJECT["version"]
    assert f"## {PROJECT['version']}" in (REPO / "CHANGELOG.md").read_text()


def test_no_file_names_a_place_on_somebody_s_machine(tracked):
    place = re.compile(rb"(?<![\w.>/-])/(?:root|home|Users|work|tmp|mnt|opt)/\w")
    for path in map(REPO.joinpath, tracked):
        if path.is_file() and path.suffix != ".png":
            found = place.search(path.read_bytes())
            assert not found, f"{path.relative_to(REPO)}: {found[0]}"


def test_the_report_is_that_of_the_references():
    assert (REPO / "REPRODUCTION.md").read_text(encoding="utf-8") == report.text()


def test_what_a_user_measures_is_ignored_by_git_and_references_are_not(tracked):
    made = ["data/measured/cpu/a.quick.csv", "data/measured/cpu/a.quick.json", "data/results/cpu/a.quick.partial.json"]
    assert provenance.git("check-ignore", "--no-index", *made, "data/results/cpu/a.quick.csv").decode().split() == made


def test_the_map_in_contributing_names_every_room():
    house = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## The house")[1].split("```")[1]
    rooms = {path.parent.name for path in (REPO / "bppsa_nb").glob("*/__init__.py")}
    assert set(re.findall(r"^    (\w+)/", house, re.MULTILINE)) == rooms


@pytest.mark.full
def test_gpu_tests_are_collected_from_the_source_tree_alone(tmp_path):
    """A machine with a GPU may have neither this package installed, nor librosa, JupyterLab, tqdm, or Git's folder."""
    for name in ("bppsa_nb", "tests", "benchmarks"):
        shutil.copytree(REPO / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    missing = "librosa", "jupyterlab", "nbclient", "nbformat", "IPython", "ipywidgets", "seaborn", "sklearn", "tqdm"
    (tmp_path / "lacking.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({missing})\n")
    files = ["tests/test_cuda.py", *(f"tests/{name}" for name in ("cells", "networks", "training/test_device.py"))]
    command = [sys.executable, "-m", "pytest", "-p", "lacking", "--collect-only", "-q", "-m", "gpu", *files]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert all(f"{file}::" in done.stdout for file in files[::3])
