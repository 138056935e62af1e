"""One module per figure or table of the papers: which there are, their tables, and their pictures.

`experiment.py` says what such a module has. Its `measure` may set the table's `attrs["data"]` ("real", "synthetic" or
"stand-in"; "synthetic" if it does not); other attrs are kept as notes.

Recordings are in two folders: references in `data/results/`, which git tracks; what was measured here in
`data/measured/`, which git ignores. What is measured goes to the latter, and is preferred to a reference. Within
`with references():` there are references only, and what is measured becomes one.
"""

import hashlib
import re
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path

from bppsa_nb.machine import files, process
from bppsa_nb.machine.checks import check_choice, generator
from bppsa_nb.papers import bppsa, experiment, figures, forward, gru, multigrid, ooo, provenance, tables, words
from bppsa_nb.papers.progress import Progress, read_saved

PAPERS = bppsa, gru, ooo, multigrid, forward  # in the order of the report
SCALES = ("quick", "paper")  # a laptop's minute, and the paper's own sizes
MEASURED, REFERENCES = "measured", "results"  # folders in data/
# Those in use, the preferred one first, which is also where tables are recorded.
_used = ContextVar("folders", default=(MEASURED, REFERENCES))
PEERS = {"torch": "PyTorch", "cudnn": "cuDNN", "jax": "JAX"}  # that benchmarks ran, by the notes of their tables


def names():
    """List the experiments, sorted; none of them is imported.

    Each has the name of its file, such as "figure_08", or what stands behind the figure's number, such as
    "micro_batches".
    """
    return sorted(name for name, path in _modules() if _is_experiment(path))


@process.explained()
def load(name):
    """Import an experiment's module; a ValueError lists all there are if there is no such experiment."""
    for known, path in _modules():
        if known == name and _is_experiment(path):
            return import_module(f"bppsa_nb.papers.{path.parent.name}.{path.stem}")
    raise ValueError(f"name must be an experiment, one of {', '.join(names())}; got {name!r}")


def _modules():
    """Yield the name that each module has as an experiment, and its path."""
    for paper in PAPERS:
        for path in (path for folder in paper.__path__ for path in Path(folder).glob("*.py")):
            yield re.sub(r"^figures?(_\d+)+_", "", path.stem), path


def _is_experiment(path):
    return "\nFIGURE = " in path.read_text(encoding="utf-8")


@contextmanager
def references(wanted=True):
    """Read references only, and record what is measured as a reference, saying what it replaces; if `wanted`.

    Where no commit has the source, `run` then raises a ValueError before anything is measured.
    """
    before = _used.set((REFERENCES,) if wanted else _used.get())
    try:
        yield
    finally:
        _used.reset(before)


def run(name, scale="quick", seed=0, progress=True):
    """Measure an experiment on this machine, record its table, and return it as `table` reads it.

    It is written to `data/measured/<device>/<name>.<scale>.csv`, a `.json` of provenance beside it. Of a run that is
    stopped, the points measured so far are kept; the next one goes on from there. A complete table is measured afresh.
    """
    module = load(name)
    check_choice("scale", scale, SCALES)
    now = _described(name, scale, seed)
    if _used.get()[0] == REFERENCES:
        provenance.check_committed()
    path = _path(now, _used.get()[0])
    sweep = Progress(path.with_suffix(".partial.json"), now, show=progress)
    found = module.measure(scale, generator(seed, "seed"), sweep)
    if module.FIGURE.backend:
        found.attrs["backend"] = module.FIGURE.backend
    _write(found, now)
    sweep.finish()
    return _read(path)


def measured(name, scale="quick", seed=0, progress=True):
    """Return what this very source measured here before, whatever its commit is called, or else `run` it now.

    That is so only if other tables that it reads are the same, too. What is put together of recordings is so anew.
    Where a data set was downloaded since, what another one stood in for is measured again.
    """
    now = _described(name, scale, seed)
    if (now["device"], scale) in recordings(name, MEASURED):
        path = _path(now, MEASURED)
        found = _read(path)
        origin = found.attrs["provenance"]
        same = all(origin.get(key) == now[key] for key in now.keys() - {"commit", "dirty", "date"})
        same = same and load(name).FIGURE.origin != "collected"
        if same and not (origin["data"] == "stand-in" and _fetched_since(path)):
            return found
    return run(name, scale, seed, progress)


def record(table, name, scale, seed, notes=None):
    """Record, for this machine, a table that was measured elsewhere, such as a benchmark's; return its place, a text.

    It is a pandas.DataFrame, or, as a machine with a GPU may lack pandas, rows and the table's attrs as `notes`, both
    as for `tables.write`. `name` need not be an experiment.
    """
    return _write(table, provenance.describe(name, scale, seed), notes)


def table(name, scale="quick", device=None):
    """Read a recorded table: what was measured here, or else the reference.

    The device is a machine's folder, such as "cpu" or "nvidia-h200"; by default this machine's, or else the first that
    has a recording. ``attrs["provenance"]`` says where the table comes from, and whether it is a `reference`. If there
    is no recording, a FileNotFoundError says how to make one.
    """
    return _read(place(name, scale, device))


def place(name, scale="quick", device=None):
    """Return the path of the CSV that `table` reads, its arguments the same."""
    if not recordings(name):
        load(name)
    check_choice("scale", scale, SCALES)
    recorded = [folder for folder, recorded_scale in recordings(name) if recorded_scale == scale]
    if device is None:
        device = min(recorded, key=lambda folder: folder != provenance.device(), default=None)
    if device not in recorded:
        what, flag = ("recording", "") if MEASURED in _used.get() else ("reference", " --reference")
        where = "for any machine" if device is None else f"for {device!r}"
        where += "".join(f"; there is scale {each} for {folder}" for folder, each in recordings(name))
        raise FileNotFoundError(
            f"no {what} of {name} at scale {scale} {where}; "
            f"`bppsa-nb measure {name} --scale {scale}{flag}` makes one for this machine"
        )
    paths = [folder / device / f"{name}.{scale}.csv" for folder in _folders(_used.get())]
    return next(path for path in paths if path.with_suffix(".json").exists())


def recordings(name, folder=None):
    """List the recordings of an experiment or a benchmark, (device, scale) of each: all, or those in one `folder`."""
    recorded = {}  # an ordered set
    for scale in SCALES:
        for place in _folders([folder] if folder else _used.get()):
            recorded |= {(path.parent.name, scale): None for path in sorted(place.glob(f"*/{name}.{scale}.json"))}
    return list(recorded)


def collect(name, command="python benchmarks/run.py"):
    """Put together what a benchmark recorded at the paper's scale, on all machines.

    Rows get a column `machine`, which names processor, peers and date. Where there is no recording, a FileNotFoundError
    says which `command` makes one.
    """
    import pandas

    devices = [device for device, scale in recordings(name) if scale == "paper"]
    if not devices:
        raise FileNotFoundError(f"no recording of {name}; `{command}` makes one")
    parts, kinds = [], set()
    for device in devices:
        part = table(name, "paper", device)
        origin = part.attrs["provenance"]
        kinds.add(origin["data"])
        processor = origin["gpu"] or f"{origin['cpu']}, {origin['cores']} cores"
        versions = [f"{title} {part.attrs[key]}" for key, title in PEERS.items() if key in part.attrs]
        machine = ", ".join([processor, *versions, origin["date"]])
        if "backend" not in part:
            part = part.assign(backend=origin["backend"] or "cpu")
        parts.append(part.assign(machine=machine))
    found = pandas.concat(parts, ignore_index=True)
    found.attrs["data"] = kinds.pop() if len(kinds) == 1 else "stand-in"
    return found


def draw(table):
    """Draw a table from `run` or `table`, save the picture to `figures/`, and return what a notebook shows."""
    provenance, said = table.attrs["provenance"], said_of(table)
    origin = load(provenance["name"]).FIGURE.origin
    with _plotted(table) as fig:
        path = figures.save(fig, provenance["name"], **said, provenance=provenance, origin=origin)
    return figures.Shown(path, said["alt"])


def vector(table):
    """Return what `draw` draws, without words below it, as the text of an SVG; None if that is too large."""
    with _plotted(table) as fig:
        return figures.vector(fig, table.attrs["provenance"]["name"])


@contextmanager
def _plotted(table):
    from matplotlib import pyplot

    figures.style()
    fig = load(table.attrs["provenance"]["name"]).plot(table)
    yield fig
    pyplot.close(fig)


def said_of(table):
    """Return what is said of a recorded table's figure, `caption` and `alt`."""
    module = load(table.attrs["provenance"]["name"])
    facts, figure = experiment.facts(module, table), module.FIGURE
    try:
        return {what: words.fill(getattr(figure, what), facts, figure.phrases)[0] for what in ("caption", "alt")}
    except LookupError as error:
        raise LookupError(f"{table.attrs['provenance']['name']}, caption or alt: {error}") from error


def make(name, scale="quick", seed=0, progress=True):
    """Measure an experiment, unless that was done, and draw its figure: `measured`, then `draw`, which see."""
    return draw(measured(name, scale, seed, progress))


def unfinished():
    """Find the sweeps that were stopped: experiment, scale, and how many points are kept, of each."""
    (folder,) = _folders(_used.get()[:1])
    kept = filter(None, (read_saved(path) for path in sorted(folder.glob("*/*.partial.json"))))
    named = [(*map(each["provenance"].get, ("name", "scale")), len(each["points"])) for each in kept]
    return [each for each in named if all(each[:2])]


def needed(name, scale, device=None):
    """Return the paths of the tables that an experiment reads, by need; none for what is not recorded yet."""
    found = {}
    for need in load(name).FIGURE.needs:
        other, _, at = need.partition(".")
        if need.startswith("paper/"):
            found[need] = [files.shipped("data", "paper") / f"{other.removeprefix('paper/')}.csv"]
        elif at:  # of all machines
            devices = [folder for folder, recorded in recordings(other) if recorded == at]
            found[need] = [place(other, at, each) for each in devices]
        else:
            with suppress(FileNotFoundError):
                found[need] = [place(other, scale, device if (device, scale) in recordings(other) else None)]
    return found


def _described(name, scale, seed):
    """Describe a measurement made here and now, and the tables that it reads."""
    now = provenance.describe(name, scale, seed)
    digest = hashlib.sha256(b"".join(path.read_bytes() for paths in needed(name, scale).values() for path in paths))
    return now | ({"needs": digest.hexdigest()} if load(name).FIGURE.needs else {})


def _fetched_since(path):
    """Tell whether a data set has come that was not there when a table was recorded."""
    from bppsa_nb.training.datasets import downloads

    for key in downloads.SETS:
        with suppress(FileNotFoundError):
            if downloads.find(key).stat().st_ctime > path.stat().st_mtime:
                return True
    return False


def _folders(names):
    return [files.root() / "data" / name for name in names]


def _path(origin, folder):
    return _folders([folder])[0] / origin["device"] / f"{origin['name']}.{origin['scale']}.csv"


def _write(table, now, notes=None):
    """Write a table; if it is a reference, say what it replaces. Return its place, a text."""
    path = _path(now, _used.get()[0])
    place = str(path.relative_to(files.root()))
    described, before = path.with_suffix(".json"), "new"
    if described.exists():
        try:
            before = f"in place of {provenance.words(files.read_json(described)['provenance'])}"
        except (ValueError, TypeError, KeyError, AttributeError):
            before = "in place of one that could not be read"
    tables.write(table, now, path, notes)
    if _used.get()[0] == REFERENCES:
        print(f"reference {place}: {before}", flush=True)
    return place


def _read(path):
    recorded = tables.read(path)
    recorded.attrs["provenance"]["reference"] = path.parents[1].name == REFERENCES
    return recorded
