"""Where a measurement comes from: machine, versions, commit."""

import hashlib
import os
import re
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import bppsa_nb
from bppsa_nb.machine import files
from bppsa_nb.machine.backends import cores, cpu_name, gpu_name, versions
from bppsa_nb.machine.checks import check_count

# What recordings are made by, and of: beside the code, the papers' own numbers.
SOURCE = ("bppsa_nb", "benchmarks", "data/paper", "pyproject.toml", "constraints.txt")
# What `describe` says, and what tables add; older recordings lack `source`.
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
        "source": source_hash(),
        "commit": commit,  # None outside a checkout, as is the next
        "dirty": dirty,  # whether git saw changes
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


class UncommittedError(ValueError):
    """No commit has the source; the message says all there is to say."""


def check_committed():
    """Raise an UncommittedError, which says what to do, unless a commit has the source: references name one."""
    if source_state()[1] is not False:
        raise UncommittedError(
            f"a reference names the commit that made it: first commit or stash what `git status {' '.join(SOURCE)}` "
            "shows; of source without a checkout, BPPSA_NB_COMMIT names the commit"
        )


def source_state():
    """Look up which commit the source is at, and whether git sees changes of `SOURCE`.

    Where the package is not imported from a git checkout of its own, whoever copied the source from one can name its
    commit in BPPSA_NB_COMMIT, and vouches for it; both are None where nobody did.
    """
    own = files.root().resolve() == Path(bppsa_nb.__file__).resolve().parents[1]
    if own and (head := git("rev-parse", "HEAD")):
        return head.decode().strip(), git("status", "--porcelain", "--", *SOURCE) != b""
    named = os.environ.get("BPPSA_NB_COMMIT")
    if named is not None and not re.fullmatch("[0-9a-f]{40}", named):
        raise UncommittedError(f"BPPSA_NB_COMMIT must be the 40 digits of a commit, got {named!r}")
    return named, None if named is None else False


@cache
def source_hash():
    """Return the SHA-256 of `SOURCE`, paths and bytes, as it was when this process first asked: what it loaded.

    What is hidden, compiled or an editor's backup does not count.
    """
    root, digest = Path(bppsa_nb.__file__).resolve().parents[1], hashlib.sha256()
    for path in sorted(path for name in SOURCE for path in [root / name, *(root / name).rglob("*")]):
        place = path.relative_to(root).as_posix()
        if path.is_file() and not re.search(r"(^|/)(__pycache__/|\.)|~$", place):
            content = path.read_bytes()
            digest.update(os.fsencode(f"{place}\0{len(content)}\0") + content)
    return digest.hexdigest()


def git(*arguments):
    """Return what git prints of the project's folder, in bytes, or None if it fails or there is none."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # Told where the repository is, and not made to look for it, it takes another owner's: whose code runs here anyway.
    command = ["git", "-C", str(files.root()), "--git-dir=.git", "--work-tree=.", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, env=own)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
