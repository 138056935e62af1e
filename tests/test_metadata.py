"""What machines read of the project agrees with what it is made from, with each other, and with what is there."""

import csv
import hashlib
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
READ_AS = {"integer": int, "number": float, "string": str, "boolean": ["True", "False"].index}
# What Zenodo knows of a software deposit (developers.zenodo.org, "Deposit metadata").
KNOWN_BY_ZENODO = {
    *("upload_type", "publication_date", "title", "creators", "description", "access_right", "license", "keywords"),
    *("notes", "related_identifiers", "references", "version", "language", "communities", "grants", "contributors"),
}


def read(name):
    return json.loads((REPO / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def metadata():
    """The program that makes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPO / "docs"))
        yield importlib.import_module("metadata")


@pytest.fixture(scope="module")
def entities():
    """What the RO-Crate describes, by its name there."""
    graph = read("ro-crate-metadata.json")["@graph"]
    found = {each["@id"]: each for each in graph}
    assert len(found) == len(graph)
    return found


def test_they_are_as_they_would_be_made(metadata):
    assert list(metadata.differing()) == [], "run `python docs/metadata.py`"


def test_a_difference_is_said_and_written(metadata, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(metadata, "ROOT", tmp_path)
    monkeypatch.setattr(metadata, "MADE", {"a.json": lambda: {"a": 1}, "b/c.json": list})
    (tmp_path / "a.json").write_text("{}\n")
    for arguments, status, said in (["--check"], 1, 2), ([], 0, 2), (["--check"], 0, 0):
        monkeypatch.setattr(sys, "argv", ["metadata.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            metadata.main()
        assert ended.value.code == status and len(capsys.readouterr().out.splitlines()) == said
    assert (tmp_path / "a.json").read_text() == '{"a": 1}\n' and (tmp_path / "b/c.json").read_text() == "[]\n"


def test_title_version_license_authors_and_keywords_agree(entities):
    codemeta, zenodo, package, root = read("codemeta.json"), read(".zenodo.json"), read("data/datapackage.json"), "./"
    crate = entities[root]
    assert {CITATION["title"]} == {codemeta["name"], zenodo["title"], crate["name"]}
    assert CITATION["title"].startswith(f"{PROJECT['name']}: ")
    versions = {each["version"] for each in (CITATION, codemeta, zenodo, package, crate)}
    assert versions == {PROJECT["version"]}
    assert {CITATION["license"], zenodo["license"], package["licenses"][0]["name"]} == {PROJECT["license"]}
    spdx = f"https://spdx.org/licenses/{PROJECT['license']}"
    assert {codemeta["license"], crate["license"]["@id"], package["licenses"][0]["path"]} == {spdx}
    assert all(each["keywords"] == PROJECT["keywords"] for each in (CITATION, codemeta, zenodo, crate))
    names = [author["name"] for author in PROJECT["authors"]]
    assert [each["name"] for each in CITATION["authors"]] == names
    assert [each["name"] for each in codemeta["author"]] == [each["name"] for each in zenodo["creators"]] == names
    assert entities[crate["author"]["@id"]]["name"] == names[0] and len(names) == 1
    assert codemeta["description"] == zenodo["description"] == crate["description"] == CITATION["abstract"]
    assert CITATION["abstract"].startswith(f"{PROJECT['description']}. ")


def test_a_release_has_the_date_that_the_changelog_has(metadata):
    dates = {read("codemeta.json").get("datePublished"), read(".zenodo.json").get("publication_date")}
    assert dates == {metadata.released()} == {str(CITATION["date-released"]) if "date-released" in CITATION else None}


def test_the_date_is_read_from_the_changelog(metadata, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.import_module(metadata.released.__module__), "ROOT", tmp_path)
    changes, older = tmp_path / "CHANGELOG.md", "\n## 0.0.1 (2001-01-01)\n"
    for heading, date in ("(unreleased)", None), ("(2031-02-03)", "2031-02-03"):
        changes.write_text(f"# Changelog\n\n## {PROJECT['version']} {heading}\n{older}")
        assert metadata.released() == date
    changes.write_text(older)
    with pytest.raises(ValueError, match=f"must have a line ## {re.escape(PROJECT['version'])}"):
        metadata.released()


def test_an_address_is_in_all_of_them_or_in_none(metadata, monkeypatch):
    address = PROJECT.get("urls", {}).get("Repository")
    assert CITATION.get("repository-code") == read("codemeta.json").get("codeRepository") == address
    facts, there = importlib.import_module(metadata.released.__module__), "https://example.org/bppsa-nb"
    monkeypatch.setitem(facts.ADDRESSES, "Repository", there)
    assert metadata.codemeta()["codeRepository"] == there and there in json.dumps(metadata.zenodo())
    entities = {each["@id"]: each for each in metadata.crate()["@graph"]}
    assert entities["bppsa_nb/__init__.py"]["codeRepository"] == there


def test_papers_have_all_their_authors_and_a_place_where_they_are(metadata):
    papers = [CITATION["preferred-citation"], *CITATION["references"]]
    assert [each["name"] for each in read("codemeta.json")["citation"]] == [each["title"] for each in papers[1:]]
    for paper, line in zip(papers, read(".zenodo.json")["references"], strict=True):
        assert all(each.keys() == {"given-names", "family-names"} for each in paper["authors"])
        assert all(name["family-names"] in line for name in paper["authors"]) and paper["title"] in line
        assert metadata.preprint(paper) is None or re.fullmatch(r"\d{4}\.\d{5}", metadata.preprint(paper))
        assert metadata.address(paper).startswith("https://")
    for each in read(".zenodo.json")["related_identifiers"]:
        form = {"arxiv": r"arXiv:\d{4}\.\d{5}", "doi": r"10\.\d+/\S+", "url": r"https://\S+"}[each["scheme"]]
        assert re.fullmatch(form, each["identifier"])
    assert set(read(".zenodo.json")) <= KNOWN_BY_ZENODO


def test_what_is_named_is_there(entities, tracked):
    named = {at for at, each in entities.items() if "File" in each["@type"]} | {"ro-crate-metadata.json"}
    named |= {f"data/{each['path']}" for each in read("data/datapackage.json")["resources"]}
    assert named.difference(tracked) == set()  # not what is on disk: figures are drawn anew, or are not there
    folders = {at for at, each in entities.items() if each["@type"] == "Dataset"} - {"./"}
    assert [at for at in folders if not any(name.startswith(at) for name in tracked)] == []
    wanted = re.compile(r"data/.*\.(csv|json)|figures/.*\.png|notebooks/.*\.ipynb")
    assert {name for name in tracked if wanted.fullmatch(name)} - named == set()


def test_everything_in_the_crate_is_reached_and_leads_on(entities):
    reached, open_ = set(), ["ro-crate-metadata.json"]
    while open_:
        at = open_.pop()
        if at not in reached:
            reached.add(at)
            open_ += re.findall(r'"@id": "([^"]*)"', json.dumps(entities[at] | {"conformsTo": None}))
    assert reached == set(entities)
    for each in entities.values():
        if each["@type"] == "CreateAction":
            kinds = [entities[at["@id"]]["@type"] for at in each["instrument"]]
            assert kinds == ["SoftwareApplication", "Product"] and len(each["result"]) == 2
        if "ImageObject" in each["@type"]:
            based = re.findall(r"data/results/[^/]*/(\w+)\.\w+\.csv", json.dumps(each["isBasedOn"]))
            assert set(based) == {Path(each["@id"]).stem}


def test_the_data_package_says_what_is_in_the_tables():
    for resource in read("data/datapackage.json")["resources"]:
        path, fields = REPO / "data" / resource["path"], resource["schema"]["fields"]
        content = path.read_bytes()
        assert resource["bytes"] == len(content)
        assert resource["hash"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        header, *rows = csv.reader(content.decode().splitlines(keepends=True))
        assert header == [each["name"] for each in fields]
        for field, cells in zip(fields, zip(*rows, strict=True), strict=True):
            assert [READ_AS[field["type"]](cell) for cell in cells if cell] != [], (resource["name"], field["name"])


@pytest.mark.full
def test_others_validators_are_content():
    done = subprocess.run([sys.executable, "docs/metadata.py", "--validate"], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
