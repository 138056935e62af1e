"""What a release is made of is complete, and `make release-check` says in words what is wrong.

That command itself builds, installs and tests a release; it takes too long for here.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

REPO = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("release", REPO / "docs" / "release.py")
release = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(release)
PYPROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_wheel_takes_every_file_of_the_package():
    """It does so by MANIFEST.in, where setuptools is not told otherwise, and finds each folder to be a package."""
    assert PYPROJECT["tool"]["setuptools"] == {"packages": {"find": {"include": ["bppsa_nb*"]}}}
    assert "graft bppsa_nb" in (REPO / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    files = [path for path in (REPO / "bppsa_nb").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert [path for path in files if not (path.parent / "__init__.py").is_file()] == []


def test_the_sdist_takes_every_file_that_git_tracks(tracked):
    lines = [line.split() for line in (REPO / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    grafted = [line[1] for line in lines if line[:1] == ["graft"]]
    included = [pattern for line in lines if line[:1] == ["include"] for pattern in line[1:]]
    included += ["MANIFEST.in", "LICENSE", "pyproject.toml"]  # as every sdist does
    for name in tracked:
        assert name.split("/")[0] in grafted or any(fnmatch(name, pattern) for pattern in included), name
    assert [name for name in grafted if not (REPO / name).is_dir()] == []


@pytest.fixture
def checkout(tmp_path):
    """A small project, committed."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "bppsa_nb/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    (tmp_path / ".gitignore").write_text("build/\n")
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "All of it"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_what_is_not_committed_is_named(checkout):
    release.check_committed(checkout)
    (checkout / "build").mkdir()
    (checkout / "build" / "left").touch()
    release.check_committed(checkout)
    (checkout / "new.py").touch()
    with open(checkout / "CHANGELOG.md", "a") as file:
        file.write("more\n")
    with pytest.raises(release.Wrong, match=r"(?s)commit or remove first:.* M CHANGELOG\.md.*\?\? new\.py"):
        release.check_committed(checkout)
    shutil.rmtree(checkout / ".git")
    with pytest.raises(release.Wrong, match="is no git checkout: a release is made of a commit"):
        release.check_committed(checkout)


@pytest.mark.parametrize("name", ["pyproject.toml", "CITATION.cff", "CHANGELOG.md", "bppsa_nb/__init__.py"])
def test_a_version_that_disagrees_is_named(checkout, name):
    version = PYPROJECT["project"]["version"]
    assert release.check_versions(checkout) == version
    text = (checkout / name).read_text(encoding="utf-8")
    (checkout / name).write_text(text.replace(version, "7.7.7", 1), encoding="utf-8")
    with pytest.raises(release.Wrong, match=rf"not the same everywhere: .*{version} in .*") as wrong:
        release.check_versions(checkout)
    assert f"7.7.7 in {name}" in str(wrong.value)


def test_a_date_that_is_still_to_be_written_is_told(checkout, capsys):
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## 0.1.0 (unreleased)\n", encoding="utf-8")
    release.check_versions(checkout)
    assert "CHANGELOG.md says that it is unreleased" in capsys.readouterr().out
    changelog.write_text("# Changelog\n\n## 0.1.0 (2026-12-24)\n\n## 0.0.1 (unreleased)\n", encoding="utf-8")
    release.check_versions(checkout)
    assert capsys.readouterr().out == ""


COMMITTED = {"bppsa_nb/__init__.py": b"1", "bppsa_nb/papers/gru/words.toml": b"2", "tests/test.py": b"3"}


def test_an_sdist_that_differs_from_the_commit_is_told_file_by_file():
    found = COMMITTED | {"PKG-INFO": b"", "setup.cfg": b"", "bppsa_nb.egg-info/SOURCES.txt": b""}
    release.check_sdist(found, COMMITTED)
    del found["tests/test.py"]
    found |= {"data/measured/a.csv": b"", "bppsa_nb/__init__.py": b"other"}
    with pytest.raises(release.Wrong) as wrong:
        release.check_sdist(found, COMMITTED)
    assert str(wrong.value).splitlines() == [
        "the sdist lacks tests/test.py: see MANIFEST.in",
        "the sdist has data/measured/a.csv, which should not be there: see MANIFEST.in",
        "the sdist's bppsa_nb/__init__.py is not what is committed",
    ]


def test_a_wheel_without_a_file_of_the_package_or_with_others_is_told():
    package = {name: content for name, content in COMMITTED.items() if name.startswith("bppsa_nb/")}
    found = package | {"bppsa_nb-0.1.0.dist-info/METADATA": b""}
    release.check_wheel(found, COMMITTED, "0.1.0")
    with pytest.raises(release.Wrong, match=r"not that of version 0\.2\.0: .* no bppsa_nb-0\.2\.0\.dist-info/METADATA"):
        release.check_wheel(found, COMMITTED, "0.2.0")
    with pytest.raises(release.Wrong, match=r"^the wheel has tests/test\.py, which should not be there"):
        release.check_wheel(found | COMMITTED, COMMITTED, "0.1.0")
    del found["bppsa_nb/papers/gru/words.toml"]
    with pytest.raises(release.Wrong, match=r"^the wheel lacks bppsa_nb/papers/gru/words\.toml: see MANIFEST\.in"):
        release.check_wheel(found, COMMITTED, "0.1.0")


def test_a_step_that_fails_ends_with_its_output_and_its_name(capsys):
    with pytest.raises(SystemExit) as stopped, release.step("the tests"):
        release.run("sh", "-c", "echo what went wrong; exit 3")
    said = str(stopped.value.code)
    assert said.startswith("what went wrong\n") and "exited with 3, not with 0" in said
    assert re.search(r"Not ready for a release; it ended after \d+ s in: the tests$", said)
    assert capsys.readouterr().out == "the tests ...\n"


def test_the_recipe_has_the_bounds_of_pyproject(tmp_path):
    sdist = tmp_path / "bppsa_nb-0.1.0.tar.gz"
    sdist.write_bytes(b"")
    recipe = yaml.safe_load(release.conda_recipe(REPO, sdist))
    assert recipe["source"] == {"path": sdist.name, "sha256": release.hashlib.sha256().hexdigest()}
    assert recipe["package"] == {"name": "bppsa-nb", "version": PYPROJECT["project"]["version"]}
    assert recipe["requirements"]["host"][2:] == ["setuptools >=77,<90"]
    wanted = [release.conda(line) for line in PYPROJECT["project"]["dependencies"]]
    assert recipe["requirements"]["run"] == ["python >=${{ python_min }}", *wanted]
    others = " ".join(recipe["requirements"]["run_constraints"])
    assert "matplotlib >=" in others and "pytest" not in others and "numpy" not in others
    for name in recipe["tests"][1]["files"]["source"]:
        assert (REPO / name).is_file()


def targets():
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    return re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()


def test_make_help_and_the_page_without_make_name_every_target():
    if shutil.which("make") is None:
        pytest.skip("needs make")
    said = subprocess.run(["make", "help"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^make (\S+) ", said, re.MULTILINE) == [name for name in targets() if name != "help"]
    page = (REPO / "docs" / "without_make.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `make ([\w-]+)` \| `?\S", page, re.MULTILINE)) == sorted({*targets()} - {"help"})


def test_dockerfile_and_devcontainer_name_what_there_is():
    dockerfile = (REPO / "Dockerfile").read_text(encoding="utf-8")
    container = json.loads((REPO / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    (python,) = re.findall(r"^FROM python:([\d.]+)-slim-\w+ AS (?:\w+)$", dockerfile, re.MULTILINE)
    assert python in SpecifierSet(PYPROJECT["project"]["requires-python"])
    assert f"Programming Language :: Python :: {python}" in PYPROJECT["project"]["classifiers"]
    assert f" AS {container['build']['target']}\n" in dockerfile
    folder = REPO / ".devcontainer"
    for key in ("dockerfile", "context"):
        assert (folder / container["build"][key]).exists()
    assert f"useradd --create-home {container['remoteUser']} " in dockerfile
    (copied,) = re.findall(r"^COPY --chown=(\w+) \. \.$", dockerfile, re.MULTILINE)
    assert container["remoteUser"] == copied == re.search(r"^USER (\w+)$", dockerfile, re.MULTILINE)[1]
    (stamp,) = re.findall(r"^RUN make (\S+)$", dockerfile, re.MULTILINE)
    assert container["postCreateCommand"] == f"make {stamp}"
    assert re.search(rf"^{re.escape(stamp)}:", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_what_git_ignores_stays_out_of_the_image():
    def patterns(name):
        lines = (REPO / name).read_text(encoding="utf-8").splitlines()
        return {line.removeprefix("**/").rstrip("/") for line in lines if line and not line.startswith("#")}

    assert patterns(".dockerignore") == patterns(".gitignore")


def test_every_make_command_that_a_page_names_is_a_target():
    pages = [*REPO.glob("*.md"), *(REPO / "docs").glob("*.md"), *(REPO / "notebooks").glob("*.md"), REPO / "Dockerfile"]
    for page in pages:
        for name in re.findall(r"(?:`|^|RUN )make ([a-z][\w-]*)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert name in targets(), f"{page.name}: make {name}"
