"""Where a measurement comes from: machine, versions, commit."""

import os
import re
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import bppsa_nb
from bppsa_nb.machine import files
from bppsa_nb.machine.checks import check_count
from bppsa_nb.machine.hardware import cores, cpu_name, gpu_name, versions

# What recordings are made by, and of: beside the code, the papers' own numbers.
SOURCE = ("bppsa_nb", "benchmarks", "data/paper", "pyproject.toml", "constraints.txt")
_BEGAN = time.time()  # whoever edits the source later edits what may have been loaded before
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


def check_committed(paths=()):
    """Raise an UncommittedError, which names what is changed, unless the source, and `paths` too, are committed."""
    commit, dirty = source_state()
    if commit is None:
        raise UncommittedError(
            "a reference names the commit that made it, but this is no git checkout of the project: "
            "BPPSA_NB_COMMIT can name it"
        )
    if (dirty or paths and _head()) and (changed := _changes((*SOURCE, *paths))):
        raise UncommittedError(
            f"a reference names the commit that made it, but {', '.join(changed)} differ from {commit[:10]}, or were "
            "written after this program began: commit or stash first, and start again"
        )


def source_state():
    """Look up which commit the source is at, and whether it differs from that: all of `SOURCE`.

    Where the package is not imported from a git checkout of its own, whoever copied the source from one can name its
    commit in BPPSA_NB_COMMIT, and vouches for it; both are None where nobody did. Pictures and tables that a run
    rewrites do not count. Raises an UncommittedError where BPPSA_NB_COMMIT is no commit's 40 digits.
    """
    if not (commit := _head()):
        named = os.environ.get("BPPSA_NB_COMMIT")
        if named is not None and not re.fullmatch("[0-9a-f]{40}", named):
            raise UncommittedError(f"BPPSA_NB_COMMIT must be the 40 digits of a commit, got {named!r}")
        return named, None if named is None else False
    return commit, bool(_changes(SOURCE))


def _head():
    """Return the commit of the package's own checkout, None where it is not imported from one that has commits."""
    own = files.root().resolve() == Path(bppsa_nb.__file__).resolve().parents[1]
    printed = git("rev-parse", "HEAD") if own else None
    return printed and printed.decode().strip()


def _changes(paths):
    """List which files below some paths differ from the commit, whatever the index says, or were written just now."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = {"GIT_INDEX_FILE": str(Path(folder, "index"))}  # in which nothing is staged, or assumed to be unchanged
        show = "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored", "--ignore-submodules=none"
        read = git("read-tree", "HEAD", **fresh)
        found, tracked = git("status", *show, "--", *paths, **fresh), git("ls-files", "-z", "--", *paths, **fresh)
    if read is None or found is None or tracked is None:
        return ["what git cannot read"]
    made = re.compile(rb"(^|/)(__pycache__/|\.ipynb_checkpoints/|\.[^/]+$)|~$")  # and imported by nobody
    changed = [line[3:] for line in found.split(b"\0")[:-1] if not (line.startswith(b"!!") and made.search(line[3:]))]
    late = [path for path in tracked.split(b"\0")[:-1] if _written(path) > _BEGAN]
    return [path.decode(errors="backslashreplace") for path in dict.fromkeys(changed + late)]


def _written(path):
    try:
        return os.lstat(os.path.join(os.fsencode(files.root()), path)).st_mtime
    except OSError:  # it is among what is changed
        return 0


def git(*arguments, **environment):
    """Return what git prints of the project's folder, in bytes, or None if it fails or there is none."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # Told where the repository is, and not made to look for it, it takes another owner's: whose code runs here anyway.
    command = ["git", "-C", str(files.root()), "--git-dir=.git", "--work-tree=.", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, env=own | environment)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
