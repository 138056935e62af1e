"""Where a figure comes from: its table, the lines that measured and drew it, the cells that show it, its claims."""

import inspect
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bppsa_nb.machine import files
from bppsa_nb.papers import dictionary, experiments, provenance
from bppsa_nb.papers.claims import Claim, claims
from bppsa_nb.papers.report import evaluate


class Lines(NamedTuple):
    """Lines of a file, whose path is relative to the checkout."""

    path: str
    first: int
    last: int

    def __str__(self):
        return f"{self.path}:{self.first}"


class Cell(NamedTuple):
    """A cell of a notebook, by its number from 1 and its identifier, that `draws` a figure or shows it."""

    notebook: str
    number: int
    identifier: str
    draws: bool

    @property
    def fragment(self):
        """What stands behind the address of the notebook in JupyterLab, where it is open, to go to the cell."""
        return f"#cell-id={self.identifier}"


class Source(NamedTuple):
    """A recording, or a table of a paper, that an experiment takes rows from; and the lines that record it."""

    path: str | None  # None where nothing is recorded yet
    recorded: list[Lines]


class Evaluated(NamedTuple):
    """A claim with its number in the report, what we found, where, and the verdict."""

    number: int
    claim: Claim
    ours: str
    origin: dict | None
    verdict: str


@dataclass(frozen=True)
class Facts:
    """Where a figure comes from. Paths are texts, relative to the checkout; None or empty is what is not there."""

    name: str
    title: str
    measured: Lines  # the function `measure`
    drawn: Lines  # the function `plot`
    then: Lines | None  # `measure` in the commit that recorded the table, where git has that
    same: bool  # whether it read as it does now
    sources: list[Source]  # besides what it measures
    cells: list[Cell]
    picture: str | None  # where it was asked for
    drawn_from_it: bool  # whether the picture was drawn from this table
    lacking: str | None  # why there is no table; what follows is None or empty then
    table: str | None  # the CSV; the JSON beside it has the same name
    origin: dict | None  # the table's provenance
    columns: list[dict]  # `dictionary.fields`

    @property
    def commands(self):
        """The command that measures the table again, and the one that draws the figure from it, measuring nothing."""
        origin = self.origin or {"scale": "quick", "seed": 0}
        command = f"bppsa-nb figures --only {self.name} --scale {origin['scale']}"
        seed = f" --seed {origin['seed']}" if origin["seed"] else ""
        reference = " --reference" if origin.get("reference") else ""
        return command + seed, self.origin and f"{command} --device {origin['device']}{reference}"


def facts(name, scale=None, device=None):
    """Find out where a figure comes from; measure and draw nothing. Raises what `experiments.load` and `table` do.

    The table is the one that the picture in `figures/` was drawn from, or what has taken its place since. With a scale
    or a device, or without a picture, it is the one that `experiments.table` reads.
    """
    module, shown, reference = experiments.load(name), None, False
    path = files.root() / "figures" / f"{name}.json"
    if scale is None and device is None and path.is_file():
        shown = files.read_json(path)["provenance"]
        scale, device, reference = shown["scale"], shown["device"], shown["reference"]
    scale, found = scale or "quick", {"lacking": None, "table": None, "origin": None, "columns": []}
    with experiments.references(reference):
        try:
            table = experiments.place(name, scale, device)
        except FileNotFoundError as error:
            found["lacking"] = str(error)
        else:
            found["table"] = relative(table)
            found["origin"] = experiments.table(name, scale, device).attrs["provenance"]
            found["columns"] = _columns(name, files.read_json(table.with_suffix(".json"))["columns"])
        sources = _sources(module, scale, device or provenance.device())
    then, text = _then(name, found["origin"])
    return Facts(
        name=name,
        title=experiments.title(name),
        measured=lines(module.measure),
        drawn=lines(module.plot),
        then=then,
        same=text == inspect.getsource(module.measure),
        sources=[source for source in sources if source.path is None or source.path != found["table"]],
        cells=cells(files.root() / "notebooks").get(name, []),
        picture=shown and relative(path.with_suffix(".png")),
        drawn_from_it=shown is not None and shown == found["origin"],
        **found,
    )


def text(found, decided):
    """Put `facts` into lines, and those of the evaluated claims that the figure decides."""
    origin, (again, draw) = found.origin, found.commands
    made = "measured" if not origin or not origin.get("collected") else "put together"  # nothing was timed
    said = [(f"{made} by", f"{found.measured} (measure)"), ("drawn by", f"{found.drawn} (plot)")]
    if found.then:
        what = "reads the same" if found.same else "reads differently"
        said.insert(1, ("", f"git show {origin['commit'][:10]}:{found.then.path}, line {found.then.first}, {what}"))
    if found.lacking:
        said.append(("table", f"none: {found.lacking}"))
    else:
        whose = "a reference" if origin["reference"] else "measured here"
        seed = f"scale {origin['scale']}, seed {origin['seed']}, data {origin['data']}"
        said.append(("table", f"{found.table}, {whose}; its .json says where it comes from"))
        said += [("", f"{provenance.words(origin)}, {seed}"), ("made again by", again), ("drawn again by", draw)]
    for path, recorded in found.sources:
        by = f"recorded by {', '.join(map(str, recorded))}" if recorded else "as the paper printed it"
        said.append(("takes rows from", f"{path or 'what is not there yet'}, {by}"))
    if found.picture:
        drawn = "drawn from this table" if found.drawn_from_it else "drawn from another table"
        said.append(("picture", f"{found.picture}, {drawn}"))
    for cell in found.cells:
        what = "draws it" if cell.draws else "shows it"
        said.append(("notebook", f"notebooks/{cell.notebook}.ipynb, cell {cell.number} {what}, {cell.fragment}"))
    for each in [each for each in decided if each.claim.experiment == found.name]:
        where = f" ({provenance.machine(each.origin)}, {each.origin['scale']})" if each.origin else ""
        said.append(("claim", f"{each.verdict}{where}: {each.claim.where}, {each.claim.says}"))
    said = [f"{found.name}: {found.title}", *(f"  {key:<16}{value}" for key, value in said)]
    if found.columns:
        rows = [(each["name"], each["unit"] or "", each["means"]) for each in found.columns]
        rows.insert(0, ("column", "unit", "what it is"))
        wide = [max(len(row[place]) for row in rows) for place in (0, 1)]
        said += [f"  {name:<{wide[0]}}  {unit:<{wide[1]}}  {means}" for name, unit, means in rows]
    return "\n".join(said)


def evaluated(names=None):
    """Evaluate the claims that figures decide, by default all; their numbers are those of the whole report."""
    known = [(n, claim) for n, claim in enumerate(claims(), 1) if names is None or claim.experiment in names]
    found = [(number, claim, *evaluate(claim)) for number, claim in known]
    return [Evaluated(*each, origins[0] if origins else None, verdict) for *each, origins, verdict in found]


def lines(function):
    """Return the lines of a function's code, as the file has them now."""
    text, first = inspect.getsourcelines(function)
    return Lines(relative(inspect.getsourcefile(function)), first, first + len(text) - 1)


def _then(name, origin):
    """Return the lines of `measure` in the commit that recorded a table, and their text; None if git has not both."""
    if not origin or not origin["commit"] or origin["dirty"] or name not in (there := _measuring(origin["commit"])):
        return None, None
    path, first = there[name]
    text = inspect.getblock(provenance.git("show", f"{origin['commit']}:{path}").decode().splitlines(True)[first - 1 :])
    return Lines(path, first, first + len(text) - 1), "".join(text)


@cache
def _measuring(commit):
    """Find where each experiment's `measure` was at a commit: path and line, by the experiment's name."""
    found = (provenance.git("grep", "-n", "^def measure(", commit, "--", "bppsa_nb") or b"").decode().splitlines()
    places = [line.split(":")[1:3] for line in found]
    return {re.sub(r"^figures?(_\d+)+_", "", Path(path).stem): (path, int(number)) for path, number in places}


def relative(path):
    """Return a path as a text, relative to the checkout where it is in it."""
    path, root = Path(path).resolve(), files.root().resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


@cache
def cells(folder):
    """Find the cells of a folder's notebooks that draw or show figures: a dict of lists of `Cell`, by figure."""
    found = {}
    for path in sorted(folder.glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], 1):
            source, draws = "".join(cell["source"]), cell["cell_type"] == "code"
            for name in dict.fromkeys(_drawn(source) if draws else re.findall(r"\(\.\./figures/(\w+)\.\w+", source)):
                found.setdefault(name, []).append(Cell(path.stem, number, cell["id"], draws))
    return found


def _drawn(source):
    """Name the figures that a cell's code draws, of tables that it reads or measures."""
    recorded = r'experiments\.(?:measured|run|table)\(\s*"(\w+)"'
    tables = dict(re.findall(rf"^(\w+) = {recorded}", source, re.MULTILINE))
    drawn = re.findall(r"experiments\.draw\((\w+)\)", source)
    named = re.findall(rf'experiments\.(?:make\(\s*"(\w+)"|draw\({recorded})', source)
    return [*(tables[each] for each in drawn), *(one or other for one, other in named)]


def _columns(name, kinds):
    """Describe a table's columns; those of an experiment that the dictionary does not know have no words yet."""
    try:
        return dictionary.fields(name, kinds)
    except (LookupError, FileNotFoundError) as error:
        return [{"name": column, "type": kind, "unit": None, "means": str(error)} for column, kind in kinds.items()]


def _sources(module, scale, device):
    """Find the tables that an experiment reads, named in calls of its module, or of helpers that this calls."""
    text, paper = inspect.getsource(module), module.__name__.rpartition(".")[0]
    for helper, name in set(re.findall(r"\b(\w+)\.(\w+)", text)):
        function = getattr(vars(module).get(helper), name, None)
        if inspect.isfunction(function) and function.__module__.startswith(paper):
            text += inspect.getsource(function)
    found = {}
    named = r'\b(recorded\.collect|\w+\.recording|experiments\.table)\(\s*"(\w+)"(?:, "(\w+)")?'
    for call, name, at in re.findall(named, text):
        one = call == "experiments.table"
        wanted = at or (scale if one else "paper")
        devices = [folder for folder, recorded in experiments.recordings(name) if recorded == wanted]
        devices = [device] if one and device in devices else devices[:1] if one else devices
        by = _recorders(name)
        if not by and name in experiments.names():
            by = [lines(experiments.load(name).measure)]
        found |= {relative(experiments.place(name, wanted, each)): by for each in devices} or {None: by}
    if "published.table(" in text:
        printed = sorted((files.root() / "data/paper").glob("*.csv"))
        found |= {relative(path): [] for path in printed if f'"{path.stem}"' in text}
    return [Source(*each) for each in found.items()]


def _recorders(name):
    """Find the lines of benchmarks that record a table."""
    found = []
    for path in sorted((files.root() / "benchmarks").glob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(rf'\byield "{name}"|\brecord\(.*"{name}"', line):
                found.append(Lines(relative(path), number, number))
    return found
