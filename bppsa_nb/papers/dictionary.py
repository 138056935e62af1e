"""What the columns of recorded and published tables mean, and in which units: `data/dictionary.toml`, looked up."""

import tomllib
from fnmatch import fnmatchcase
from functools import cache

from bppsa_nb.machine import files


def fields(name, columns):
    """Describe the columns of a table, such as "figure_08", or "paper/table_4" for one that the paper printed.

    `columns` is a dict of their types, as in the JSON beside the table. Returned are, in the same order, dicts of
    `name`, `type`, `unit` (None for text, yes or no, and plain counts) and `means`. A LookupError names a column that
    the dictionary does not describe.
    """
    written = read()
    sections = [entries for tables, entries in written["columns"].items() if name in tables.split()]
    sections.append(written["columns"]["every table"])
    described = []
    for column, kind in columns.items():
        if (found := _find(column, sections, written["endings"])) is None:
            raise LookupError(f"data/dictionary.toml does not say in [columns.{name}] what {column!r} is")
        described.append({"name": column, "type": kind, "unit": found.get("unit"), "means": found["means"]})
    return described


def read():
    """Read the dictionary: a dict of its tables `units`, `endings` and `columns`; or raise a `CorruptFileError`."""
    return _parsed(files.shipped("data") / "dictionary.toml")


@cache
def _parsed(path):
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise files.CorruptFileError(f"{path} is damaged: {error}") from error


def _find(column, sections, endings):
    """Return the entry of a column: its own, that of a pattern, or one made of that of the column it belongs to."""
    for entries in sections:
        if found := entries.get(column) or next((entries[key] for key in entries if fnmatchcase(column, key)), None):
            return found
        for ending, means in endings.items():
            if column.endswith(ending) and (found := _find(column.removesuffix(ending), [entries], {})):
                return found | {"means": means.format(column.removesuffix(ending))}
    return None
