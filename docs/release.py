"""Check a release, `make release-check`: build sdist and wheel from what is committed, look inside, and try the wheel.

What would be published is then in `build/release`. It needs the internet, for tools that `make` does not install get an
environment of their own. The first command that fails ends it.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"
TOOLS = ("build>=1.2,<2", "check-manifest>=0.50,<1", "twine>=6,<7")
CORE = ("docs/reference.md", "tests/on_core.py")  # on_core.py, and what it reads


def main():
    """Run one command after the other."""
    shutil.rmtree(OUT, ignore_errors=True)
    if run("git", "status", "--porcelain", cwd=ROOT, stdout=subprocess.PIPE).stdout:
        sys.exit("A release is made of a commit: commit or remove first what `git status` shows.")
    checkout, alone = OUT / "checkout", OUT / "alone"
    run("git", "clone", "--quiet", ROOT, checkout)
    tools = environment(OUT / "tools", *TOOLS)
    run(tools, "-m", "check_manifest", checkout)  # the sdist has what git has
    run(tools, "-m", "build", "--outdir", OUT, checkout)
    (sdist,), (wheel,) = OUT.glob("*.tar.gz"), OUT.glob("*.whl")
    run(tools, "-m", "twine", "check", "--strict", sdist, wheel)
    core = environment(OUT / "core", wheel)
    for name in CORE:  # without the checkout's package, which would be imported instead of the wheel's
        (alone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / name, alone / name)
    run(core, "tests/on_core.py", cwd=alone)
    print(f"\n{OUT.relative_to(ROOT)} has {sdist.name} and {wheel.name}.")


def environment(folder, *packages):
    """Make an environment that has these packages and what they need; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(python, "-m", "pip", "install", "--quiet", *packages)
    return python


def run(*command, **how):
    """Print a command and run it; nothing that is set for this Python, for its packages or for git reaches it."""
    command = [*map(str, command)]
    print("+", *command, flush=True)
    ours = ("GIT_", "PYTHON", "VIRTUAL_ENV", "BPPSA_NB", "NUMBA")
    own = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(command, env=own | {"BPPSA_NB_CACHE": str(OUT / "cache")}, **how)
    if done.returncode:
        sys.exit(f"Not ready for a release: this exited with {done.returncode}.")
    return done


if __name__ == "__main__":
    main()
