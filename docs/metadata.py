"""Make what machines read of the project: codemeta.json, .zenodo.json, ro-crate-metadata.json, data/datapackage.json.

    python docs/metadata.py              # write them
    python docs/metadata.py --check      # say which differ from what would be written, and fail if any does
    python docs/metadata.py --validate   # have others' validators look at them

They are made from pyproject.toml, CITATION.cff, CHANGELOG.md, and the tables in data/ with data/dictionary.toml; so
none of them changes when figures are drawn or measured anew.
"""

import argparse
import hashlib
import json
import re
import socket
import subprocess
import sys

from crate import crate
from facts import (
    ABSTRACT,
    ADDRESSES,
    CITATION,
    LICENSE_URL,
    PAPERS,
    PROJECT,
    ROOT,
    address,
    authors,
    preprint,
    released,
    tables,
)

from bppsa_nb.machine import files
from bppsa_nb.papers import dictionary

KINDS = {"int64": "integer", "float64": "number", "str": "string", "bool": "boolean"}
WIDTH = 160  # of a column in one line
CODEMETA = """import json, pydantic_codemeta
document = json.load(open("codemeta.json", encoding="utf-8"))
unknown = pydantic_codemeta.CodeMeta.from_jsonld(document).model_extra
raise SystemExit(f"unknown: {unknown}" if unknown else print("codemeta.json is CodeMeta"))"""
# Others' validators: the package, its command, and a host without which it cannot work.
VALIDATORS = [
    ("cffconvert", ["cffconvert", "--validate", "-i", "CITATION.cff"], None),
    ("pydantic-codemeta", ["python", "-c", CODEMETA], None),
    ("roc-validator", ["rocrate-validator", "-y", "validate", "--no-paging", "."], "w3id.org"),
    ("frictionless", ["frictionless", "validate", "data/datapackage.json"], None),
]


def codemeta():
    """Describe the software in CodeMeta's words."""
    described = {
        "@context": "https://w3id.org/codemeta/3.0",
        "@type": "SoftwareSourceCode",
        "identifier": PROJECT["name"],
        "name": CITATION["title"],
        "description": ABSTRACT,
        "version": PROJECT["version"],
        "license": LICENSE_URL,
        "author": [{"@type": "Organization"} | each for each in PROJECT["authors"]],
        "keywords": PROJECT["keywords"],
        "programmingLanguage": "Python",
        "runtimePlatform": f"Python {PROJECT['requires-python']}",
        "softwareRequirements": [_requirement(line) for line in PROJECT["dependencies"]],
        "readme": "README.md",
        "releaseNotes": "CHANGELOG.md",
        "referencePublication": _article(PAPERS[0]),
        "citation": [_article(paper) for paper in PAPERS[1:]],
    }
    called = {"Repository": "codeRepository", "Homepage": "url", "Issues": "issueTracker"}
    described |= {theirs: ADDRESSES[label] for label, theirs in called.items() if label in ADDRESSES}
    return described | ({"datePublished": released()} if released() else {})


def _requirement(line):
    name, bounds = re.fullmatch(r"([\w.-]+)(.*)", line).groups()
    return {"@type": "SoftwareSourceCode", "identifier": name, "name": name, "version": bounds}


def _article(paper):
    named = [{"@type": "Person", "givenName": given, "familyName": family} for given, family in authors(paper)]
    said = {"@type": "ScholarlyArticle", "@id": address(paper), "name": paper["title"], "author": named}
    return said | ({"datePublished": str(paper["year"])} if "year" in paper else {})


def zenodo():
    """Describe a deposit at Zenodo."""
    known = [
        {"identifier": each["value"], "relation": "references", "scheme": "doi" if each["type"] == "doi" else "arxiv"}
        for paper in PAPERS
        for each in paper.get("identifiers", ())
    ]
    if "Repository" in ADDRESSES:
        known.append({"identifier": ADDRESSES["Repository"], "relation": "isSupplementTo", "scheme": "url"})
    described = {
        "upload_type": "software",
        "title": CITATION["title"],
        "description": ABSTRACT,
        "version": PROJECT["version"],
        "creators": PROJECT["authors"],
        "keywords": PROJECT["keywords"],
        "license": PROJECT["license"],
        "access_right": "open",
        "language": "eng",
        "related_identifiers": known,
        "references": [_in_words(paper) for paper in PAPERS],
    }
    return described | ({"publication_date": released()} if released() else {})


def _in_words(paper):
    """Cite a paper in a line."""
    where = [paper.get("collection-title"), f"arXiv:{preprint(paper)}" if preprint(paper) else address(paper)]
    where = ", ".join(filter(None, [*where, str(paper.get("year", ""))]))
    return f"{', '.join(' '.join(names) for names in authors(paper))}. {paper['title']}. {where}"


def datapackage():
    """Describe every table, and every column of it, as a Data Package."""
    return {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": f"{PROJECT['name']}-data",
        "title": f"Tables of {PROJECT['name']}",
        "description": "Reference measurements (results), and tables that the paper printed (paper). A cell is empty "
        "where nothing was measured. Units are explained; a field without one is text, yes or no, or a count.",
        "version": PROJECT["version"],
        "licenses": [{"name": PROJECT["license"], "path": LICENSE_URL}],
        "contributors": [{"title": each["name"], "roles": ["author"]} for each in PROJECT["authors"]],
        "units": dictionary.read()["units"],
        "resources": [_resource(table) for table in tables()],
    }


def _resource(table):
    content, place = table.path.read_bytes(), table.place.removeprefix("data/")
    name = place.removeprefix("results/").removesuffix(".csv")
    resource = {"name": name, "title": table.title, "description": table.source}
    resource |= {"type": "table", "path": place, "format": "csv", "mediatype": "text/csv", "encoding": "utf-8"}
    resource |= {"bytes": len(content), "hash": f"sha256:{hashlib.sha256(content).hexdigest()}"}
    if table.origin is None:
        resource["sources"] = [{"title": table.described["paper"]}]
    return resource | {"schema": {"fields": [_field(each) for each in table.fields], "missingValues": [""]}}


def _field(field):
    described = {"name": field["name"], "type": KINDS[field["type"]]}
    if field["type"] == "bool":
        described |= {"trueValues": ["True"], "falseValues": ["False"]}
    return described | ({"unit": field["unit"]} if field["unit"] else {}) | {"description": field["means"]}


MADE = {
    "codemeta.json": codemeta,
    ".zenodo.json": zenodo,
    "data/datapackage.json": datapackage,
    "ro-crate-metadata.json": crate,
}


def text(value, indent=0):
    """Write JSON to be read: what fits into a line is on one, and short values fill lines."""
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or indent + len(line) < WIDTH:
        return line
    inner, ends = indent + 1, "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {text(each, inner)}" for key, each in value.items()]
    else:
        parts = [text(each, inner) for each in value]
    lines = []
    for part in parts:
        fits = lines and ends == "[]" and len(part) < WIDTH / 2 and inner + len(lines[-1]) + len(part) + 2 < WIDTH
        if fits and "\n" not in lines[-1]:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    separator = ",\n" + " " * inner
    return f"{ends[0]}\n{' ' * inner}{separator.join(lines)}\n{' ' * indent}{ends[1]}"


def differing():
    """Return what is not as it would be written, and that."""
    made = {name: text(make()) + "\n" for name, make in MADE.items()}
    paths = {name: ROOT / name for name in made}
    there = {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()}
    return {name: wanted for name, wanted in made.items() if there.get(name) != wanted}


def validate():
    """Run the validators, each in an environment of its own; return those that are not content."""
    failed = []
    for package, command, host in VALIDATORS:
        try:
            print(f"{package}{f', which asks {host}' if host else ''}:", flush=True)
            if host:
                socket.getaddrinfo(host, 443)
        except OSError:
            print(f"left out: {host} cannot be reached")
            continue
        how = [sys.executable, "-m", "uv", "tool", "run", "--from", package]
        if subprocess.run([*how, *command], cwd=ROOT).returncode:
            failed.append(package)
    return failed


def main():
    """Write the files, or do what is asked for instead."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--check", action="store_true", help="say which files differ, and write none")
    instead.add_argument("--validate", action="store_true", help="run the validators, and write nothing")
    chosen = parser.parse_args()
    if chosen.validate:
        failed = validate()
        sys.exit(f"not content: {', '.join(failed)}" if failed else 0)
    found = differing()
    for name, wanted in found.items():
        if chosen.check:
            print(f"{name} differs: `python docs/metadata.py` writes it")
        else:
            with files.atomic_write(ROOT / name, "w") as file:
                file.write(wanted)
            print(f"{name}: {len(wanted.encode()) / 1e3:.0f} kB")
    sys.exit(1 if chosen.check and found else 0)


if __name__ == "__main__":
    main()
