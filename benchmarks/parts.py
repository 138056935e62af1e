"""What a stage of `first_minutes.py` notes: each of its items when it begins, and when it is done.

Notes are in ``build/first_minutes/<device>/<stage>.jsonl``; what is there already is passed over. An item that raises
is noted as failed, and ends the process, for a GPU's error stays with its process: `first_minutes.py` starts another.
"""

import json
import os
import shutil
import time
import traceback

from bppsa_nb.machine import backends, files
from bppsa_nb.papers import experiments, provenance

NOTES = "build/first_minutes"
AGAIN, SHORT = 3, 4  # exit statuses: something failed, go on in a new process; time was over
COUNTED = ("passed", "skipped", "clean")  # what need not be told one by one
METHODS = ("linear", "chunked", "blelloch")
TINY = bool(backends.emulated())


def device():
    """Name the folder of this device's recordings; none of what stands in for a GPU is its processor's."""
    return "executor" if TINY else provenance.device()


def write(path, **note):
    """Add a note, all at once: who reads may do so at any time, and who writes may be ended at any."""
    with open(path, "ab", buffering=0) as file:
        file.write((json.dumps(note, default=lambda number: number.item()) + "\n").encode())


def notes(path):
    """Read notes: the latest of each item, in the order in which they began."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return {note["item"]: note for note in map(json.loads, lines)}


class Part:
    """What a stage has until when, and what is known of it."""

    def __init__(self, name, seconds):
        self.name, self.end, self.device = name, time.monotonic() + seconds, device()
        self.path = files.root() / NOTES / self.device / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.known = {item for item, note in notes(self.path).items() if "said" in note}
        self.short, self.since = False, time.monotonic()

    def left(self):
        """Return how many seconds are left."""
        return self.end - time.monotonic()

    def begins(self, item, least=5):
        """Tell whether an item is to be done, and if so note that it begins."""
        if item in self.known:
            return False
        if self.left() < least:
            self.short = True
            return False
        write(self.path, item=item, shard=os.environ.get("SHARD"))
        self.since = time.monotonic()
        return True

    def note(self, item, said, failed=False, **more):
        """Note what came of an item."""
        failed = failed or said.startswith("WRONG")
        write(self.path, item=item, said=said, failed=failed, commit=provenance.source_state()[0], **more)
        print(f"{item}: {said} ({time.monotonic() - self.since:.1f} s)", flush=True)

    def do(self, item, act, *arguments, least=5):
        """Do an item, unless it is done; what it returns is noted: what to say, and rows of a table."""
        if not self.begins(item, least):
            return
        try:
            said, *rows = act(*arguments)
        except Exception as error:
            traceback.print_exc()
            self.note(item, f"{type(error).__name__}: {error}", failed=True)
            raise SystemExit(AGAIN) from error
        self.note(item, said, rows=rows[0] if rows else [])

    def record(self, name, scale, **notes_of_table):
        """Record the rows of all items as a table of this device."""
        if rows := [row for note in notes(self.path).values() for row in note.get("rows", ())]:
            with experiments.references():
                experiments.record(rows, name, scale, 0, {"backend": "cuda"} | notes_of_table)


def tool(name):
    """Find one of NVIDIA's programs, or return None."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
