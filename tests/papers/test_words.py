"""Templates, filled from facts."""

import numpy as np
import pandas
import pytest

from bppsa_nb.papers import words

FACTS = {
    "n": 1234,
    "bytes": 3 * 2**29,
    "gain": 2.0,
    "seconds": pandas.Series([0.002, 0.4]),
    "drop": -0.0125,
    "by": pandas.Series({32: 1.0, 64: 3.0}),
    "cell": {"GRU": {"B": [4, 1, 4, 2]}},
    "names": ["loop", "tree", "loop"],
    "name": "tree",
    "rates": {1e-05: 0.9, "all": np.array([0.5, np.nan])},
    "rows": pandas.DataFrame({"ms": [0.001, 0.02], "T": [10, 20]}, index=["loop", "tree"]),
    "none": [],
    "empty": {},
    "missing": float("nan"),
}


@pytest.mark.parametrize(
    "template, said, numbers",
    [
        ("{n:,} {n} {gain}", "1,234 1234 2", {("n",): [1234, 1234], ("gain",): [2, 2]}),
        ("{seconds:.2g ms}", "2 to 4e+02 ms", {("seconds",): [2, 400]}),
        ("{drop:+.1f points}, {drop:.0%}", "−1.2 points, −1%", {("drop",): [-1.25, -1.25]}),
        ("{by[64]:×} of {by:×}", "3× of 1× to 3×", {("by[64]",): [3, 3], ("by",): [1, 3]}),
        ("{by:.1f at B = _}", "1.0 at B = 32 and 3.0 at B = 64", {("by", 32): [1, 1], ("by", 64): [3, 3]}),
        ("{cell[GRU][B]:list}", "1, 2 and 4", {("cell[GRU][B]",): [1, 2, 4]}),
        ("{names}; {name}", "loop and tree; tree", {}),
        ("{rates[1e-05]:.0%}, {rates[all]:.1f}", "90%, 0.5", {("rates[1e-05]",): [90, 90], ("rates[all]",): [0.5] * 2}),
        ("{rows:each row}", "loop 1 ms (10) and tree 20 ms (20)", {("rows", "tree", "ms"): [20, 20]}),
        ("{rows:each row;}", "loop 1 ms (10); tree 20 ms (20)", {("rows", "loop", "T"): [10, 10]}),
        ("{rows[ms]:.0f\n µs}\n  in  lines", "1000 to 20000 µs in lines", {("rows[ms]",): [1000, 20000]}),
        ("{bytes:.1f GiB}, {bytes:.2g GB}", "1.5 GiB, 1.6 GB", {("bytes",): [1.610612736] * 2}),
    ],
)
def test_templates(template, said, numbers):
    found, told = words.fill(template, FACTS, {"row": "{_} {ms:.0f ms} ({T})"})
    assert found == said
    for field, expected in numbers.items():
        assert told[field] == pytest.approx(expected)


@pytest.mark.parametrize("field", ["none", "missing", "empty:_", "other", "by[16]", "cell[LSTM]"])
def test_what_facts_lack_is_a_lookup_error(field):
    with pytest.raises(LookupError, match=field.split(":")[0].replace("[", r"\[").replace("]", r"\]")):
        words.fill(f"{{{field}}}", FACTS)


def test_words_in_a_row_and_speedups():
    assert [words.listed(list("abc")[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert words.listed(list("abc"), ";") == "a; b; c"
    assert [words.times(ratio) for ratio in (0.123, 0.9996, 1, 12.345)] == ["0.12×", "1×", "1×", "12.3×"]
