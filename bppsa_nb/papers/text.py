"""The words of figures: templates in `<paper>/words.toml`, filled from the table that a figure draws.

An experiment's entry has a title, a caption and an alt text, with braces as in `str.format` for what the table says:

    {seconds:max .2g ms}           a column, what is wanted of it, a number format, a unit
    {seconds[method=linear]}       ... of the rows in which a column has a value; also <, >, <=, >=, != and T=max
    {error[part=road, T>10]}       ... in which several conditions hold
    {seconds[method=tree/loop]}    the values of some rows over those of others, in the same order
    {computed/seconds}             one column over another, or 1/seconds
    {B}, {network:as KINDS}        the value of a column, if all rows have the same; what the module's KINDS calls it
    {ends by features:and}         the entry's template "ends by features", filled for the rows of every value of the
                                   column (or of several, "by B, T"), joined by ", ", by the mark given, or as a list
    {H}, {cycles}, {gains.chunked} a constant of the module, one of the table's attrs, or what the module's function
                                   `values(table)` adds: a dict of numbers, lists, columns (Series, of the table's
                                   rows), and other tables, whose columns follow a dot, as in "ends by T of gains"
    {gains.chunked:min}            the same of what another function of the module, `gains(table)`, returns

Of a column one may want its span, such as "0.8 to 1.2" (which it is by default), min, max, median, mean, sum, count,
nunique, first, last, list (all values: "a, b and c") or values (the different ones, sorted). A unit is a key of UNITS.
"""

import operator
import re
import tomllib
from pathlib import Path

from bppsa_nb.papers import experiment, words

UNITS = {"ms": 1e3, "µs": 1e6, "percent": 100, "points": 100, "MB": 1e-6, "GB": 1e-9}
_SIGNS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
_WANTED = ("span", "list", "values", "first", "last", "min", "max", "median", "mean", "sum", "count", "nunique")


def entry(module):
    """Return an experiment's words: title, caption, alt, and templates for groups; not those that are functions.

    They are in its paper's `words.toml`, or constants of a module that stands by itself.
    """
    if hasattr(module, "FIGURE"):
        return {what: getattr(module.FIGURE, what) for what in ("title", "caption", "alt")}
    if hasattr(module, "TITLE"):
        return {what: getattr(module, what.upper(), None) for what in ("title", "caption", "alt")}
    path = Path(module.__file__)
    written = tomllib.loads(path.with_name("words.toml").read_text(encoding="utf-8"))
    words = written[re.sub(r"^figures?(_\d+)+_", "", path.stem)]
    return {what: " ".join(said.split()) for what, said in words.items()}


def fill(module, table, what):
    """Return an experiment's caption or alt text for its table."""
    if hasattr(module, "FIGURE"):
        return words.fill(getattr(module.FIGURE, what), experiment.facts(module, table), module.FIGURE.phrases)[0]
    if hasattr(module, what):
        return getattr(module, what)(table)
    written, values = entry(module), getattr(module, "values", lambda table: {})(table)
    named = re.findall(r"\{(?:[^{}]* by [^{}]* of )?(\w+)", " ".join(filter(None, written.values())))
    functions = {name: getattr(module, name, None) for name in {*named} - {*values, *table}}
    values |= {name: function(table) for name, function in functions.items() if callable(function)}
    return written[what].format_map(Rows(table, vars(module) | table.attrs, values, written))


class Rows:
    """The rows of a table, and what else a template may name."""

    def __init__(self, table, constants, values=(), templates=()):
        self.table, self.constants, self.extra, self.templates = table, constants, dict(values), dict(templates)

    def __getitem__(self, name):
        template, by, keys = name.partition(" by ")
        if by:
            keys, of, other = keys.partition(" of ")
            groups = (self.extra[other] if of else self.table).groupby(keys.split(", "), sort=False)
            parts = (Rows(rows, self.constants, self.extra, self.templates) for _, rows in groups)
            return Parts(self.templates[name].format_map(rows) for rows in parts)
        if name in self.extra:
            value = self.extra[name]
            if hasattr(value, "columns"):
                return Rows(value, self.constants)
            if hasattr(value, "loc"):
                return Column(value.loc[self.table.index], self.table, self.constants)
            if isinstance(value, dict):
                return value
            import pandas

            return Column(pandas.Series(value), None, self.constants)
        if name in self.table:
            return Column(self.table[name], self.table, self.constants)
        if "/" in name:
            top, bottom = (1 if each == "1" else self.table[each] for each in name.split("/"))
            return Column(top / bottom, self.table, self.constants)
        return self.constants[name]

    __getattr__ = __getitem__


class Parts(list):
    """A template, filled for each group of rows."""

    def __format__(self, mark):
        return listed(self) if mark == "and" else f"{mark or ','} ".join(self)


class Column:
    """Values, each with its row."""

    def __init__(self, values, rows, constants):
        self.values, self.rows, self.constants = values, rows, constants

    def __getitem__(self, conditions):
        column = self
        for condition in re.split(r", (?=[^,<>=!]+[<>=!])", conditions):
            column = column.where(*re.fullmatch(r"([^<>=!]+)([<>=!]+)(.*)", condition).groups())
        return column

    def where(self, key, sign, value):
        """Take the rows in which a column is, or is not, what a template says."""
        if "/" in value:
            top, bottom = (self.where(key, sign, each) for each in value.split("/"))
            return Column(top.values / bottom.values.to_numpy(), top.rows, self.constants)
        cells = self.rows[key]
        if value in ("min", "max"):
            value = getattr(cells, value)()
        elif cells.dtype.kind in "fiu":
            value = float(value)
        elif cells.dtype.kind == "b":
            value = value == "True"
        fits = _SIGNS[sign](cells, value)
        return Column(self.values[fits], self.rows[fits], self.constants)

    def __format__(self, spec):
        words, values = spec.split(), self.values
        if words[:1] == ["as"]:
            name = self.constants[words[1]][values.iloc[0]]
            return name if isinstance(name, str) else name[0]
        wanted = words.pop(0) if words and words[0] in _WANTED else "span"
        unit = words.pop() if words and words[-1] in UNITS else ""
        if unit:
            values = UNITS[unit] * values
        if values.dtype.kind == "O":
            return listed(list(values.unique()))
        if wanted == "span":
            chosen = [values.min(), values.max()]
        elif wanted in ("list", "values"):
            chosen = list(values) if wanted == "list" else sorted(set(values))
        elif wanted in ("first", "last"):
            chosen = [values.iloc[0 if wanted == "first" else -1]]
        else:
            chosen = [getattr(values, wanted)()]
        shown = words[0] if words else ""
        texts = [minus(format(value, shown or "g" * isinstance(value, float))) for value in chosen]
        if wanted == "span":
            texts = [" to ".join(dict.fromkeys(texts))]
        return listed(texts) + (f" {unit}" if unit else "")


def minus(number):
    """Give a number that was put into words its minus sign."""
    return re.sub("^-", "−", number)


def span(values, shown="{:.3g}"):
    """Say from where to where numbers go, such as "0.8 to 1.2"; where both ends read alike, one of them."""
    low, high = shown.format(values.min()), shown.format(values.max())
    return low if low == high else f"{low} to {high}"


def points(share):
    """Put a difference of shares into words, in percentage points, such as "+1.2"."""
    return minus(f"{100 * share:+.1f}")


def listed(words):
    """Put words in a row, such as "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
