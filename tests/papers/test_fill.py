"""Templates filled from facts: units, spans, lists, phrases."""

import pytest

from bppsa_nb.papers import words


@pytest.mark.parametrize(
    "template, said, numbers",
    [
        ("{held:.1f GiB}", "1.5 to 3.0 GiB", [1.5, 3.0]),
        ("{held:.2g GB}", "1.6 to 3.2 GB", [1.610612736, 3.221225472]),
    ],
)
def test_numbers_are_printed_in_the_unit_that_is_asked_for(template, said, numbers):
    assert words.fill(template, {"held": [3 * 2**29, 3 * 2**30]}) == (said, {("held",): pytest.approx(numbers)})
