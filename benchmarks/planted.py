"""Plant faults in the package, one after the other, and see which ring of tests finds each of them.

`planted.toml` lists them: 150 edits of a line. Tests run in a copy of what is committed: first those of the edited
module, then those of its room, then all others, until one fails: twice with the edit, and not without it. Run
it by the Python of `make test`:

    python benchmarks/planted.py --check                          only look whether the list is as it should be
    python benchmarks/planted.py --only scan chains/plan.py       rooms, or files
    python benchmarks/planted.py --jobs 2 --ring both --resume    all of them, for hours; what is done stays done

What is found is in `build/planted.csv`, and a table of it is printed at the end.
"""

import argparse
import ast
import csv
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "build" / "planted.csv"
RINGS = {"inner": "not outer and not full and not peers", "outer": "outer and not full and not peers"}
ROOMS = (
    *("machine", "scan", "operands", "chains", "cells", "graphs", "networks", "multigrid", "training"),
    *("schedule", "puzzles", "distributed", "papers", "warpwatch"),
)
KINDS, FEWEST = {"check": 40, "kernel": 20, "other": 90}, 5  # how many of each there are, and in a room at least
SILENCE = 600  # seconds in which no test ends: it hangs
# What would find an edit without understanding it, and why.
BY_TEXT = {
    "tests/test_house.py": "counts lines, and reads imports and names",
    "tests/test_machine_code.py::test_hot_kernels_keep_to_their_budget": "compares with recorded machine code",
}

broken = set()  # tests that fail without an edit, too
stopped = threading.Event()


class Edit(NamedTuple):
    """A fault: in a file of the package, what stands there, what shall, and its kind."""

    file: str
    old: str
    new: str
    kind: str

    @property
    def room(self):
        """The folder of the file."""
        return self.file.partition("/")[0]

    @property
    def path(self):
        """The file, from the folder of a checkout on."""
        return Path("warpwatch/src" if self.room == "warpwatch" else "bppsa_nb", self.file)

    def __str__(self):
        return f"{self.file}: {self.old} -> {self.new}"

    def text(self, edited):
        """Return the file, edited or as it is."""
        text = (REPO / self.path).read_text(encoding="utf-8")
        return text.replace(self.old, self.new) if edited else text


def wrong(edits):
    """List what is wrong with the edits, in words."""
    found = [f"{edit} is there twice" for edit, count in Counter(edits).items() if count > 1]
    for edit in edits:
        text, edited = edit.text(False), edit.text(True)
        if text.count(edit.old) != 1 or "\n" in edit.old + edit.new:
            found.append(
                f"{edit}: what is replaced must be there once, within a line; it is {text.count(edit.old)} times"
            )
            continue
        try:
            compile(edited, edit.file, "exec")
        except SyntaxError as error:
            found.append(f"{edit}: {error}")
            continue
        if ast.dump(ast.parse(edited)) == ast.dump(ast.parse(text)):
            found.append(f"{edit} changes no code")
    kinds, rooms = (Counter(getattr(edit, name) for edit in edits) for name in ("kind", "room"))
    if kinds != KINDS or set(rooms) != set(ROOMS) or min(rooms.values()) < FEWEST:
        found.append(f"edits must be {KINDS}, {FEWEST} or more of each room, got {dict(kinds)}, {dict(rooms)}")
    return found


class Copy:
    """A checkout of its own, whose tests run with an edit or without."""

    def __init__(self, folder):
        self.folder, self.log = Path(folder).resolve() / "copy", Path(folder) / "log"
        subprocess.run(["git", "clone", "--quiet", "--shared", REPO, self.folder], check=True)
        paths = os.pathsep.join([str(self.folder), str(self.folder / "warpwatch/src")])
        self.environment = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
        program = [sys.executable, "-c", "import bppsa_nb, warpwatch; print(bppsa_nb.__file__, warpwatch.__file__)"]
        said = subprocess.run(program, cwd=folder, env=self.environment, capture_output=True, text=True, check=True)
        if not all(self.folder in Path(file).parents for file in said.stdout.split()):
            raise RuntimeError(f"tests must import the packages from {self.folder}, got {said.stdout.strip()}")
        patterns = "tests/**/test_*.py", "warpwatch/tests/test_*.py"
        files = [path for each in patterns for path in self.folder.glob(each)]  # PyTorch's need it to be read
        self.tests = [path.relative_to(self.folder).as_posix() for path in files if "torch" not in path.name]
        durations = self.folder / "tests" / "durations.csv"  # the longest tests come first; here, the quickest shall
        durations.write_text(re.sub(r",(?=\d)", ",-", durations.read_text(encoding="utf-8")), encoding="utf-8")

    def write(self, edit, edited):
        """Write the file of an edit, edited or as it was."""
        path = self.folder / edit.path
        path.write_text(edit.text(edited), encoding="utf-8")
        for kept in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):  # which goes by seconds, and by the size
            kept.unlink()

    def groups(self, edit):
        """Put the files of tests in groups: those named after the module, those of its room, and all others."""
        path = Path(edit.file)
        name = path.parent.name if path.stem == "__init__" else path.stem
        name, form = re.fullmatch(r"(.*?)(_cpu|_cuda)?", name).groups(default="no form")
        groups, garbage = ([], [], []), "test_garbage" if edit.kind == "check" else name
        for test in self.tests:
            near = name in Path(test).stem or garbage in Path(test).stem or Path(test).stem.endswith(form)
            near = near or form == "_cuda" and '"cuda"' in (self.folder / test).read_text(encoding="utf-8")
            groups[0 if near else 1 if f"{edit.room}/" in test else 2].append(test)
        return [group for group in groups if group]

    def run(self, edit, edited, tests, ring, left_out):
        """Run tests until one fails; return it, and whether it "fails", "hangs" or "crashes"; or None if all pass."""
        self.write(edit, edited)
        command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-x", "-v", "-p", "no:cacheprovider"]
        command += ["-m", RINGS[ring]]
        command += [*(f"--deselect={test}" for test in left_out), *(test for test in tests if test not in left_out)]
        with open(self.log, "wb") as log:
            how = {"cwd": self.folder, "env": self.environment, "stdout": log, "stderr": log}
            status = self._wait(subprocess.Popen(command, start_new_session=True, **how)) if {*tests} - left_out else 0
        if status in (0, 5):  # 5: there are none in this ring
            return None
        text = self.log.read_text(encoding="utf-8", errors="replace")
        # A name may hold " - ".
        failed = re.findall(r"^((?:\w+/)?tests/.*::.*) (?:FAILED|ERROR) +\[ *\d+%\]$", text, re.MULTILINE)
        failed = failed or re.findall(r"^(?:FAILED|ERROR) ((?:\w+/)?tests/.*?)(?: - .*)?$", text, re.MULTILINE)
        if failed:
            return failed[0], "fails"
        if status in (1, 2, 3, 4):  # pytest has something else to say, of conftest.py for one
            return f"pytest: {text.strip().splitlines()[-1]}", "fails"
        begun = re.findall(r"^((?:\w+/)?tests/\S+?\.py::.*?)(?: [A-Z]{4,}.*|Fatal.*)?$", text, re.MULTILINE)
        return begun[-1].strip() if begun else tests[0], "hangs" if status is None else "crashes"

    def _wait(self, process):
        """Return a process's status, or None if it had to be ended, since nothing happened for too long."""
        size, since = -1, time.monotonic()
        try:
            while process.poll() is None:
                if stopped.wait(0.2):
                    raise KeyboardInterrupt
                if self.log.stat().st_size != size:
                    size, since = self.log.stat().st_size, time.monotonic()
                if time.monotonic() - since > SILENCE:
                    return None
            return process.returncode
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # it ends what it has started
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def find(self, edit, rings):
        """Return the ring that finds an edit, and the test; two empty texts if none does."""
        try:
            for ring, tests in itertools.product(rings, self.groups(edit)):
                by_chance = set()  # what failed once with the edit, and not again
                while found := self.run(edit, True, tests, ring, left_out := {*BY_TEXT, *broken, *by_chance}):
                    test, how = found
                    alone = [test] if "::" in test or test in tests else tests
                    if test in left_out:
                        raise RuntimeError(f"tests do not run: {test}")
                    if self.run(edit, False, alone, ring, left_out):
                        broken.add(test)
                    elif how == "hangs" or self.run(edit, True, alone, ring, left_out):
                        return ring, test if how == "fails" else f"{test} {how}"
                    else:
                        by_chance.add(test)
            return "", ""
        finally:
            self.write(edit, False)


def run(edits, rings, jobs, rows):
    """Hand edits to the tests; add what comes of each to the rows, and to the file of results."""
    copies, began = SimpleQueue(), {}

    def find(edit):
        copy, began[edit] = copies.get(), time.monotonic()
        try:
            return copy.find(edit, rings)
        finally:
            copies.put(copy)

    RESULTS.parent.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="planted-") as folder,
        open(RESULTS, "w", newline="", encoding="utf-8", buffering=1) as file,
        ThreadPoolExecutor(jobs) as pool,
    ):
        writer = csv.DictWriter(file, [*Edit._fields, "rings", "found", "test", "seconds"])
        writer.writeheader()
        writer.writerows(rows)
        try:
            for number in range(jobs):
                (place := Path(folder, str(number))).mkdir()
                copies.put(Copy(place))
            running = {pool.submit(find, edit): edit for edit in edits}
            for done in as_completed(running):
                edit, (found, test) = running[done], done.result()
                came = {"rings": " ".join(rings), "found": found, "test": test}
                rows.append(edit._asdict() | came | {"seconds": round(time.monotonic() - began[edit])})
                writer.writerow(rows[-1])
                said = f"{found}: {test}" if found else "MISSED"
                print(f"{edit}\n    {said} ({rows[-1]['seconds']} s)", flush=True)
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def table(rows):
    """Return a table in words: how many edits each ring found, by room and by kind."""
    lines = [f"{'':<12}{'edits':>7}{'inner':>7}{'outer':>7}{'missed':>8}"]
    groups = [(room, [row for row in rows if row["file"].startswith(f"{room}/")]) for room in ROOMS]
    groups += [(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS]
    for name, group in [*groups, ("all", rows)]:
        count = Counter(row["found"] for row in group)
        lines.append(f"{name:<12}{len(group):>7}{count['inner']:>7}{count['outer']:>7}{count['']:>8}")
    return "\n".join(lines)


def done_before(edits, rings):
    """Return rows of the file of results, of edits that need not be handed to these rings again."""
    with open(RESULTS, newline="", encoding="utf-8") as file:
        known = {tuple(row[name] for name in Edit._fields): row for row in csv.DictReader(file)}
    rows = [known[edit] for edit in edits if edit in known]
    return [row for row in rows if row["found"] or {*rings} <= {*row["rings"].split()}]


def main():
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only look at the list")
    parser.add_argument("--only", nargs="+", default=[""], metavar="ROOM", help="or a file, such as scan/linear.py")
    parser.add_argument("--jobs", type=int, default=1, help="how many copies are tested at a time")
    parser.add_argument("--ring", choices=("inner", "both"), default="inner")
    parser.add_argument("--resume", action="store_true", help="keep what build/planted.csv has")
    given = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]  # what a hook sets would lead git elsewhere
    edits = [Edit(**each) for each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["edit"]]
    if problems := wrong(edits):
        sys.exit("\n".join(problems))
    print(f"{len(edits)} edits: each has its place, and changes the code")
    if given.check:
        return
    chosen = [edit for edit in edits if edit.file.startswith(tuple(given.only))]
    if not chosen or subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "bppsa_nb", "tests"], cwd=REPO).returncode:
        sys.exit("there must be edits of what is asked for; bppsa_nb/ and tests/ must be committed, which is copied")
    rings = list(RINGS)[: 1 if given.ring == "inner" else 2]
    rows = done_before(edits, rings) if given.resume and RESULTS.is_file() else []
    done = {tuple(row[name] for name in Edit._fields) for row in rows}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run([edit for edit in chosen if edit not in done], rings, given.jobs, rows)
    except KeyboardInterrupt:
        sys.exit("stopped; --resume goes on from here")
    finally:
        print(table(rows))


if __name__ == "__main__":
    main()
