"""Whole programs watched, without edits: what they launch, wherever a compiler is imported, in child processes too.

`begin` waits for a compiler to be imported; then a device is on. All processes write what they launch to one file, a
launch a line, and one of them tells. Only Python's own library is imported before there is something to watch.
"""

import atexit
import gc
import io
import json
import os
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

from warpwatch.compilers import MODULES

SITE = str(Path(__file__).with_name("site"))


class Watch:
    """What this process and its children launch; `rows` are launches, as dicts, read from a file up to `place`."""

    def __init__(self):
        self.path, self.rows, self.place = os.environ.get("WARPWATCH_TO"), [], 0
        self.ignore, self.steps = settings()

    def own(self):
        """Have this process read what is launched, in children too, which the environment tells to watch."""
        folder, self.place = tempfile.mkdtemp(prefix="warpwatch-"), 0
        self.path = os.path.join(folder, "launches")
        Path(self.path).touch()
        paths = [SITE, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", SITE))]
        os.environ |= {"WARPWATCH": "1", "WARPWATCH_TO": self.path, "PYTHONPATH": os.pathsep.join(paths)}
        owner = os.getpid()
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
        return self

    def found(self, report):
        """Note the report of a launch."""
        found = [{"kind": f.kind, "file": f.file, "line": f.line, "text": str(f)} for f in report.findings]
        self.write(report.kernel, found, report.unchecked)

    def refused(self, kernel, error):
        """Note a launch that was not run, whatever the program makes of the error."""
        text = f"not run: {kernel}: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        self.write(kernel, [{"kind": "not run", "file": "", "line": 0, "text": text}])

    def write(self, kernel, found, unchecked=()):
        """Add a row for who reads it."""
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"kernel": kernel, "unchecked": unchecked, "found": found}) + "\n")
        except FileNotFoundError:  # who reads it has ended
            print("warpwatch, after the end:", kernel, *(f["text"] for f in found), file=sys.stderr)

    def take(self, marked=()):
        """Return what was launched since the last time, but for findings that are left out, which are counted."""
        with open(self.path, "rb") as file:
            file.seek(self.place)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self.place += len(lines)
        taken = [json.loads(line) for line in lines.splitlines()]
        for row in taken:
            rules = [kind for one, kind in (*self.ignore, *marked) if fnmatchcase(row["kernel"], one)]
            told = [f for f in row["found"] if not {"*", f["kind"]}.intersection(rules)]
            row["left"], row["found"] = len(row["found"]) - len(told), told
        self.rows += taken
        return taken


def settings(folder=None):
    """Return what `[tool.warpwatch]` of the nearest pyproject.toml says: what to leave out, and a limit of steps."""
    here, asked = Path(folder or Path.cwd()), {}
    if path := next((path for each in (here, *here.parents) if (path := each / "pyproject.toml").is_file()), None):
        asked = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("warpwatch", {})
    unknown = set(asked) - {"ignore", "steps"} if isinstance(asked, dict) else {str(asked)}
    if unknown or type(asked.get("steps", 1)) is not int or asked.get("steps", 1) < 1:
        raise ValueError(f"{path}: [tool.warpwatch] has a list `ignore` and a number `steps`, not {unknown or asked}")
    return rules(asked.get("ignore", ())), asked.get("steps")


def rules(ignore=()):
    """Read a list of what is left out: "KERNEL: KIND" or "KERNEL", with * for any."""
    if not isinstance(ignore, (list, tuple)) or not all(isinstance(each, str) for each in ignore):
        raise ValueError(f"ignore is a list of texts like 'histogram: race' or 'test_*', not {ignore!r}")
    from warpwatch.report import KINDS

    made = [tuple(part.strip() for part in (*each.split(":", 1), "*")[:2]) for each in ignore]
    for (kernel, kind), each in zip(made, ignore, strict=True):
        if not kernel or kind not in ("*", "not run", *KINDS):
            raise ValueError(f"ignore: {each!r} is not KERNEL or KERNEL: KIND; kinds are {', '.join(KINDS)}")
    return made


class _Finder:
    """Finds a compiler as others do, and calls a function once it is imported."""

    def find_spec(self, name, path=None, target=None):
        """Return what others find, its loader changed."""
        others = (each for each in sys.meta_path if each is not self and hasattr(each, "find_spec") and name in MODULES)
        found = (each.find_spec(name, path, target) for each in others)
        if spec := next(filter(None, found), None):
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), _turn_on())
        return spec


_watches = []  # of this process: none or one


def begin():
    """Watch whatever this process launches from now on, and return the `Watch`; once."""
    if not _watches:
        if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
            raise ValueError("NUMBA_ENABLE_CUDASIM is set: kernels would run as Python, which nobody watches; unset it")
        _watches.append(Watch())
        sys.meta_path.insert(0, _Finder())
        if any(name in sys.modules for name in MODULES):
            _turn_on()
    return _watches[0]


def begin_alone():
    """Watch what this process launches; at its end, tell what was found, unless another process does."""
    watch, owner = begin(), os.getpid()

    def end():
        if os.getpid() == owner and watch.path == path and tell(watch):  # and no suite tells
            shutil.rmtree(os.path.dirname(path))
            for each in gc.get_objects():  # what else was to be done at the end is done, but for files that are open
                if isinstance(each, io.IOBase) and not each.closed and each.writable():
                    each.flush()
            os._exit(1)

    if os.environ["WARPWATCH"] != "1":
        raise ValueError(f"WARPWATCH is 1 or 0, not {os.environ['WARPWATCH']!r}")
    if watch.path is None:
        path = watch.own().path
        atexit.register(end)


def _turn_on():
    from warpwatch import launch, virtual

    launch.check_planted()
    device = virtual.turn_on()
    device.watch, device.found, device.refused = True, _watches[0].found, _watches[0].refused
    device.steps = _watches[0].steps


def tell(watch, write=None):
    """Write a summary to the standard error, or where `write` does, but for findings; return how many there are."""
    watch.take()
    found = {(row["kernel"], f["kind"], f["file"], f["line"]): f for row in reversed(watch.rows) for f in row["found"]}
    say = write or (lambda line: print(line, file=sys.stderr, flush=True))
    for line in table(watch.rows):
        say(line)
    for each in reversed(found.values()):
        if not write:
            say(each["text"])
        if os.environ.get("GITHUB_ACTIONS") == "true":  # which shows this beside the line of source
            file = os.path.relpath(each["file"]) if each["file"] else ""
            text = each["text"].replace("%", "%25").replace("\n", "%0A")
            print(f"::error file={file},line={each['line']},title=warpwatch::{text}", flush=True)
    return len(found)


def table(rows):
    """Return lines: for each kernel how many launches there were, and what was found."""
    if not rows:
        return ["warpwatch: no kernel was launched"]
    kernels, lines = {}, []
    for row in rows:
        kernels.setdefault(row["kernel"], []).append(row)
    wide = max(6, *map(len, kernels))
    for kernel, launches in sorted(kernels.items()):
        kinds = Counter(kind for row in launches for kind in {f["kind"] for f in row["found"]})
        said = [f"{kind} (in {count} of them)" for kind, count in kinds.items()] or ["nothing"]
        left = sum(row["left"] for row in launches)
        said += [f"{left} left out by `ignore`"] * bool(left)
        said += dict.fromkeys(f"not checked: {text}" for row in launches for text in row["unchecked"])
        lines.append(f"{kernel:<{wide}}  {len(launches):>8}  {', '.join(said)}")
    faulty = sum(any(row["found"] for row in launches) for launches in kernels.values())
    last = f"warpwatch: launches: {len(rows)}; kernels: {len(kernels)}, of which faulty: {faulty}; "
    last += "a planted race and a planted overrun were found before"
    return [f"{'kernel':<{wide}}  launches  found", *lines, last]
