"""The command `warpwatch`: a program watched, or a kernel checked."""

import argparse
import os
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

from warpwatch import check, control, program

SAID = tomllib.loads(Path(__file__).with_name("check.toml").read_text(encoding="utf-8"))


def main(arguments=None):
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser("warpwatch", description="Watch CUDA kernels of Numba, on any machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a program and watch what it launches", description=SAID["run"])
    run.add_argument("program", nargs="+", metavar="PROGRAM ...",
                     help="a file of Python, -m and a module, or a command, with its arguments")  # fmt: skip
    one = commands.add_parser("check", help="check one kernel", description=SAID["check"], epilog=SAID["arguments"],
                              formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    one.add_argument("kernel", metavar="FILE.py:NAME | FILE.ptx", help="a function with Numba's cuda.jit, or PTX")
    one.add_argument("arguments", nargs="+", metavar="ARGUMENT", help="see below")
    one.add_argument("--grid", type=size, required=True, metavar="X[,Y[,Z]]", help="blocks of the grid")
    one.add_argument("--block", type=size, required=True, metavar="X[,Y[,Z]]", help="threads of a block")
    one.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory (%(default)s)")
    one.add_argument("--entry", metavar="NAME", help="name of the kernel, if FILE.ptx has several")
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["run"] and arguments[1:] and arguments[1] not in ("-h", "--help"):
        return watched(arguments[1:])  # none of which is an option of this command
    return check.run(parser.parse_args(arguments))


def size(text):
    """Read the size of a grid or block, such as 4 or 4,2."""
    sizes = tuple(map(int, text.split(",")))
    return sizes if "," in text else sizes[0]


def watched(command):
    """Run a command and tell what was found; return the exit status."""
    control.check()
    try:
        watch = program.Watch().own()
    except ValueError as error:
        print(f"warpwatch: {error}", file=sys.stderr)
        return 2
    if command[0].endswith(".py") or command[0].startswith("-"):
        command = [sys.executable, *command]
    try:
        process = subprocess.Popen(command, env=os.environ)
    except OSError as error:
        print(f"warpwatch: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while process.returncode is None:
        with suppress(KeyboardInterrupt):  # which the program gets as well, and may take its time
            process.wait()
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode  # as shells say it
    found = program.tell(watch)
    return status or int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
