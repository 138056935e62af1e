"""The papers' own tables, kept in `data/paper/`, to be drawn beside ours."""

from bppsa_nb.machine import files


def table(name):
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
