"""Check a release, `make release-check`: build it from what is committed, look inside, install it, test it.

What would be published comes to lie in `build/release`: the sdist, the wheel, and a recipe for conda-forge. The first
step that finds something wrong ends it, with exit code 1.
"""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from contextlib import contextmanager
from pathlib import Path

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
UV = [sys.executable, "-m", "uv"]
# Tools of others, each in an environment of its own.
TWINE, WHEEL_CONTENTS, RATTLER = "twine>=6,<7", "check-wheel-contents>=0.6,<0.7", "py-rattler-build>=0.70,<1"
SMOKE = ("docs/reference.md", "tests/on_core.py", "tests/ptx/kernels/vector_add.ptx")
CORE_ONLY = {"bppsa-nb", "llvmlite", "numba", "numpy", "pip", "scipy", "setuptools"}  # the last comes with Python 3.11


class Wrong(Exception):
    """What stands in the way of a release, in words."""


def main():
    """Take all steps, and say how long each took."""
    out = ROOT / "build" / "release"
    with tempfile.TemporaryDirectory(prefix="bppsa-nb-release-") as folder:
        tree, unpacked = Path(folder) / "committed", Path(folder) / "unpacked"
        with step("everything is committed"):
            check_committed(ROOT)
            with tarfile.open(fileobj=io.BytesIO(run("git", "archive", "HEAD", cwd=ROOT))) as archive:
                archive.extractall(tree, filter="data")
            committed = {path.relative_to(tree).as_posix(): path.read_bytes() for path in files_below(tree)}
        with step("one version everywhere"):
            version = check_versions(tree)
        with step("the metadata is what would be made, and valid"):
            run(sys.executable, "docs/metadata.py", "--check", cwd=tree)
            run(sys.executable, "docs/metadata.py", "--validate", cwd=tree)
        with step("every Python takes what constraints.txt pins, and nothing else"):
            check_constraints(tree)
        with step("build sdist and wheel, in an environment of their own"):
            sdist, wheel = build(tree, out)
        with step("compare their files with what is committed"):
            check_sdist(sdist_files(sdist), committed)
            check_wheel(wheel_files(wheel), committed, version)
            said(listing(sdist, sdist_files(sdist)), listing(wheel, wheel_files(wheel)))
        with step("twine and check-wheel-contents"):
            run(*UV, "tool", "run", "--from", TWINE, "twine", "check", "--strict", sdist, wheel)
            run(*UV, "tool", "run", "--from", WHEEL_CONTENTS, "check-wheel-contents", wheel)
        with step("a recipe for conda-forge, read by rattler-build"):
            recipe = out / "recipe.yaml"
            recipe.write_text(conda_recipe(tree, sdist), encoding="utf-8")
            check_recipe(recipe)
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (unpacked,) = unpacked.iterdir()
        with step("each public name on the wheel, with NumPy, SciPy and Numba alone"):
            try_core(wheel, unpacked, Path(folder) / "core")
        with step("the sdist's tests on the wheel, with all extras"):
            python = try_all(wheel, unpacked, Path(folder) / "all")
        with step("quick tests with the oldest and the newest dependencies, on the Pythons that are here"):
            done = run(python, "-m", "pytest", "-m", "full", "tests/test_versions.py", cwd=unpacked)
            said(*re.findall(r"^SKIPPED.*|^=+ (?:.* in .*) =+$", done.decode(), re.MULTILINE))
        with step("measure claims again: each is within its tolerance"):
            done = run(sys.executable, "-m", "bppsa_nb.papers.cli", "report", "--check", cwd=ROOT)
            said(done.decode().splitlines()[-1])
    print(f"\n{out.relative_to(ROOT)} holds {sdist.name}, {wheel.name} and {recipe.name}.")


@contextmanager
def step(name):
    """Print a step's name, and then its seconds; what is wrong is printed, and ends the program."""
    print(f"{name} ...", flush=True)
    start = time.perf_counter()
    try:
        yield
    except Wrong as wrong:
        sys.exit(f"{wrong}\nNot ready for a release; it ended after {time.perf_counter() - start:.0f} s in: {name}")
    print(f"    {time.perf_counter() - start:.0f} s", flush=True)


def said(*lines):
    """Print what a step found."""
    for line in lines:
        print(f"    {line}", flush=True)


def run(*command, code=0, **how):
    """Run a command and return what it prints; Wrong, which has that, unless it exits with `code`.

    Nothing of this environment's Python, pytest or git reaches it.
    """
    ours = ("GIT_", "PYTHON", "PYTEST", "VIRTUAL_ENV", "BPPSA_NB", "NUMBA")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= how.pop("environment", {})
    done = subprocess.run(
        [*map(str, command)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how
    )
    if done.returncode != code:
        printed = done.stdout.decode(errors="replace")
        raise Wrong(f"{printed}\n`{' '.join(map(str, command))}` exited with {done.returncode}, not with {code}")
    return done.stdout


def files_below(folder):
    """Return all files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check_committed(folder):
    """Raise Wrong unless a folder is a git checkout that has nothing but what is committed, or ignored."""
    if not (folder / ".git").exists():
        raise Wrong(f"{folder} is no git checkout: a release is made of a commit")
    changed = run("git", "status", "--porcelain", "--untracked-files=all", cwd=folder)
    if changed:
        raise Wrong(f"a release is made of a commit; commit or remove first:\n{changed.decode(errors='replace')}")


def check_versions(folder):
    """Return the version, or raise Wrong if it is not the same everywhere."""

    def find(name, pattern):
        found = re.search(pattern, (folder / name).read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else None

    versions = {
        "pyproject.toml": find("pyproject.toml", r'^version = "(.*)"$'),
        "bppsa_nb/__init__.py": find("bppsa_nb/__init__.py", r'^__version__ = "(.*)"$'),
        "CITATION.cff": find("CITATION.cff", r"^version: \"?([^\"\n]*)\"?$"),
        "CHANGELOG.md": find("CHANGELOG.md", r"^## (\S+)"),  # its first, which is the newest
    }
    if len(set(versions.values())) > 1 or None in versions.values():
        told = ", ".join(f"{version} in {name}" for name, version in versions.items())
        raise Wrong(f"the version is not the same everywhere: {told}")
    if "unreleased" in find("CHANGELOG.md", r"^(## .*)$"):
        said("CHANGELOG.md says that it is unreleased: put the date there before the tag")
    return versions["pyproject.toml"]


def check_constraints(tree):
    """Raise Wrong unless all that `make` installs is pinned, has wheels, and takes each Python's first version."""
    pins = (tree / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = ["pyproject.toml", "--constraint", "constraints.txt", "--extra=all", "--extra=test", "--extra=docs"]
    for python in pythons(tree):
        how = ["--python-version", f"{python}.0", "--only-binary=:all:", "--no-header", "--no-annotate"]
        found = run(*UV, "pip", "compile", "--quiet", *wanted, *how, cwd=tree).decode()
        if loose := [pin for pin in re.findall(r"^[\w-]+==[^\s;]+", found, re.MULTILINE) if pin not in pins]:
            raise Wrong(f"constraints.txt does not have what Python {python} gets: {', '.join(loose)}")


def pythons(tree):
    """Return the Pythons that pyproject.toml names."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))


def build(tree, out):
    """Build the sdist, and the wheel from it, into a folder that holds nothing else; return both."""
    out.mkdir(parents=True, exist_ok=True)
    for path in out.iterdir():
        path.unlink()
    run(*UV, "build", "--out-dir", out, tree)
    (out / ".gitignore").unlink(missing_ok=True)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def sdist_files(path):
    """Return what is in an sdist, by names as in the checkout."""
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.isfile()]
        return {member.name.partition("/")[2]: archive.extractfile(member).read() for member in members}


def wheel_files(path):
    """Return what is in a wheel, by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def check_sdist(found, committed):
    """Raise Wrong unless an sdist has all that is committed, and besides only what setuptools writes."""
    written = {name for name in found if name in ("PKG-INFO", "setup.cfg") or name.startswith("bppsa_nb.egg-info/")}
    compare("sdist", {name: found[name] for name in found.keys() - written}, committed, "MANIFEST.in")


def check_wheel(found, committed, version):
    """Raise Wrong unless a wheel has the whole package as it is committed, and besides only what describes it."""
    about = f"bppsa_nb-{version}.dist-info/"
    if f"{about}METADATA" not in found:
        raise Wrong(f"the wheel is not that of version {version}: it has no {about}METADATA")
    package = {name: content for name, content in committed.items() if name.startswith("bppsa_nb/")}
    others = {name: content for name, content in found.items() if not name.startswith(about)}
    compare("wheel", others, package, "MANIFEST.in, and [tool.setuptools] in pyproject.toml")


def compare(what, found, wanted, where):
    """Raise Wrong, which says `where` to look, unless two sets of files are the same."""
    missing, more, both = wanted.keys() - found, found.keys() - wanted, found.keys() & wanted
    wrong = [f"the {what} lacks {name}: see {where}" for name in sorted(missing)]
    wrong += [f"the {what} has {name}, which should not be there: see {where}" for name in sorted(more)]
    wrong += [f"the {what}'s {name} is not what is committed" for name in sorted(both) if found[name] != wanted[name]]
    if wrong:
        raise Wrong("\n".join(wrong))


def listing(path, contents):
    """Say how large an sdist or a wheel is, and what takes the room."""
    rooms = {}
    for name, content in contents.items():
        room = name.partition("/")[0] + "/" * ("/" in name)
        rooms[room] = rooms.get(room, 0) + len(content)
    largest = sorted((room for room in rooms if rooms[room] > 50_000), key=rooms.get, reverse=True)
    parts = ", ".join(f"{room} {rooms[room] / 1e6:.1f}" for room in largest)
    packed, unpacked = path.stat().st_size / 1e6, sum(rooms.values()) / 1e6
    return f"{path.name}: {packed:.1f} MB, {len(contents)} files, unpacked {unpacked:.1f} MB ({parts})"


def conda_recipe(tree, sdist):
    """Write what conda-forge needs, in its format of version 1: bounds from pyproject.toml and environment.yml."""
    about = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    project, python = about["project"], "python >=${{ python_min }}"
    entries = yaml.safe_load((tree / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    known = {entry.partition(" ")[0]: entry for entry in entries if isinstance(entry, str)}
    core = [known[Requirement(line).name] for line in project["dependencies"]]
    tests = [Requirement(line).name for line in project["optional-dependencies"]["test"]]
    # cuda-version is no package that is used: it says which toolkit comes with numba-cuda.
    others = {*(line.partition(" ")[0] for line in core), *tests, "python", "pip", "cuda-version"}
    recipe = {
        "schema_version": 1,
        "context": {"python_min": project["requires-python"].removeprefix(">=")},
        "package": {"name": project["name"], "version": project["version"]},
        "source": {"path": sdist.name, "sha256": hashlib.sha256(sdist.read_bytes()).hexdigest()},
        "build": {
            "number": 0,
            "noarch": "python",
            "script": "${{ PYTHON }} -m pip install . -vv --no-deps --no-build-isolation",
            "python": {"entry_points": [f"{name} = {call}" for name, call in project["scripts"].items()]},
        },
        "requirements": {
            "host": ["python ${{ python_min }}.*", "pip", *(conda(line) for line in about["build-system"]["requires"])],
            "run": [python, *core],
            "run_constraints": [entry for name, entry in known.items() if name not in others],
        },
        "tests": [
            {"python": {"imports": ["bppsa_nb"], "pip_check": True, "python_version": "${{ python_min }}.*"}},
            {"script": ["bppsa-nb --help", "python tests/on_core.py"], "files": {"source": list(SMOKE)}},
        ],
        "about": {"summary": project["description"], "license": project["license"], "license_file": "LICENSE"},
    }
    head = "# Once the sdist has an address, put `url:` in the place of `path:`, and `homepage:` under `about:`.\n"
    return head + yaml.safe_dump(recipe, sort_keys=False, width=120)


def conda(line):
    """Write a requirement as conda does."""
    requirement = Requirement(line)
    return f"{requirement.name} {','.join(sorted(map(str, requirement.specifier), reverse=True))}"


def check_recipe(path):
    """Have rattler-build read and render a recipe; Wrong if it cannot."""
    program = "import sys, rattler_build as r; recipe = r.Stage0Recipe.from_file(sys.argv[1]); print(recipe.render())"
    run(*UV, "run", "--no-project", "--with", RATTLER, "python", "-c", program, path)


def try_core(wheel, unpacked, folder):
    """Install the wheel as a user does, and use each public name and the command, in a folder that has nothing else."""
    environment, empty = folder / "environment", folder / "empty"
    run(sys.executable, "-m", "venv", environment)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", wheel)
    installed = json.loads(run(scripts / "python", "-m", "pip", "list", "--format=json", "--disable-pip-version-check"))
    if others := {each["name"] for each in installed} - CORE_ONLY:
        raise Wrong(f"the core brings more than NumPy, SciPy and Numba: {', '.join(sorted(others))}")
    said(", ".join(f"{each['name']} {each['version']}" for each in installed if each["name"] != "setuptools"))
    for name in SMOKE:
        (empty / name).parent.mkdir(parents=True, exist_ok=True)
        (empty / name).write_bytes((unpacked / name).read_bytes())
    how = {"cwd": empty, "environment": {"BPPSA_NB_CACHE": str(folder / "cache")}}
    where = run(scripts / "python", "-c", "import bppsa_nb; print(bppsa_nb.__file__)", **how).decode().strip()
    if environment not in Path(where).parents:
        raise Wrong(f"the package that is imported is {where}, and not the wheel's")
    run(scripts / "python", "tests/on_core.py", **how)
    run(scripts / "bppsa-nb", "--help", **how)
    run(scripts / "bppsa-nb", "info", **how)
    answer = run(scripts / "bppsa-nb", "figures", "--only", "figure_01", code=1, **how).decode()
    if "pip install 'bppsa-nb[notebooks]'" not in answer:
        raise Wrong(f"`bppsa-nb figures` does not say which extra to install: {answer}")


def try_all(wheel, unpacked, folder):
    """Install the wheel with all extras, and run the sdist's tests on what is installed; return that Python."""
    environment, empty = folder / "environment", folder / "empty"
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    run(*UV, "venv", "--python", sys.executable, environment)
    wanted = ["--constraint", unpacked / "constraints.txt", f"bppsa-nb[all,test] @ {wheel.as_uri()}"]
    run(*UV, "pip", "install", "--python", scripts / "python", *wanted)
    empty.mkdir()
    how = {"cwd": empty, "environment": {"BPPSA_NB_CACHE": str(folder / "cache")}}
    run(scripts / "bppsa-nb", "figures", "--only", "figure_01", **how)
    answer = run(scripts / "bppsa-nb", "notebooks", code=1, **how).decode()
    if "comes with a checkout" not in answer:
        raise Wrong(f"`bppsa-nb notebooks` does not say that it needs a checkout: {answer}")
    run(scripts / "ruff", "check", ".", cwd=unpacked)
    # Unlike `python -m pytest`, `pytest` does not put the folder first; so the tests import what is installed.
    tests = [
        scripts / "pytest",
        "--override-ini=pythonpath=tests benchmarks",
        "--numprocesses=logical",
        "--dist=loadfile",
    ]
    done = run(*tests, "-m", "not outer and not full and not peers", "tests", cwd=unpacked).decode()
    said(done.splitlines()[-1].strip("= "))
    return scripts / "python"


if __name__ == "__main__":
    main()
