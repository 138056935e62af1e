"""Tables as files: a CSV, and a JSON beside it that says where it comes from, what its columns are, and seals it."""

import csv
import hashlib
import io

import numpy as np

from bppsa_nb.machine import files
from bppsa_nb.machine.checks import check_choice
from bppsa_nb.papers import provenance

_DATA = ("real", "synthetic", "stand-in")


def write(table, origin, path):
    """Write a pandas.DataFrame and where it comes from.

    Cells are numbers, text, or True and False, else there is a TypeError. The table's attrs are kept; `data` (a
    ValueError if of no known kind), `backend` and `collected` are kept with the provenance, `origin`.
    """
    columns = {name: column.astype(object).where(column.notna(), None).tolist() for name, column in table.items()}
    _write(columns, table.attrs, origin, path)


def write_rows(rows, notes, origin, path):
    """Write what `write` does, from plain rows and notes, the table's attrs, and without pandas.

    Rows have the same keys; a value is None where nothing was measured. There is a ValueError if keys differ, or there
    are no rows, a TypeError if a value is of another kind, or a column holds several.
    """
    if not rows or any(row.keys() != rows[0].keys() for row in rows):
        raise ValueError(f"rows must be one or more dicts with the same keys, got {[list(row) for row in rows]}")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name, values in columns.items():
        if all(value is None for value in values):
            raise TypeError(f"column {name!r} must hold something, got nothing but None")
    _write(columns, notes, origin, path)


def _write(columns, notes, origin, path):
    """Write a table's text and its provenance; the JSON, written last, seals the CSV."""
    columns = {name: [_python(value) for value in values] for name, values in columns.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    text, notes = text.getvalue(), dict(notes)
    backend, data = notes.pop("backend", None), notes.pop("data", "synthetic")
    if "backend" in columns:
        backend = sorted(set(columns["backend"]))
    collected = {"collected": True} if notes.pop("collected", False) else {}
    check_choice("attrs['data']", data, _DATA)
    described = {
        "provenance": origin | {"backend": backend, "data": data} | collected,
        "notes": notes,
        "columns": {name: _kind(name, values) for name, values in columns.items()},
        "sha256": _digest(text),
    }
    with files.one_at_a_time(path.parent):  # two that record one table leave the CSV and the JSON of the same run
        with files.atomic_write(path, "w") as file:
            file.write(text)
        files.write_json(path.with_suffix(".json"), described)


def read(path):
    """Read a table that `write` or `write_rows` wrote.

    Returns
    -------
    pandas.DataFrame
        `attrs["provenance"]` says where it comes from; other attrs are as they were.

    Raises
    ------
    files.CorruptFileError
        If the table does not belong to the provenance beside it, or one of them is damaged; this is a ValueError.
    """
    import pandas

    described = _description(path.with_suffix(".json"))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or _digest(text) != described["sha256"]:
        raise files.CorruptFileError(f"{path} is not the table that the .json beside it describes: measure again")
    # As text first: whatever pandas' own parser does, every number comes back to the last bit.
    table = pandas.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, na_values=[""])
    kinds = described["columns"]
    try:
        if list(kinds) != list(table):
            raise ValueError(f"columns are {list(kinds)}, those of the table {list(table)}")
        for column, kind in kinds.items():
            if not isinstance(kind, str):
                raise TypeError(f"the kind of column {column!r} is {kind!r}")
            if kind != "str":
                table[column] = table[column].eq("True") if kind == "bool" else table[column].astype(kind)
    except (TypeError, ValueError) as error:
        raise files.CorruptFileError(f"{path.with_suffix('.json')} is damaged: {error}") from error
    table.attrs = described["notes"] | {"provenance": described["provenance"]}
    return table


def where(table, **columns):
    """Return the rows of a table in which columns have these values."""
    for column, value in columns.items():
        table = table[table[column] == value]
    return table


def _description(path):
    """Return what the JSON beside a table says."""
    described = files.read_json(path)
    _check(path, described, {"provenance": dict, "notes": dict, "columns": dict, "sha256": str})
    _check(path, described["provenance"], provenance.KINDS)
    return described


def _check(path, values, kinds):
    for name, kind in kinds.items():
        value = values.get(name, ...) if isinstance(values, dict) else ...
        if not isinstance(value, kind):
            raise files.CorruptFileError(f"{path} is damaged: {name} is {'missing' if value is ... else repr(value)}")


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
