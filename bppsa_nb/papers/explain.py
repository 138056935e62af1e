"""Where a figure comes from: its table, the lines that measured and drew it, the cells that show it, its claims."""

import inspect
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bppsa_nb.machine import files
from bppsa_nb.papers import dictionary, experiment, experiments, provenance, verdicts


class Lines(NamedTuple):
    """Lines of a file, whose path is relative to the checkout."""

    path: str
    first: int
    last: int

    def __str__(self):
        return f"{self.path}:{self.first}"


class Cell(NamedTuple):
    """A cell of a notebook, by its number from 1 and its identifier, that draws a figure or shows it."""

    notebook: str
    number: int
    identifier: str
    draws: bool


@dataclass(frozen=True)
class Explained:
    """Where a figure comes from. Paths are texts, relative to the checkout; None or empty is what is not there."""

    name: str
    title: str
    kind: str  # how its numbers were made, one of `experiment.ORIGINS`
    measured: Lines  # the function `measure`
    drawn: Lines  # the function `plot`
    sources: list[str]  # other tables that it reads
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
        scale = "" if origin["scale"] == "quick" else f" --scale {origin['scale']}"
        seed = f" --seed {origin['seed']}" if origin["seed"] else ""
        reference = " --reference" if origin.get("reference") else ""
        draw = self.origin and f"bppsa-nb draw {self.name}{scale} --of {origin['device']}{reference}"
        return f"bppsa-nb measure {self.name}{scale}{seed}", draw


def explain(name, scale=None, device=None):
    """Find out where a figure comes from; measure and draw nothing. Raises what `experiments.load` and `table` do.

    The table is the one that the picture in `figures/` was drawn from, or what has taken its place since. With a scale
    or a device, or without a picture, it is the one that `experiments.table` reads.
    """
    module, shown, reference = experiments.load(name), None, False
    path = files.root() / "figures" / f"{name}.json"
    if scale is None and device is None and path.is_file():
        try:
            shown = files.read_json(path)["provenance"]
            scale, device, reference = shown["scale"], shown["device"], shown["reference"]
        except (TypeError, KeyError) as error:
            raise files.CorruptFileError(f"{path} is damaged: {error!r}; draw the figure again") from error
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
        places = experiments.needed(name, scale, device)
        sources = [relative(path) for paths in places.values() for path in paths]
        sources = [path for path in sources if path != found["table"]]
        sources += [f"{need}, not recorded yet" for need in module.FIGURE.needs if not places.get(need)]
    return Explained(
        name=name, title=experiment.title(module), kind=module.FIGURE.origin, measured=lines(module.measure),
        drawn=lines(module.plot), sources=sources, cells=cells().get(name, []),
        picture=shown and relative(path.with_suffix(".png")),
        drawn_from_it=shown is not None and shown == found["origin"], **found,
    )


def text(found, decided):
    """Put what `explain` found into lines, and those of the evaluated claims that the figure decides."""
    origin, (again, draw) = found.origin, found.commands
    code = [("measured by", f"{found.measured} (measure)"), ("drawn by", f"{found.drawn} (plot)")]
    said = [("numbers", found.kind), *code]
    if found.lacking:
        said.append(("table", f"none: {found.lacking}"))
    else:
        whose = "a reference" if origin["reference"] else "measured here"
        seed = f"scale {origin['scale']}, seed {origin['seed']}, data {origin['data']}"
        said.append(("table", f"{found.table}, {whose}; its .json says where it comes from"))
        said += [("", f"{provenance.words(origin)}, {seed}"), ("made again by", again), ("drawn again by", draw)]
    said += [("takes rows from", path) for path in found.sources]
    if found.picture:
        drawn = "drawn from this table" if found.drawn_from_it else "drawn from another table"
        said.append(("picture", f"{found.picture}, {drawn}"))
    for cell in found.cells:
        what, where = "draws it" if cell.draws else "shows it", f"#cell-id={cell.identifier}"
        said.append(("notebook", f"notebooks/{cell.notebook}.ipynb, cell {cell.number} {what}, {where}"))
    for entry, _, origins, verdict in [each for each in decided if each.entry.experiment == found.name]:
        where = f" ({provenance.machine(origins[0])}, {origins[0]['scale']})" if origins else ""
        said.append(("claim", f"{verdict}{where}: {entry.claim.where}, {entry.claim.says}"))
    said = [f"{found.name}: {found.title}", *(f"  {key:<16}{value}" for key, value in said)]
    if found.columns:
        rows = [(each["name"], each["unit"] or "", each["means"]) for each in found.columns]
        rows.insert(0, ("column", "unit", "what it is"))
        wide = [max(len(row[place]) for row in rows) for place in (0, 1)]
        said += [f"  {name:<{wide[0]}}  {unit:<{wide[1]}}  {means}" for name, unit, means in rows]
    return "\n".join(said)


def evaluated(names=None):
    """Evaluate the claims that figures decide, by default all."""
    return [verdicts.evaluate(each) for each in verdicts.entries() if names is None or each.experiment in names]


def lines(function):
    """Return the lines of a function's code, as the file has them now."""
    text, first = inspect.getsourcelines(function)
    return Lines(relative(inspect.getsourcefile(function)), first, first + len(text) - 1)


def relative(path):
    """Return a path as a text, relative to the checkout where it is in it."""
    path, root = Path(path).resolve(), files.root().resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def cells(folder=None):
    """Find the cells of a folder's notebooks that draw or show figures: a dict of lists of `Cell`, by figure."""
    return _cells(folder or files.root() / "notebooks")


@cache
def _cells(folder):
    found = {}
    for path in sorted(folder.glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], 1):
            source, place = "".join(cell["source"]), (path.stem, number, cell["id"])
            draws = cell["cell_type"] == "code"
            names = _drawn(source) if draws else re.findall(r"\(\.\./figures/(\w+)\.\w+", source)
            for name in dict.fromkeys(names):
                found.setdefault(name, []).append(Cell(*place, draws))
    return found


def _drawn(source):
    """Name the figures that a cell's code draws."""
    recorded = r'experiments\.(?:measured|run|table)\(\s*"(\w+)"'
    tables = dict(re.findall(rf"^(\w+) = {recorded}", source, re.MULTILINE))
    drawn = [tables[each] for each in re.findall(r"experiments\.draw\((\w+)\)", source)]
    drawn += re.findall(rf"experiments\.draw\({recorded}", source)
    return drawn + re.findall(r'experiments\.make\(\s*"(\w+)"', source)


def drawn_by_no_notebook():
    """Name the figures that no notebook draws, but for those that wait for a recording."""
    others = [name for name in experiments.names() if not any(cell.draws for cell in cells().get(name, []))]
    return [name for name in others if experiments.load(name).FIGURE.origin != "waiting"]


def _columns(name, kinds):
    """Describe a table's columns; those of an experiment that the dictionary does not know have no words yet."""
    described = []
    for column, kind in kinds.items():
        try:
            described += dictionary.fields(name, {column: kind})
        except (LookupError, FileNotFoundError) as error:
            described.append({"name": column, "type": kind, "unit": None, "means": str(error)})
    return described
