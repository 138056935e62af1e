"""Tables as files: a CSV, and a JSON beside it that says where it comes from, what its columns are, and seals it.

The papers' own tables, to be drawn beside ours, are in `data/paper/`.
"""

import csv
import hashlib
import io

import numpy as np

from bppsa_nb.machine import files, process
from bppsa_nb.machine.checks import check_choice
from bppsa_nb.papers import provenance

_DATA = ("real", "synthetic", "stand-in")


def write(table, origin, path, notes=None):
    """Write a table, and `origin`, where it comes from: a pandas.DataFrame, or without pandas rows, and its attrs.

    Rows are dicts with the same keys; a value is None where nothing was measured. Cells are numbers, text, or only True
    and False, else there is a TypeError. Of the attrs (`notes`), `backend` and `data` (a ValueError if of no known
    kind) are kept with the provenance. The JSON, written last, seals the CSV.
    """
    if isinstance(table, list):
        if not table or any(row.keys() != table[0].keys() for row in table):
            raise ValueError(f"rows must be one or more dicts with the same keys, got {[list(row) for row in table]}")
        columns = {name: [row[name] for row in table] for name in table[0]}
        if empty := [name for name, values in columns.items() if values.count(None) == len(values)]:
            raise TypeError(f"column {empty[0]!r} must hold something, got nothing but None")
    else:
        columns = {name: column.astype(object).where(column.notna(), None).tolist() for name, column in table.items()}
        notes = table.attrs
    columns = {name: list(map(_python, values)) for name, values in columns.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    text, notes = text.getvalue(), dict(notes or {})
    backend, data = notes.pop("backend", None), notes.pop("data", "synthetic")
    if "backend" in columns:
        backend = sorted(set(columns["backend"]))
    check_choice("attrs['data']", data, _DATA)
    described = {
        "provenance": origin | {"backend": backend, "data": data},
        "notes": notes,
        "columns": {name: _kind(name, values) for name, values in columns.items()},
        "sha256": _digest(text),
    }
    with files.atomic_write(path, "w") as file:
        file.write(text)
    files.write_json(path.with_suffix(".json"), described)


@process.explained()
def read(path):
    """Read a table that `write` wrote, as a pandas.DataFrame; ``attrs["provenance"]`` says where it comes from.

    A `files.CorruptFileError` says that it does not belong to the provenance beside it, or that one of them is damaged.
    """
    import pandas

    place = path.with_suffix(".json")
    described = files.read_json(place)
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        missing = {"provenance", "notes", "columns", "sha256"} - described.keys()
        if missing := missing or provenance.KEYS - described["provenance"].keys():
            raise ValueError(f"{', '.join(sorted(missing))} missing")
        if _digest(text) != described["sha256"]:
            place = path
            raise ValueError("it is not the table that the .json beside it describes; measure again, or restore both")
        # As text first: whatever pandas' own parser does, every number comes back to the last bit.
        table = pandas.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, na_values=[""])
        kinds = described["columns"]
        if list(kinds) != list(table) or not set(kinds.values()) <= {"bool", "str", "int64", "float64"}:
            raise ValueError(f"columns are {kinds}, those of the table {list(table)}")
        for column, kind in kinds.items():
            if kind != "str":
                table[column] = table[column].eq("True") if kind == "bool" else table[column].astype(kind)
        table.attrs = described["notes"] | {"provenance": described["provenance"]}
    except (AttributeError, TypeError, ValueError) as error:
        raise files.CorruptFileError(f"{place} is damaged: {error}") from error
    return table


def published(name):
    """Read a table that a paper published, by its file's name without suffix, such as "table_4".

    Numbers are as printed; a `_spread` column holds what stands after ±. `attrs` says which paper and table, on which
    machine it was measured, in which unit, and what the columns mean.
    """
    import pandas

    folder = files.shipped("data", "paper")
    try:
        printed = pandas.read_csv(folder / f"{name}.csv")
        printed.attrs = files.read_json(folder / f"{name}.json")
    except (ValueError, TypeError) as error:
        raise files.CorruptFileError(f"{folder / name}.csv, or the .json beside it, is damaged: {error}") from error
    return printed


def _python(value):
    return value.item() if isinstance(value, np.generic) else value


def _kind(name, values):
    """Return how a column of Python's own values, or None, is stored."""
    kinds, missing = {type(value) for value in values} - {type(None)}, None in values
    if kinds == {bool} and not missing:
        return "bool"
    if kinds == {str} and "" not in values:
        return "str"
    if kinds == {int} and not missing:
        return "int64"
    if kinds <= {int, float}:
        return "float64"
    raise TypeError(f"column {name!r} must hold numbers, text (not empty), or only True and False")


def _digest(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
