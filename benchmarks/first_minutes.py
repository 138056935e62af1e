"""The first minutes on a GPU that one has for minutes only: what works, how fast it is, and why; the best first.

``python benchmarks/first_minutes.py --minutes 8`` needs the source tree and a machine's own Python (numpy, numba,
numba-cuda, scipy, pandas, matplotlib, tqdm, pytest, hypothesis; PyTorch and JAX compete where they are). Every part
(`stages.py`) is a process of its own, which is ended when its share of the time is over; time that a part leaves goes
to those after it. What a part notes and records is in ``<out>/<device>.tar.gz`` within seconds. The last lines are a
table of what was found. Unpacked over the source tree, the archive is ``data/results/<device>/`` and
``build/first_minutes/<device>/``, and ``--resume`` goes on from there: with what was cut off, and what failed.

One that is named runs alone: any of `PARTS`, or counters (`ncu`, of every kernel), speed (the comparisons of
docs/speed.md, at length), layers (steps in PyTorch, by its own layers and by ours), grid (training steps over sizes),
sizes (what "auto" takes over sizes). Without a .git, ``--commit`` says which commit the source is.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PATHS = os.pathsep.join([str(REPO), str(REPO / "warpwatch/src")])
sys.path[:0] = PATHS.split(os.pathsep)

import parts  # noqa: E402
import stages  # noqa: E402

from bppsa_nb.machine import backends, files  # noqa: E402
from bppsa_nb.papers import experiments, provenance  # noqa: E402

PARTS = {  # in order of worth, with their weights: seconds of eight minutes
    "smoke": 45,
    "figures": 110,
    "profile": 45,
    "quick": 80,
    "tests": 100,
    "sanitize": 100,
}
TOGETHER = {"tests", "sanitize"}  # which time nothing, and share the time of one of them
LONG = ("figures",)  # of few items, which may take all of the time
LEAST = 10  # seconds for which no part begins any more
ITEM, PORTION = 30, 0.6  # seconds that an item may always take, or that portion of its part's
PACK, POLL = 5, 0.25  # seconds
WIDTH, LINES = 140, 10  # of what the table says of a part
WORKER = Path(stages.__file__)


class Minutes:
    """Runs parts one after the other, keeps what they have, and says in the end what they found."""

    def __init__(self, out, minutes):
        self.end, self.out, self.device = time.monotonic() + 60 * minutes, Path(out), parts.device()
        self.lock = threading.RLock()
        self.folder = files.root() / parts.NOTES / self.device
        self.folder.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        self.state = self.folder / "parts.json"
        self.parts = json.loads(self.state.read_text()) if self.state.exists() else {}

    def forget(self, names, failed_only):
        """Forget what is known of parts, so that they run anew: all of it, or only what failed.

        Rows of a table that is not complete are forgotten, too, where another commit measured them.
        """
        commit = provenance.source_state()[0]
        for name in names:
            path = self.folder / f"{name}.jsonl"
            if failed_only and self.parts.get(name, {}).get("outcome") == "done":
                continue
            kept = [note for note in parts.notes(path).values() if failed_only and note.get("failed") is False]
            kept = [note for note in kept if not note.get("rows") or note.get("commit") == commit]
            path.write_text("".join(json.dumps(note) + "\n" for note in kept))
            path.with_suffix(".txt").write_text("")
            self.parts.pop(name, None)

    def run(self, names):
        """Run parts, each in its share of what is left."""
        names = [name for name in names if name not in self.parts]
        while names:
            together = [name for name in names if name == names[0] or {name, names[0]} <= TOGETHER]
            names = [name for name in names if name not in together]
            weights = [max(PARTS.get(name, 1) for name in together), *(PARTS[name] for name in names)]
            seconds = (self.end - time.monotonic()) * weights[0] / sum(weights)
            with ThreadPoolExecutor() as pool:
                list(pool.map(self.begin, together, [seconds] * len(together)))

    def begin(self, name, seconds):
        """Run a part, and say what came of it."""
        if seconds < LEAST:
            self.settle(name, 0, "no time left")
            return
        print(f"--- {name}: at most {seconds:.0f} s", flush=True)
        begun = time.monotonic()
        outcome = self.part(name, seconds)
        failed = sum(bool(note.get("failed")) for note in parts.notes(self.folder / f"{name}.jsonl").values())
        self.settle(name, time.monotonic() - begun, f"{outcome}, {failed} failed" if failed else outcome)
        said = (self.folder / f"{name}.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        print("\n".join(line[: 2 * WIDTH] for line in said[-8:]), flush=True)

    def settle(self, name, seconds, outcome):
        """Write down what became of a part."""
        with self.lock:
            self.parts[name] = {"seconds": round(seconds), "outcome": outcome}
            files.write_json(self.state, self.parts)
        self.pack()

    def part(self, name, seconds):
        """Run a part until it is done or its time is over, anew after everything that made its process fail."""
        most = seconds if name in LONG else max(ITEM, PORTION * seconds)
        end, path, known = time.monotonic() + seconds, self.folder / f"{name}.jsonl", -1
        while (left := end - time.monotonic()) > 0:
            status = self.watch(name, left, most)
            if status == 0:
                return "done"
            if status in (None, parts.SHORT):
                break
            before, known = known, sum("said" in note for note in parts.notes(path).values())
            if known == before or (status != parts.AGAIN and known <= 0):
                return f"ended with status {status}"
        return "cut off"

    def watch(self, name, seconds, most):
        """Run a part's process; return its exit status, None if its time was over.

        What takes longer than `most` seconds, or ends the process, is noted as failed.
        """
        begun, packed = time.monotonic(), time.monotonic()
        command = [sys.executable, WORKER, name, "--seconds", f"{seconds:.1f}"]
        path, running, since = self.folder / f"{name}.jsonl", None, begun
        with open(self.folder / f"{name}.txt", "ab") as log:
            how = {"cwd": files.root(), "env": os.environ | {"PYTHONPATH": PATHS}, "start_new_session": True}
            process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, **how)
        try:
            while (status := process.poll()) is None:
                time.sleep(POLL)
                now = time.monotonic()
                if now - packed > PACK:
                    packed = now
                    with suppress(FileNotFoundError):  # written anew just now: the next one has it
                        self.pack()
                started = next((item for item, note in reversed(parts.notes(path).items()) if "said" not in note), None)
                running, since = started, (since if started == running else now)
                if now - begun > seconds:
                    return None
                if running is not None and now - since > most:
                    status = f"longer than {most:.0f} s"
                    break
        finally:
            with suppress(ProcessLookupError):  # what it has started, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status not in (0, parts.AGAIN, parts.SHORT):
            for item, note in parts.notes(path).items():
                if "said" not in note:
                    parts.write(path, item=item, said=f"ended the process: {status}", failed=True)
        return status

    def pack(self):
        """Pack all there is of this device, in one go."""
        target = self.out / f"{self.device}.tar.gz"
        with self.lock, tarfile.open(target.with_suffix(".new"), "w:gz") as archive:
            for folder in (files.root() / "data" / experiments.REFERENCES / self.device, self.folder):
                if folder.exists():
                    archive.add(folder, str(folder.relative_to(files.root())))
            archive.close()
            target.with_suffix(".new").replace(target)

    def table(self):
        """Say in a few lines what was found."""
        lines = [f"{'part':<10}{'seconds':>8}  outcome"]
        for name, part in self.parts.items():
            found = {item: note for item, note in parts.notes(self.folder / f"{name}.jsonl").items() if "said" in note}
            counted = {word: 0 for word in parts.COUNTED}
            told = []
            for item, note in sorted(found.items(), key=lambda pair: pair[0] != "versions" and not pair[1]["failed"]):
                if note["said"] in counted:
                    counted[note["said"]] += 1
                else:
                    told.append(f"  {'FAILED ' * note['failed']}{item}: {note['said']}".replace("\n", " ")[:WIDTH])
            number = ", ".join(f"{count} {word}" for word, count in counted.items() if count)
            lines.append(f"{name:<10}{part['seconds']:>8}  {part['outcome']}{number and f'; {number}'}")
            lines += told[:LINES]
            if len(told) > LINES:
                lines.append(f"  and {len(told) - LINES} more")
        return "\n".join(lines)


def main(arguments=None):
    """Run all parts, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", choices=stages.STAGES, help="runs alone")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which nothing runs; %(default)s")
    parser.add_argument("--out", default=os.environ.get("OUT", "build"), help="where the archive goes")
    parser.add_argument("--resume", action="store_true", help="go on where it was cut off")
    parser.add_argument("--commit", help="what the source is, where there is no .git: 40 digits")
    chosen = parser.parse_args(arguments)
    if not 0 < chosen.minutes < float("inf"):
        parser.error(f"--minutes must be a number above 0, got {chosen.minutes}")
    if Path(chosen.out).is_file():
        parser.error(f"--out must be a folder, got the file {chosen.out}")
    if chosen.commit is not None:
        if not re.fullmatch("[0-9a-f]{40}", chosen.commit):
            parser.error(f"--commit must be the 40 digits of a commit, got {chosen.commit!r}")
        os.environ["BPPSA_NB_COMMIT"] = chosen.commit
    if not backends.cuda_available():
        parser.error("no GPU was found; BPPSA_NB_CUDA=ptx tries a stage at tiny sizes, on the CPU")
    try:
        provenance.check_committed()
    except ValueError as error:
        parser.error(str(error))
    minutes, names = Minutes(chosen.out, chosen.minutes), [chosen.stage] if chosen.stage else list(PARTS)
    minutes.forget(names, failed_only=chosen.resume)
    minutes.run(names)
    print(f"\n{minutes.device}, all in {minutes.out / minutes.device}.tar.gz\n{minutes.table()}", flush=True)


if __name__ == "__main__":
    main()
