"""Rounds of measurements: whatever is compared takes turns, so that a busy moment of the machine meets all of it."""

import time

import numpy as np


def quartiles(name, values):
    """Return the median of values as `name`, and the quartiles as `<name>_low` and `<name>_high`."""
    return dict(zip((f"{name}_low", name, f"{name}_high"), np.quantile(values, (0.25, 0.5, 0.75)), strict=True))


def take_turns(calls, seconds, rounds=(3, 20)):
    """Time calls that take turns, after a round that does not count: seconds [shape=(rounds, calls)].

    It goes on for about so many `seconds`; `rounds` says how many there are at least, and at most.
    """

    def one_round():
        marks = [time.perf_counter()]
        for call in calls:
            call()
            marks.append(time.perf_counter())
        return np.diff(marks)

    one_round()  # compiles, and touches the memory
    least, most = rounds
    measured, start = [], time.perf_counter()
    while len(measured) < least or (len(measured) < most and time.perf_counter() - start < seconds):
        measured.append(one_round())
    return np.array(measured)
