"""What is published, and what an image is made of, is complete; `make release-check` builds and tries it."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

REPO = Path(__file__).parents[1]


def read(name):
    return (REPO / name).read_text(encoding="utf-8")


def test_the_sdist_takes_every_file_that_git_tracks(tracked):
    lines = [line.split() for line in read("MANIFEST.in").splitlines()]
    grafted = [line[1] for line in lines if line[:1] == ["graft"]]
    included = [pattern for line in lines if line[:1] == ["include"] for pattern in line[1:]]
    included += ["MANIFEST.in", "LICENSE", "pyproject.toml"]  # as every sdist does
    for name in tracked:
        assert name.split("/")[0] in grafted or any(fnmatch(name, pattern) for pattern in included), name


def test_the_wheel_takes_every_file_of_the_package():
    files = [path for path in (REPO / "bppsa_nb").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert [path for path in files if not (path.parent / "__init__.py").is_file()] == []


def test_the_image_has_what_it_names_and_not_what_git_ignores():
    dockerfile, container = read("Dockerfile"), json.loads(read(".devcontainer/devcontainer.json"))
    (python,) = re.findall(r"^FROM python:([\d.]+)-slim", dockerfile, re.MULTILINE)
    assert f"Python :: {python}\"" in read("pyproject.toml")
    assert f" AS {container['build']['target']}\n" in dockerfile
    (stamp,) = re.findall(r"^RUN make (\S+)$", dockerfile, re.MULTILINE)
    assert f"\n{stamp}:" in read("Makefile") and container["postCreateCommand"] == f"make {stamp}"
    ignored, left_out = (
        {line.removeprefix("**/").rstrip("/") for line in read(name).splitlines() if line and line[0] != "#"}
        for name in (".gitignore", ".dockerignore")
    )
    assert ignored == left_out
