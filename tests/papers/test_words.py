"""Templates, filled from facts."""

import numpy as np
import pandas
import pytest
from texts import beside

from bppsa_nb.papers import words

FACTS = {
    "n": 1234, "bytes": 3 * 2**29, "gain": 2.0, "seconds": pandas.Series([0.002, 0.4]), "drop": -0.0125,
    "by": pandas.Series({32: 1.0, 64: 3.0}), "cell": {"GRU": {"B": [4, 1, 4, 2]}}, "names": ["loop", "tree", "loop"],
    "name": "tree", "rates": {1e-05: 0.9, "all": np.array([0.5, np.nan])},
    "rows": pandas.DataFrame({"ms": [0.001, 0.02], "T": [10, 20]}, index=["loop", "tree"]),
    "none": [], "empty": {}, "missing": float("nan"),
}


@pytest.mark.parametrize("template, said, numbers", beside(__file__)["templates"])
def test_templates(template, said, numbers):
    found, told = words.fill(template, FACTS, {"row": "{_} {ms:.0f ms} ({T})"})
    assert found == said
    for field, expected in eval(numbers).items():
        assert told[field] == pytest.approx(expected)


@pytest.mark.parametrize("field", ["none", "missing", "empty:_", "other", "by[16]", "cell[LSTM]"])
def test_what_facts_lack_is_a_lookup_error(field):
    with pytest.raises(LookupError, match=field.split(":")[0].replace("[", r"\[").replace("]", r"\]")):
        words.fill(f"{{{field}}}", FACTS)


def test_words_in_a_row_and_speedups():
    assert [words.listed(list("abc")[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert words.listed(list("abc"), ";") == "a; b; c"
    assert [words.times(ratio) for ratio in (0.123, 0.9996, 1, 12.345)] == ["0.12×", "1×", "1×", "12.3×"]
