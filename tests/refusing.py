"""What programs on ranks share: where training stands, and to see that what one of them cannot do, none does."""

import json
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import trainers

ALIKE = r"ValueError: \1 must be the same on all ranks: it is .* on rank LAST, and .* on rank 0"


def rows(comm, table, names):
    """Yield the cases of a table of texts, whose expressions know these names: a call, the rank at fault, and what it
    says, in which ranks may stand by name.
    """
    places = {"LAST": comm.size - 1, "HALF": comm.size // 2, "SIZE": comm.size}
    for call, at, said in table:
        said = re.sub("LAST|HALF|SIZE", lambda found: str(places[found[0]]), re.sub("^ALIKE (.*)", ALIKE, said))
        at = {"": None, "any": "any", "first": 0, "last": comm.size - 1}.get(at, 1)
        yield eval(call, {"failing": failing} | names), at, said


def unlike(comm, cases):
    """Make wrong calls; return what does not fail on all ranks as it should, in words.

    A case is a call, the rank at fault (None: all say the same), and a regular expression for what it says, as in
    ``ValueError: x must ...``. With a rank of "any", ranks may be at fault together.
    """
    wrong = []
    for number, (call, at, said) in enumerate(cases):
        try:
            found = f"{call()} instead"
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        which = r"\d" if at == "any" else at
        elsewhere = f"ValueError: aborted on all ranks because rank {which} failed: {said}"
        expected = f"{said}|{elsewhere}" if at == "any" else said if at in (None, comm.rank) else elsewhere
        if not re.match(expected, found):
            wrong.append(f"case {number} on rank {comm.rank}: {found!r} is not {expected!r}")
    return wrong


def patched(owner, name, call, error=None, here=True):
    """Call while a function of a module or class raises an error on this rank, if it is at fault."""
    kept = getattr(owner, name)

    def fail(*_, **__):
        if error is None:
            failing()
        raise error

    if here:
        setattr(owner, name, fail)
    try:
        return call()
    finally:
        setattr(owner, name, kept)


@contextmanager
def message_on_its_way(comm):
    """Give a list, to which is added, of a message of the user's, that it met those of solvers, or they it."""
    wrong, kept, taken = [], np.full((2, 5), 7.0), np.zeros((2, 5))
    sent = comm.Isend(kept, (comm.rank + 1) % comm.size, tag=0)
    yield wrong
    comm.Recv(taken)
    sent.Wait()
    if not (taken == kept).all():
        wrong.append("the user's message")


def failing(*arguments):
    raise OSError("the disk is gone")


def bits(arrays):
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


def state(who):
    """Everything a trainer holds, except times, in bits."""
    return bits(trainers.state(who).values())


def write(comm, found, path):
    """Write what all ranks found, as JSON."""
    every = comm.gather(found)
    if comm.rank == 0:
        Path(path).write_text(json.dumps(every))
