"""What metadata are made of: pyproject.toml, CITATION.cff, CHANGELOG.md, and the tables in data/ with their columns."""

import csv
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bppsa_nb.machine import files  # noqa: E402
from bppsa_nb.papers import dictionary, experiments, provenance  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADDRESSES = PROJECT.get("urls", {})  # labels as PyPI knows them: Repository, Homepage, Issues, Documentation
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
ABSTRACT = " ".join(CITATION["abstract"].split())
LICENSE_URL = f"https://spdx.org/licenses/{PROJECT['license']}"
PAPERS = [CITATION["preferred-citation"], *CITATION["references"]]


class Table(NamedTuple):
    """A table in data/: its CSV, what the JSON beside it says, and its columns as `dictionary.fields` has them."""

    path: Path
    described: dict
    fields: list
    title: str

    @property
    def place(self):
        """The path of the CSV in the checkout."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def origin(self):
        """Where a recorded table comes from, a dict; None for one that the paper printed."""
        return self.described.get("provenance")

    @property
    def source(self):
        """Where it comes from, in words."""
        if self.origin is None:
            return self.described["caption"]
        how = "collected" if self.origin.get("collected") else "recorded"
        data = "{data} data, scale {scale}, seed {seed}".format(**self.origin)
        return f"{how} on {self.origin['date']} at commit {provenance.commit(self.origin)}, {self.machine}; {data}"

    @property
    def machine(self):
        """What recorded it, in words."""
        return provenance.machine(self.origin)


@cache
def tables():
    """List all tables in data/, recorded and printed ones."""
    found = []
    for path in sorted(ROOT.glob("data/results/*/*.csv")):
        described, name = files.read_json(path.with_suffix(".json")), path.name.split(".")[0]
        title = dictionary.read()["tables"].get(name) or experiments.title(name)
        found.append(Table(path, described, dictionary.fields(name, described["columns"]), title))
    for path in sorted(ROOT.glob("data/paper/*.csv")):
        described = files.read_json(path.with_suffix(".json"))
        fields = dictionary.fields(f"paper/{path.stem}", _kinds(path))
        found.append(Table(path, described, fields, f"Table {described['table']} of the paper"))
    return found


def _kinds(path):
    """Find the types of the columns of a table that has none in its JSON."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    forms, kinds = {"int64": r"-?\d+", "float64": r"-?\d*\.?\d+(e-?\d+)?", "str": ".*"}, {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        kinds[name] = next(kind for kind, form in forms.items() if all(re.fullmatch(form, cell) for cell in cells))
    return kinds


def released():
    """Return the date of the version in pyproject.toml, as CHANGELOG.md has it; None if it is not released."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    form = rf"^## {re.escape(PROJECT['version'])} \((unreleased|\d{{4}}-\d\d-\d\d)\)$"
    if not (found := re.search(form, text, re.MULTILINE)):
        raise ValueError(f"CHANGELOG.md must have a line ## {PROJECT['version']} (unreleased), or with a date for that")
    return None if found[1] == "unreleased" else found[1]


def preprint(paper):
    """Return the arXiv number of a paper, such as "1907.10134", or None."""
    values = (each["value"] for each in paper.get("identifiers", ()))
    return next((value.removeprefix("arXiv:") for value in values if value.startswith("arXiv:")), None)


def address(paper):
    """Return the address of a paper: of what was published, or else of the preprint."""
    return paper.get("url") or f"https://arxiv.org/abs/{preprint(paper)}"


def authors(paper):
    """List the names of a paper's authors: given, family."""
    return [(each["given-names"], each["family-names"]) for each in paper["authors"]]
