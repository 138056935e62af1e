"""The checkout as an RO-Crate: software, notebooks, tables, the recordings that made them, and figures."""

import re
from pathlib import Path

from facts import ABSTRACT, ADDRESSES, CITATION, LICENSE_URL, PAPERS, PROJECT, ROOT, address, authors, released, tables

from bppsa_nb.machine import files
from bppsa_nb.papers import dictionary

VERSION = "https://w3id.org/ro/crate/1.2"
PYTHON = {"@id": "https://www.python.org/"}
LICENSE = {"@id": LICENSE_URL}
OURS = [{"@id": f"#author-{number}"} for number, _ in enumerate(PROJECT["authors"], 1)]
DOCUMENTS = {  # format, description
    "README.md": ("text/markdown", "What this is, and where to begin"),
    "REPRODUCTION.md": ("text/markdown", "Every claim of the papers, and what was measured here"),
    "LICENSE": ("text/plain", "The license"),
    "CITATION.cff": ("application/yaml", "How to cite"),
    "codemeta.json": ("application/ld+json", "The software in CodeMeta's words"),
    "data/README.md": ("text/markdown", "Where the data come from"),
    "data/dictionary.toml": ("application/toml", "What every column of every table is, and its unit"),
    "data/datapackage.json": ("application/json", "Every table and every column, as a Data Package"),
}
FOLDERS = {
    "bppsa_nb/": "The package",
    "data/": "Tables, and what is in them",
    "data/paper/": "Tables that the paper printed",
    "data/results/": "Reference measurements, a folder for each device",
    "figures/": "What the tables look like",
    "notebooks/": "The method, step by step",
}


def crate():
    """Make the metadata of the crate."""
    recordings = [each for table in tables() if table.origin for each in _recording(table)]
    made = list({each["@id"]: each for each in recordings}.values())
    parts = [*_documents(), _package(), *_notebooks(), *_data(), *_figures()]
    held = _held(parts)
    root = {"@id": "./", "@type": "Dataset", "name": CITATION["title"], "description": ABSTRACT}
    root |= {"version": PROJECT["version"], "license": LICENSE, "author": _one(OURS), "keywords": PROJECT["keywords"]}
    # What is not released yet is dated by its newest recording.
    root["datePublished"] = released() or max(table.origin["date"] for table in tables() if table.origin)
    root["citation"] = [{"@id": address(paper)} for paper in PAPERS]
    root["mentions"] = [_at(each) for each in made if each["@type"] == "CreateAction"]
    root["hasPart"] = held.pop("./")
    folders = [
        {"@id": place, "@type": "Dataset", "name": place, "description": _about(place), "hasPart": _one(inner)}
        for place, inner in held.items()
    ]
    descriptor = {"@id": "ro-crate-metadata.json", "@type": "CreativeWork"}
    descriptor |= {"about": {"@id": "./"}, "conformsTo": {"@id": VERSION}}
    graph = [descriptor, root, *_context(), *folders, *parts, *made]
    return {"@context": f"{VERSION}/context", "@graph": graph}


def _context():
    """List who and what is named: authors, license, language, papers."""
    for at, author in zip(OURS, PROJECT["authors"], strict=True):
        yield at | {"@type": "Organization"} | author
    words = f"{PROJECT['license']}; the text is in LICENSE"
    yield LICENSE | {"@type": "CreativeWork", "name": PROJECT["license"], "description": words, "url": LICENSE_URL}
    language = {"@type": "ComputerLanguage", "name": "Python", "version": PROJECT["requires-python"]}
    yield PYTHON | language | {"url": PYTHON["@id"]}
    for paper in PAPERS:
        article = {"@id": address(paper), "@type": "ScholarlyArticle", "name": paper["title"], "url": address(paper)}
        article["creditText"] = ", ".join(" ".join(names) for names in authors(paper))
        yield article | ({"datePublished": str(paper["year"])} if "year" in paper else {})


def _file(place, kind, name, description, *types):
    """Describe a file; `types` are what it is besides."""
    described = {"@id": place, "@type": _one(["File", *types]), "name": name, "description": description}
    return described | {"encodingFormat": kind}


def _documents():
    return [_file(place, kind, place, words) for place, (kind, words) in DOCUMENTS.items()]


def _package():
    kind, place = "text/x-python", "bppsa_nb/__init__.py"
    package = _file(place, kind, PROJECT["name"], PROJECT["description"], "SoftwareSourceCode")
    package |= {"version": PROJECT["version"], "author": _one(OURS), "programmingLanguage": PYTHON}
    return package | ({"codeRepository": ADDRESSES["Repository"]} if "Repository" in ADDRESSES else {})


def _notebooks():
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        title = "".join(files.read_json(path)["cells"][0]["source"]).partition("\n")[0].removeprefix("# ")
        place, kind = f"notebooks/{path.name}", "application/x-ipynb+json"
        notebook = _file(place, kind, title, f"Notebook {path.name.partition('_')[0]}", "SoftwareSourceCode")
        yield notebook | {"programmingLanguage": PYTHON}


def _data():
    for table in tables():
        columns = [f"{each['name']} ({each['unit']})" if each["unit"] else each["name"] for each in table.fields]
        known = {"contentSize": str(table.path.stat().st_size), "variableMeasured": columns}
        yield _file(table.place, "text/csv", table.title, table.source) | known
        words = "Where the table comes from, and the types of its columns"
        beside = _file(_beside(table), "application/json", _beside(table).rpartition("/")[2], words)
        yield beside | {"about": {"@id": table.place}}


def _figures():
    """List a picture for every experiment that has a reference, and the tables that it is drawn from."""
    drawn = {}
    for table in tables():
        if table.origin and table.origin["name"] not in dictionary.read()["tables"]:
            drawn.setdefault(table.origin["name"], []).append(table)
    for name, known in sorted(drawn.items()):
        words = f"Drawn by `bppsa-nb figures --only {name}`"
        quick = [table for table in known if table.origin["scale"] == "quick"]  # what `make figures` draws
        based = [{"@id": table.place} for table in quick or known]
        figure = _file(f"figures/{name}.png", "image/png", known[0].title, words, "ImageObject")
        yield figure | {"isBasedOn": _one(based)}


def _recording(table):
    """Yield a recording, the software that made it, and the machine."""
    origin, name = table.origin, f"{table.origin['device']}/{table.path.stem}"
    commit = origin["commit"][:10]
    software = {"@id": f"#{PROJECT['name']}-{commit}", "@type": "SoftwareApplication"}
    software |= {"name": f"{PROJECT['name']} at commit {commit}", "version": origin["commit"]}
    software["url"] = ADDRESSES.get("Repository") or {"@id": "bppsa_nb/"}
    slug = re.sub("[^a-z0-9]+", "-", table.machine.lower()).strip("-")
    machine = {"@id": f"#machine-{slug}", "@type": "Product", "name": table.machine}
    action = {"@id": f"#recording-{name.replace('/', '-')}", "@type": "CreateAction", "name": f"Recording of {name}"}
    action |= {"endTime": origin["date"], "instrument": [_at(software), _at(machine)]}
    yield from (action | {"result": [{"@id": table.place}, {"@id": _beside(table)}]}, software, machine)


def _held(parts):
    """Return which files and folders are in each folder, from "./" down."""
    held = {"./": []}
    for each in parts:
        place = each["@id"]
        while place != "./":
            folder = place.removesuffix("/").rpartition("/")[0]
            inner = held.setdefault(f"{folder}/" if folder else "./", [])
            if {"@id": place} not in inner:
                inner.append({"@id": place})
            place = f"{folder}/" if folder else "./"
    return held


def _about(folder):
    return FOLDERS.get(folder) or f"Reference measurements on {Path(folder).name}"


def _beside(table):
    return table.place.removesuffix(".csv") + ".json"


def _at(entity):
    return {"@id": entity["@id"]}


def _one(values):
    """Return a list, or what it holds if that is one, as RO-Crate asks for."""
    return values[0] if len(values) == 1 else values
