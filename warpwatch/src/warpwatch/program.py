"""Whole programs watched, without edits: what they launch, wherever Numba is imported, in child processes too.

`begin` waits for a compiler to be imported; then a device is on. One process owns what is found; all others append to
its file, a launch a line. Only Python's own library is imported before there is something to watch.
"""

import atexit
import fnmatch
import importlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

SITE = str(Path(__file__).with_name("site"))
KINDS = ("race", "out of bounds", "misaligned", "uninitialized", "freed", "read-only", "barrier", "shuffle", "mask",
         "trap", "endless")  # fmt: skip
MODULES = "numba.cuda", "numba_cuda_mlir.cuda"


class Watch:
    """What this process and its children launch; `rows` are launches, as dicts, of which `new` were not taken yet."""

    def __init__(self):
        self.path, self.owner, self.rows, self.new, self.read_to = os.environ.get("WARPWATCH_TO"), None, [], [], 0
        self.ignore, self.marked = ignored(), []

    def own(self):
        """Let what is found come to this process, from children too, which the environment tells to watch."""
        folder = tempfile.mkdtemp(prefix="warpwatch-")
        self.owner, self.path, self.read_to = os.getpid(), os.path.join(folder, "launches"), 0
        Path(self.path).touch()
        paths = [SITE, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", SITE))]
        os.environ |= {"WARPWATCH": "1", "WARPWATCH_TO": self.path, "PYTHONPATH": os.pathsep.join(paths)}
        atexit.register(lambda: os.getpid() == self.owner and shutil.rmtree(folder))
        return self

    def found(self, report):
        """Take the report of a launch."""
        told, left = [], 0
        for each in report.findings:
            if leaves_out(self.ignore + self.marked, each.kernel, each.kind):
                left += 1
            else:
                told.append({"kind": each.kind, "file": each.file, "line": each.line, "text": str(each)})
        row = {"kernel": report.kernel, "found": told, "left": left, "unchecked": report.unchecked}
        if self.owner == os.getpid():
            self.new.append(row)
        else:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def take(self):
        """Return what was launched since the last time, here and in children."""
        with open(self.path, "rb") as file:
            file.seek(self.read_to)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self.read_to += len(lines)
        taken = self.new + [json.loads(line) for line in lines.splitlines()]
        self.new = []
        self.rows += taken
        return taken


def ignored(folder=None):
    """Return what `[tool.warpwatch]` of the nearest pyproject.toml leaves out."""
    here = Path(folder or os.getcwd())
    for path in (parent / "pyproject.toml" for parent in (here, *here.parents)):
        if path.is_file():
            asked = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("warpwatch", {})
            if unknown := set(asked) - {"ignore"}:
                raise ValueError(f"{path}: [tool.warpwatch] has no {', '.join(sorted(unknown))}, but ignore")
            return rules(asked.get("ignore", []), f"{path}: ignore")
    return []


def rules(ignore=(), name="ignore"):
    """Read a list of what is left out: "KERNEL: KIND" or "KERNEL", with * for any."""
    if not isinstance(ignore, (list, tuple)) or not all(isinstance(each, str) for each in ignore):
        raise ValueError(f"{name} is a list of texts like 'histogram: race' or 'tests_*', not {ignore!r}")
    made = []
    for each in ignore:
        kernel, _, kind = (part.strip() for part in each.partition(":"))
        if not kernel or kind not in ("", "*", *KINDS):
            raise ValueError(f"{name}: {each!r} is not KERNEL or KERNEL: KIND; kinds are {', '.join(KINDS)}")
        made.append((kernel, kind or "*"))
    return made


def leaves_out(rules, kernel, kind):
    """Tell whether a finding is left out."""
    return any(fnmatch.fnmatchcase(kernel, one) and other in ("*", kind) for one, other in rules)


class _Finder:
    """Finds a compiler as others do, and calls a function once it is imported."""

    def __init__(self, then):
        self.then, self.busy = then, False

    def find_spec(self, name, path=None, target=None):
        """Return what others find, its loader changed."""
        if name not in MODULES or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), self.then())
        return spec


_watches = []  # of this process: none or one


def begin():
    """Watch whatever this process launches from now on, and return the `Watch`; once."""
    if not _watches:
        _watches.append(Watch())
        if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
            raise ValueError("NUMBA_ENABLE_CUDASIM is set: kernels would run as Python, which nobody watches; unset it")
        sys.meta_path.insert(0, _Finder(_turn_on))
        if any(name in sys.modules for name in MODULES):
            _turn_on()
    return _watches[0]


def begin_alone():
    """Watch what this process launches; at its end, tell what was found, unless another process does."""
    watch = begin()
    if watch.path is None:
        atexit.register(_at_exit, watch.own())


def _turn_on():
    from warpwatch import control, virtual

    control.check()
    if (there := virtual.current()) is None:
        virtual.Device(True, _watches[0].found).turn_on()
    else:
        there.watch, there.found = True, _watches[0].found


def _at_exit(watch):
    if os.getpid() == watch.owner and tell(watch):
        shutil.rmtree(os.path.dirname(watch.path))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # what else was to be done at the end is done: this was registered first


def tell(watch, write=None):
    """Write a summary of all that was launched; return how many findings there are, each counted once.

    To the standard error, unless `write` takes lines, the findings themselves then left out.
    """
    watch.take()
    found, say = {}, write or (lambda line: print(line, file=sys.stderr))
    for row in watch.rows:
        for each in row["found"]:
            found.setdefault((row["kernel"], each["kind"], each["file"], each["line"]), each)
    for line in table(watch.rows):
        say(line)
    for each in found.values():
        if not write:
            say(each["text"])
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(annotation(each), flush=True)
    return len(found)


def annotation(finding):
    """Return what GitHub shows beside a line of source."""
    text = finding["text"].replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    file = os.path.relpath(finding["file"]) if finding["file"] else ""
    return f"::error file={file},line={finding['line']},title=warpwatch::{text}"


def table(rows):
    """Return lines: for each kernel how many launches there were, and what was found."""
    if not rows:
        return ["warpwatch: no kernel was launched"]
    kernels, lines = {}, []
    for row in rows:
        kernels.setdefault(row["kernel"], []).append(row)
    wide = max(6, *map(len, kernels))
    lines.append(f"{'kernel':<{wide}}  launches  found")
    for kernel, launches in sorted(kernels.items()):
        kinds = Counter(each["kind"] for row in launches for each in row["found"])
        said = [f"{kind} in {count} launches" if count > 1 else kind for kind, count in kinds.items()] or ["nothing"]
        if left := sum(row["left"] for row in launches):
            said.append(f"{left} left out by `ignore`")
        said += dict.fromkeys(f"not checked: {text}" for row in launches for text in row["unchecked"])
        lines.append(f"{kernel:<{wide}}  {len(launches):>8}  {', '.join(said)}")
    faulty = sum(any(row["found"] for row in launches) for launches in kernels.values())
    lines.append(f"warpwatch: {len(rows)} launches of {len(kernels)} kernels, {faulty} of them faulty; {CONTROL}")
    return lines


CONTROL = "a planted race and a planted overrun were found before"
