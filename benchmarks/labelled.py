"""Score warpwatch on public CUDA programs with labelled bugs: what is found, what missed, what is said of right ones.

It takes folders of two suites: the artifact of HiRace (SC24), and Indigo3, after `bug: {all}` was put into its
codeGen/configure.txt and `python3 generate_all_codes.py cuda` was run. Names of codes are their labels. Of Indigo3 only
codes with one bug or none are taken. `nvcc` and `warpwatch` are needed. What is in TO/results.csv is not run again:

    python benchmarks/labelled.py hirace indigo3 --to build/labelled --jobs 2 --sample 400 --seed 1
"""

import argparse
import csv
import random
import re
import statistics
import subprocess
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

NVCC = "nvcc", "-arch=sm_90", "-lineinfo", "-cudart", "shared", "-no-compress"
# Codes, options for nvcc (CUDA 13 has no clock rates, which Indigo3 prints), graphs, arguments, patterns of names.
SUITES = {
    "HiRace": ("indigo/indigo_sources/*/*.cu", ["-I{}/indigo/indigo_include"], "indigo/input/{}.egr", ("256", "1024"),
               r"[a-z_]*neighbors?(_block|_warp)?|path_compression"),
    "Indigo3": ("generatedCodes/CUDA/*/*.cu", ["-I{}/lib", "-DclockRate=major", "-DmemoryClockRate=minor"],
                "inputs/{}.egr", ("1", "0"), r"[A-Z]+_CUDA(_[VE])?(_Data|_Topo)?(_Pull|_Push)?"),
}  # fmt: skip
GRAPHS = {"HiRace": "DAG_100n_200e", "Indigo3": "undirect2dim_rand_torus_100n_400e"}
# Which kinds of findings show a bug. Nothing shows that the host repeats launches for ever, or sums that overflow.
RACES = dict.fromkeys(("atomicBug", "guardBug", "raceBug", "syncBug", "RaceBug", "SyncBug"), ("race",))
BOUNDS = "boundsBug", "BoundsBug", "NbrBoundsBug", "NborBoundsBug", "ExcessThreadsBug"
SHOWN = RACES | dict.fromkeys(BOUNDS, ("out of bounds",)) | {"UninitializedBug": ("uninitialized",)}
SHOWN |= {"FieldBug": ("out of bounds", "uninitialized"), "LivelockBug": (), "OverflowBug": (), "PrecedenceBug": ()}
Code = namedtuple("Code", "suite folder path label")
VERDICTS = "found", "missed", "clean", "flagged", "not run"
COLUMNS = "suite", "graph", "code", "label", "findings", "unexpected", "missing", "result", "seconds", "verdict"
FOUND = re.compile(r"^([a-z -]+): \w+, (\S+), line (\d+): (.*)", re.M)


def codes_of(folder):
    """Return the codes of a suite."""
    made = [Code(suite, folder, path, re.findall("_(?!No)([A-Za-z]+Bug)", path.stem))
            for suite, about in SUITES.items() for path in sorted(folder.glob(about[0]))]  # fmt: skip
    if not made:
        raise SystemExit(f"{folder} has neither of {', '.join(about[0] for about in SUITES.values())}")
    return [code for code in made if code.suite != "Indigo3" or len(code.label) < 2]


def sample(codes, count, seed):
    """Choose codes, of each label and pattern as many as of others, as far as there are so many."""
    rng, groups = random.Random(seed), {}
    for code in codes:
        groups.setdefault((*code.label, re.match(SUITES[code.suite][4], code.path.stem)[0]), []).append(code)
    ranked = [(n, rng.random(), code) for each in groups.values() for n, code in enumerate(rng.sample(each, len(each)))]
    return [code for *_, code in sorted(ranked, key=lambda one: one[:2])[:count]]


def run(code, graph, to, limit):
    """Compile a code, unless that was done, and run it; return its row."""
    _, options, inputs, numbers, _ = SUITES[code.suite]
    program, row = to / code.suite / code.path.stem, [code.suite, graph, code.path.stem, " ".join(code.label)]
    program.parent.mkdir(parents=True, exist_ok=True)
    if not program.exists():
        new = program.with_suffix(f".{graph}")  # others may compile it at the same time
        command = [*NVCC, *(each.format(code.folder) for each in options), code.path, "-o", new]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            return [*row, "nvcc: " + " ".join(made.stderr.split())[:200], "", row[3], "", 0, "not run"]
        new.rename(program)
    command = ["timeout", str(limit), "warpwatch", "run", program, code.folder / inputs.format(graph), *numbers]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    seconds, told = round(time.perf_counter() - begin, 2), done.stderr  # what was found up to the limit is told, too
    refused = re.findall(r"^not run: .*", told, re.M)[:1] + [f"ended after {limit:g} s"] * (done.returncode == 124)
    if not refused and not re.search(r"^warpwatch: launches: \d", told, re.M):
        refused = [f"status {done.returncode}: {' '.join(told.split())[-200:]}"]
    findings, right = FOUND.findall(told), re.search("result (matches|differs)|$", done.stdout)[1] or ""
    short = [" ".join([kind, line, *re.findall(r" in line (\d+)", text)]) for kind, _, line, text in findings]
    unexpected, missing, verdict = judge(code, findings, refused)
    return [*row, "; ".join(short + refused), unexpected, missing, right, seconds, verdict]


def judge(code, findings, refused):
    """Return kinds of findings that no label explains, labels that nothing shows, and the verdict."""
    missing = [bug for bug in code.label if not any(shows(bug, code.path, *finding) for finding in findings)]
    unexpected = sorted({finding[0] for finding in findings} - {kind for bug in code.label for kind in SHOWN[bug]})
    wrong, verdicts = (missing, VERDICTS[:2]) if code.label else (unexpected, VERDICTS[2:])
    verdict = "not run" if refused and bool(wrong) == bool(code.label) else verdicts[bool(wrong)]
    return ", ".join(unexpected), " ".join(missing), verdict


def shows(bug, path, kind, file, line, text):
    """Tell whether a finding shows a bug; a race must be where the suite says, or where a barrier can be missing."""
    if kind != "race" or bug.lower() == "syncbug":
        return kind in SHOWN[bug] and (kind != "race" or "shared memory" in text)
    marked = [n + 2 for n, row in enumerate(path.read_text().splitlines()) if f"// {bug} here" in row]
    marked = range(marked[0], marked[-1]) if bug == "guardBug" else marked  # which is around another statement
    at = {int(line), *map(int, re.findall(r" in line (\d+)", text))}
    return bug in RACES and file == path.name and not at.isdisjoint(marked)


def tell(rows):
    """Print tables: what became of each label, and of all with a race, and the codes that want an explanation."""
    print(f"\n| suite | graph | bug | codes | {' | '.join(VERDICTS)} | seconds |\n|---|---|---{'|--:' * 7}|")
    groups = {}
    for row in rows:
        label, race = row["label"].split(), re.search(r"\brace \d", row["findings"])
        for bug in [*(label or ["none"]), *["any race"] * any(bug in RACES for bug in label)]:
            found = race if bug == "any race" else bug in label and bug not in row["missing"].split()
            told = "found" if found else row["verdict"], float(row["seconds"])
            groups.setdefault((row["suite"], row["graph"], bug), []).append(told)
    for names, each in sorted(groups.items()):
        verdicts, seconds = zip(*each, strict=True)
        counts = [len(each), *map(verdicts.count, VERDICTS), f"{statistics.median(seconds):.2f}"]
        print("|", " | ".join(map(str, [*names, *counts])), "|")
    for row in rows:
        strange = row["unexpected"] or row["result"] == "differs" and not row["label"]
        if strange or row["verdict"] not in ("found", "clean"):
            print(*(row[name] for name in COLUMNS[-1:] + COLUMNS[1:8]), sep=" | ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="checked-out suites")
    parser.add_argument("--to", type=Path, required=True, help="folder of results and programs")
    parser.add_argument("--graphs", nargs="+", help="names of inputs, if not one of 100 nodes")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time (%(default)s)")
    parser.add_argument("--limit", type=float, default=60, help="seconds of a program (%(default)s)")
    parser.add_argument("--sample", type=int, help="how many codes of each suite; all if not given")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    asked, chosen = parser.parse_args(), {}
    for code in [code for each in asked.folders for code in sample(codes_of(each), asked.sample, asked.seed)]:
        chosen |= {(code.suite, graph, code.path.stem): code for graph in asked.graphs or [GRAPHS[code.suite]]}
    asked.to.mkdir(parents=True, exist_ok=True)
    with open(asked.to / "results.csv", "a+", newline="", buffering=1) as file, ThreadPoolExecutor(asked.jobs) as pool:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(COLUMNS)
        file.seek(0)
        rows = {tuple(row.values())[:3]: row for row in csv.DictReader(file)}
        left = [(code, key[1], asked.to, asked.limit) for key, code in chosen.items() if key not in rows]
        for future in as_completed([pool.submit(run, *each) for each in left]):
            writer.writerow(row := future.result())
            rows[tuple(row[:3])] = dict(zip(COLUMNS, map(str, row), strict=True))
    tell([rows[key] for key in chosen])


if __name__ == "__main__":
    main()
