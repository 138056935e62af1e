"""Words with numbers: templates of captions, alternative texts and claims, filled from what `facts` says of a table.

A template has braces as in `str.format`. Behind the colon stand a number format, a unit, or both:

    {gain:.2f}  {seconds:.2g ms}  {share:+.1f points}  {speedup:×}

Several numbers are said from the smallest to the largest, "0.8 to 1.2"; with `list` all of them, "1, 2 and 4". For a
dict, or a pandas.Series by its index, `_` stands for the key of each: "{gflops:.0f at B = _}". Where more is to be said
of each, "{rows:each NAME}" fills the phrase NAME with what a dict, or a DataFrame's row, holds of it; ";" behind the
name separates them by semicolons.
"""

import re
import string

import numpy as np

UNITS = {"ms": 1e3, "µs": 1e6, "percent": 100, "points": 100, "MB": 1e-6, "GB": 1e-9, "GiB": 2**-30}


def fill(template, facts, phrases=None):
    """Fill a template; return the text, and the numbers in it by field, in the units that are printed.

    A LookupError says which field there is nothing for: a table of a smaller scale may lack rows.
    """
    filler = _Filler(phrases or {})
    return filler.vformat(" ".join(template.split()), (), facts), filler.numbers


def listed(words, mark=","):
    """Put words in a row, such as "a, b and c", or "a; b; c" with another mark."""
    if mark == ";":
        return "; ".join(words)
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def times(ratio):
    """Put a speedup into words."""
    return f"{ratio:.3g}×" if ratio >= 1 else f"{ratio:.2g}×"


class _Filler(string.Formatter):
    def __init__(self, phrases):
        self.phrases, self.numbers, self.path = phrases, {}, ()

    def get_field(self, name, args, kwargs):
        value, self.field = kwargs, name
        for key in name.rstrip("]").replace("][", "[").split("["):
            found = [each for each in value.keys() if str(each) == key]
            if not found:
                raise LookupError(f"{name}: there is no {key}, but {', '.join([*map(str, value.keys())][:20])}")
            value = value[found[0]]
        return value, name

    def format_field(self, value, spec):
        path = (*self.path, self.field)
        if spec.startswith("each "):
            return self._each(value, spec.removeprefix("each "), path)
        if "_" in spec:
            items = list(value.items())
            if not items:
                raise LookupError(f"{self.field}: there is nothing")
            return listed([self._number(one, spec.replace("_", str(key)), (*path, key)) for key, one in items])
        return self._number(value, spec, path)

    def _each(self, items, name, path):
        name, mark = name.rstrip(";"), name[-1]
        items = items.to_dict("index") if hasattr(items, "columns") else items
        before, said = self.path, []
        for key, one in items.items():
            self.path = (*path, key)
            said.append(self.vformat(" ".join(self.phrases[name].split()), (), {"_": key} | one))
        self.path = before
        if not said:
            raise LookupError(f"{self.field}: there is nothing")
        return listed(said, mark)

    def _number(self, value, spec, path):
        """Put a number, or several, or text into words: `spec` is list or nothing, a format, a unit, and words."""
        values = value if isinstance(value, str) else np.ravel(value).tolist()
        if isinstance(value, str) or values and all(isinstance(each, str) for each in values):
            return value if isinstance(value, str) else listed(list(dict.fromkeys(values)))
        values = [each for each in values if each is not None and each == each]
        if not values:
            raise LookupError(f"{self.field}: there is nothing")
        every, shown, unit, rest = re.fullmatch(r"(list ?)?([^ ×]*)(×?)(.*)", spec).groups()
        named = re.match(r" ?(\w+)\b", rest)
        factor = UNITS.get(named[1], 1) if named else 1
        chosen = sorted(set(values)) if every else [min(values), max(values)]
        self.numbers[path] = [factor * (100 if shown.endswith("%") else 1) * each for each in chosen]
        texts = [times(each) if unit else self._shown(factor * each, shown) for each in chosen]
        texts = list(dict.fromkeys(texts))
        return (listed(texts) if every else " to ".join(texts)) + rest

    @staticmethod
    def _shown(number, shown):
        return re.sub("^-", "−", format(number, shown or "g" * isinstance(number, float)))
