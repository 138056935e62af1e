"""Where a measurement comes from: machine, versions, commit."""

import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import bppsa_nb
from bppsa_nb.machine import files
from bppsa_nb.machine.checks import check_count
from bppsa_nb.machine.hardware import cores, cpu_name, gpu_name, versions

# What recordings are made by.
SOURCE = ("bppsa_nb", "benchmarks", "pyproject.toml", "constraints.txt")
# What `describe` says, and what tables add.
KEYS = frozenset("name scale seed device gpu cpu cores versions commit dirty date backend data".split())


def describe(name, scale, seed):
    """Describe a measurement made here and now; a seed that is no integer from 0 on is a TypeError or ValueError."""
    check_count("seed", seed)
    commit, dirty = source_state()
    return {
        "name": name,
        "scale": scale,
        "seed": seed,
        "device": device(),
        "gpu": gpu_name(),  # None without one
        "cpu": cpu_name(),
        "cores": cores(),
        "versions": versions(),
        "commit": commit,  # None outside a checkout, as is the next
        "dirty": dirty,  # whether the source differs from that
        "date": datetime.now(UTC).date().isoformat(),
    }


def words(origin):
    """Say in a few words where a recording comes from: date, commit and machine."""
    return f"{origin['date']}, {commit(origin)}, {machine(origin)}"


def machine(origin):
    """Name the machine of a recording: its GPU, or else its processor."""
    return origin["gpu"] or f"{origin['cpu']} ({origin['cores']} cores)"


def commit(origin):
    """Name the commit of a recording, and say whether it had changes."""
    return (origin["commit"] or "unknown")[:10] + (" and changes" if origin["dirty"] else "")


def device():
    """Name the folder of this machine's recordings: "cpu", or its GPU, such as "nvidia-h200"."""
    gpu = gpu_name()
    return re.sub("[^a-z0-9]+", "-", gpu.lower()).strip("-") if gpu else "cpu"


class UncommittedError(RuntimeError):
    """A reference was to be recorded, which names the commit that made it, by source that no commit has."""


def check_committed():
    """Raise an UncommittedError, which names what is changed, unless the source is what its commit has."""
    commit, dirty = source_state()
    if commit is None:
        raise UncommittedError(
            "a reference names the commit that made it, but this is no git checkout of the project: "
            "BPPSA_NB_COMMIT can name it"
        )
    if dirty:
        changed = ", ".join(line[3:] for line in _changes().splitlines())
        raise UncommittedError(
            f"a reference names the commit that made it, but {changed} differ from {commit[:10]}: commit or stash first"
        )


def source_state():
    """Look up which commit the source is at, and whether it differs from that: package, benchmarks, dependencies.

    Where the package is not imported from a git checkout of its own, whoever copied the source from one can name its
    commit in BPPSA_NB_COMMIT, and vouches for it; both are None where nobody did. Pictures and tables that a run
    rewrites do not count. Raises an UncommittedError where BPPSA_NB_COMMIT is no commit's 40 digits.
    """
    checkout = Path(bppsa_nb.__file__).resolve().parents[1]
    printed = _git("rev-parse", "HEAD", "--show-toplevel")
    commit, top = printed.splitlines() if printed else (None, "")
    if commit is None or Path(top).resolve() != checkout:  # no repository, or not the package's own
        named = os.environ.get("BPPSA_NB_COMMIT")
        if named is not None and not re.fullmatch("[0-9a-f]{40}", named):
            raise UncommittedError(f"BPPSA_NB_COMMIT must be the 40 digits of a commit, got {named!r}")
        return named, None if named is None else False
    return commit, bool(_changes())


def _changes():
    return _git("status", "--porcelain", "--untracked-files=all", "--", *SOURCE)


def _git(*arguments):
    command = ["git", "-C", str(files.root()), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
