"""What lanes of a warp do together: votes, matches, reductions and shuffles, of those that have the same mask.

Lanes that stand at one instruction and have the same mask are one team; `waiting.py` has let all its lanes come.
"""

import numpy as np

from warpwatch.atomics import UFUNCS, by_place


def together(how, key, values):
    """Return what the values of all lanes that have the same key make together, in each of them."""
    order, starts = by_place(key)
    made = UFUNCS[how].reduceat(values[order], starts, dtype=values.dtype)
    whole = np.empty_like(values)
    whole[order] = np.repeat(made, np.diff(starts, append=len(key)))
    return whole


def unanimous(m, value):
    """Return all lanes of its team if they have the same value, else 0; and whether they have ("match.all")."""
    team = m.team()
    ok = together("min", team, value) == together("max", team, value)
    return np.where(ok, together("or", team, m.special("lanemask_eq", "u4")), 0).astype("u4"), ok


def shuffled(m, at, mode, value, by, clamp):
    """Return another lane's value, and whether there is such a lane in the segment ("shfl.sync")."""
    lane, inner, team = m.lanes(), m.of(m.t) % 32, m.team()
    by, end, segment = by & 31, clamp & 31, clamp >> 8 & 31
    last = inner & segment | end & ~segment
    to = {"up": inner - by, "down": inner + by, "bfly": inner ^ by, "idx": inner & segment | by & ~segment}[mode]
    ok = to >= last if mode == "up" else to <= last
    source = np.where(ok, lane + to - inner, lane)
    place = np.minimum(np.searchsorted(lane, source), len(lane) - 1)
    missing = (lane[place] != source) | (m.of(m.warp)[place] != m.of(m.warp))
    other = ~missing & (team[place] != team)  # which may be thrown away, and is given as a GPU gives it
    for bad, why in ((missing, "not there"), (other, "not in its mask: what comes is undefined")):
        for n in np.flatnonzero(bad)[:1]:
            (block, thread), what = m.who(lane[n]), f"asks lane {int(to[n])} of its warp for a value, which is {why}"
            how = {"other": (block, thread - int(inner[n]) + int(to[n])), "note": bad is not missing}
            m.report.add(("shuffle",), what, at, (block, thread), count=int(np.count_nonzero(bad)), **how)
    return value[np.where(missing, np.arange(len(lane)), place)], ok
