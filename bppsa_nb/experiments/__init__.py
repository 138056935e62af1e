"""One module per figure or table of the papers: `measure` returns a tidy table, `plot` draws it.

A module of this package is an experiment if it defines both::

    measure(scale, rng, progress)    # -> pandas.DataFrame, one row per measurement
    plot(table)                      # -> matplotlib.figure.Figure

beside three texts: TITLE, CAPTION (what to look at) and ALT (what there is to see, for those who cannot see
it). `measure` may set the table's `attrs["data"]` ("real", "synthetic" or "stand-in"; "synthetic" if it does
not) and, where the table has no column of that name, `attrs["backend"]`; other attrs are kept as notes.

`run` measures and records, `table` reads a recording, `draw` draws one, `make` runs and draws.
"""

import ast
import csv
import hashlib
import io
from importlib import import_module
from pathlib import Path

import numpy as np

from bppsa_nb import files
from bppsa_nb.experiments import provenance
from bppsa_nb.experiments.progress import Progress, read_kept

SCALES = ("quick", "paper")

_DATA = ("real", "synthetic", "stand-in")

# How a column is stored, by what pandas finds in it.
_KINDS = {
    "boolean": "bool",
    "integer": "int64",
    "floating": "float64",
    "mixed-integer-float": "float64",
    "string": "str",
    "empty": "str",
}


def names():
    """List the experiments.

    Returns
    -------
    list of str
        Names of the modules that define both `measure` and `plot`, sorted. None of them is imported.
    """
    return sorted(path.stem for path in _modules() if _is_experiment(path))


def load(name):
    """Import an experiment's module.

    Raises
    ------
    ValueError
        If there is no such experiment.
    """
    if not any(path.stem == name and _is_experiment(path) for path in _modules()):
        raise ValueError(f"name must be an experiment, one of {', '.join(names())}; got {name!r}")
    return import_module(f"{__name__}.{name}")


def _modules():
    return [path for folder in __path__ for path in Path(folder).glob("*.py")]


def _is_experiment(path):
    parsed = ast.parse(path.read_text(encoding="utf-8"))
    return {"measure", "plot"} <= {node.name for node in parsed.body if isinstance(node, ast.FunctionDef)}


def run(name, scale="quick", seed=0, progress=True):
    """Measure an experiment on this machine and record its table.

    The table is written to `data/results/<device>/<name>.<scale>.csv`, a `.json` of provenance beside it.
    Of a run that is stopped, the points measured so far are kept; the next one goes on from there. A
    complete table is measured afresh.

    Parameters
    ----------
    name : str
        One of `names()`.
    scale : {"quick", "paper"}
        Sizes for a laptop's minute, or the paper's.
    seed : int
        The seed of everything random.
    progress : bool
        Whether to show a bar.

    Returns
    -------
    pandas.DataFrame
        The table as recorded. `attrs["provenance"]` says where it comes from.

    Raises
    ------
    ValueError
        If there is no such experiment or scale.
    """
    module = load(name)
    _check_scale(scale)
    now = provenance.describe(name, scale, seed)
    path = _path(now["device"], name, scale)
    sweep = Progress(path.with_suffix(".partial.json"), now, show=progress)
    measured = module.measure(scale, np.random.default_rng(seed), sweep)
    _store(measured, now, path)
    sweep.finish()
    return _read(path)


def record(table, name, scale, seed):
    """Record a table that was measured elsewhere, such as a benchmark's, for this machine.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per measurement.
    name, scale, seed
        What was measured, and how; `name` need not be an experiment.

    Returns
    -------
    str
        Where the table is, seen from the checkout's root.
    """
    now = provenance.describe(name, scale, seed)
    path = _path(now["device"], name, scale)
    _store(table, now, path)
    return str(path.relative_to(files.root()))


def record_rows(rows, notes, name, scale, seed):
    """Record what `record` does, from plain rows and without pandas, which a machine with a GPU may lack.

    Parameters
    ----------
    rows : list of dict
        One per measurement, all with the same keys: numbers, text, True or False; None where nothing was measured.
    notes : dict
        The table's attrs, its `backend` included if it has no such column.
    name, scale, seed
        As for `record`.

    Returns
    -------
    str
        Where the table is, seen from the checkout's root.

    Raises
    ------
    ValueError
        If rows have different keys, or there are none.
    TypeError
        If a value is of another kind, or a column holds several.
    """
    if not rows or any(row.keys() != rows[0].keys() for row in rows):
        raise ValueError(f"rows must be one or more dicts with the same keys, got {[list(row) for row in rows]}")
    columns = {column: [_python(row[column]) for row in rows] for column in rows[0]}
    kinds = {column: _kind_of_values(column, values) for column, values in columns.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    now = provenance.describe(name, scale, seed)
    path = _path(now["device"], name, scale)
    _write(text.getvalue(), kinds, notes | {"backend": _backends(columns, notes)}, now, path)
    return str(path.relative_to(files.root()))


def table(name, scale="quick", device=None):
    """Read a recorded table.

    Parameters
    ----------
    name : str
        One of `names()`, or what a benchmark recorded.
    scale : {"quick", "paper"}
        The scale it was measured at.
    device : str, optional
        The machine's folder in `data/results/`, such as "cpu" or "nvidia-h200". By default this machine's, or
        else the first that has a recording.

    Returns
    -------
    pandas.DataFrame
        The table; `attrs["provenance"]` says where it comes from.

    Raises
    ------
    ValueError
        If there is neither a recording nor an experiment of that name, or no such scale, or the table does not
        belong to the provenance beside it.
    FileNotFoundError
        If there is no recording; the message says how to make one.
    """
    if not recordings(name):
        load(name)
    _check_scale(scale)
    recorded = [folder for folder, recorded_scale in recordings(name) if recorded_scale == scale]
    if device is None:
        device = min(recorded, key=lambda folder: folder != provenance.device(), default=None)
    if device not in recorded:
        where = f"for {device}" if device else "for any machine"
        raise FileNotFoundError(
            f"no recording of {name} at scale {scale} {where}; "
            f"`bppsa-nb figures --only {name} --scale {scale}` makes one for this machine"
        )
    return _read(_path(device, name, scale))


def recordings(name):
    """List the recordings of an experiment or a benchmark.

    Returns
    -------
    list of (str, str)
        Device and scale.
    """
    found = []
    for scale in SCALES:
        found += [(path.parent.name, scale) for path in sorted(_results().glob(f"*/{name}.{scale}.json"))]
    return found


def draw(table):
    """Draw a recorded table, and save the picture to `figures/`.

    Parameters
    ----------
    table : pandas.DataFrame
        From `run` or `table`; its provenance says which experiment it belongs to.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, closed for pyplot, so that a notebook shows it once.
    """
    from matplotlib import pyplot

    from bppsa_nb import figures

    origin = table.attrs["provenance"]
    module = load(origin["name"])
    figures.style()
    fig = module.plot(table)
    figures.save(fig, origin["name"], alt=module.ALT, caption=module.CAPTION, provenance=origin)
    pyplot.close(fig)
    return fig


def make(name, scale="quick", seed=0, progress=True):
    """Measure an experiment and draw its figure: `run`, then `draw`.

    Parameters
    ----------
    name, scale, seed, progress
        As for `run`.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.
    """
    return draw(run(name, scale, seed, progress))


def unfinished():
    """Find the sweeps that were stopped.

    Returns
    -------
    list of (str, str, int)
        Experiment, scale, and how many points are kept.
    """
    kept = [read_kept(path) for path in sorted(_results().glob("*/*.partial.json"))]
    return [(each["provenance"]["name"], each["provenance"]["scale"], len(each["points"])) for each in kept if each]


def _results():
    return files.root() / "data" / "results"


def _path(device, name, scale):
    return _results() / device / f"{name}.{scale}.csv"


def _check_scale(scale):
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(map(repr, SCALES))}, got {scale!r}")


def _store(table, origin, path):
    """Write a table and its provenance."""
    kinds = {column: _kind(table[column]) for column in table}
    text = table.to_csv(index=False, lineterminator="\n")
    _write(text, kinds, table.attrs | {"backend": _backends(table, table.attrs)}, origin, path)


def _backends(table, notes):
    return sorted(set(table["backend"])) if "backend" in table else notes.get("backend")


def _write(text, kinds, notes, origin, path):
    """Write a table's text and its provenance; the JSON, written last, seals the CSV."""
    notes = dict(notes)
    backend, data = notes.pop("backend"), notes.pop("data", "synthetic")
    if data not in _DATA:
        raise ValueError(f"attrs['data'] must be one of {', '.join(map(repr, _DATA))}, got {data!r}")
    with files.atomic_write(path, "w") as file:
        file.write(text)
    described = {
        "provenance": origin | {"backend": backend, "data": data},
        "notes": notes,
        "columns": kinds,
        "sha256": _digest(text),
    }
    files.write_json(path.with_suffix(".json"), described)


def _read(path):
    import pandas

    text = path.read_text(encoding="utf-8")
    described = files.read_json(path.with_suffix(".json"))
    if _digest(text) != described["sha256"]:
        raise ValueError(f"{path} is not the table that the .json beside it describes: measure again")
    # As text first: whatever pandas' own parser does, every number comes back to the last bit.
    found = pandas.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, na_values=[""])
    for column, kind in described["columns"].items():
        if kind != "str":
            found[column] = found[column].eq("True") if kind == "bool" else found[column].astype(kind)
    found.attrs = described["notes"] | {"provenance": described["provenance"]}
    return found


def _kind(column):
    from pandas.api.types import infer_dtype

    kind = _KINDS.get(infer_dtype(column, skipna=True))
    missing = column.isna().any()
    if kind is None or (kind == "bool" and missing) or (kind == "str" and column.eq("").any()):
        raise TypeError(f"column {column.name!r} must hold numbers, text (not empty), or only True and False")
    return "float64" if kind == "int64" and missing else kind


def _python(value):
    return value.item() if isinstance(value, np.generic) else value


def _kind_of_values(column, values):
    """Return how a column of Python's own values is stored; see `_kind`."""
    found = {type(value) for value in values if value is not None}
    missing = None in values
    if found == {bool} and not missing:
        return "bool"
    if found == {str} and "" not in values:
        return "str"
    if found == {int} and not missing:
        return "int64"
    if found and found <= {int, float}:
        return "float64"
    raise TypeError(f"column {column!r} must hold numbers, text (not empty), or only True and False")


def _digest(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
