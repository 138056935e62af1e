"""Competitors that take turns, so that a busy moment of the machine meets all of them."""

import time

import numpy as np

SHORT = 0.02  # seconds


def take_turns(competitors, seconds, rounds=(3, 51)):
    """Time competitors round after round, after turns that do not count.

    Short turns are taken until others' threads have come to rest and caches are one's own, and then once more: what
    counts is a step of many, as in training.

    Parameters
    ----------
    competitors : dict of str to sequence of callable
        What each does in a turn, in stages timed one by one. A stage that leaves work to a device waits for it.
    seconds : float
        About how long all together go on. Who has had an equal share of it leaves, after its least rounds; whose one
        turn takes longer than that leaves after one.
    rounds : (int, int)
        How many turns each has at least, and at most.

    Returns
    -------
    dict of str to np.ndarray [shape=(rounds, stages)]
        Seconds.
    """
    least, most = rounds
    measured = {name: [] for name in competitors}
    left, again = {name: seconds / len(competitors) for name in competitors}, {}
    for name, stages in competitors.items():
        _turn(stages)  # compiles
        again[name] = _turn(stages)  # finds memory and caches as they will be
        if sum(again[name]) > left[name]:
            measured[name].append(again[name])
            del left[name]
    shuffled = np.random.default_rng(0)  # nobody always follows the one who leaves caches cold
    while left:
        for name in shuffled.permutation(list(left)).tolist():
            last = measured[name][-1] if measured[name] else again[name]
            for _ in range(int(SHORT / max(sum(last), SHORT / 100))):
                _turn(competitors[name])
            measured[name].append(_turn(competitors[name]))
            left[name] -= sum(measured[name][-1])
            if len(measured[name]) >= most or (len(measured[name]) >= least and left[name] <= 0):
                del left[name]
    return {name: np.array(turns) for name, turns in measured.items()}


def _turn(stages):
    marks = [time.perf_counter()]
    for stage in stages:
        stage()
        marks.append(time.perf_counter())
    return np.diff(marks)


def quartiles(name, values):
    """Name the median and the quartiles of values [shape=(rounds,)]: `<name>`, `<name>_low` and `<name>_high`."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {name: median, f"{name}_low": low, f"{name}_high": high}
