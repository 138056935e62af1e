"""The command `warpwatch`: a program watched, or a kernel checked."""

import argparse
import os
import subprocess
import sys

from warpwatch import program

RUN = """\
Run a program; each CUDA kernel that it, or what it starts, launches by Numba runs on the CPU, every access watched.
The exit status is the program's own, or 1 if it is 0 and something was found."""


def main(arguments=None):
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser("warpwatch", description="Watch CUDA kernels of Numba, on any machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a program and watch what it launches", description=RUN)
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM ...",
                     help="a file of Python, -m and a module, or a command, with its arguments")  # fmt: skip
    from warpwatch import check

    checked = commands.add_parser("check", help="check one kernel", description=check.DESCRIPTION, epilog=check.EPILOG,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    check.add_options(checked.add_argument)
    given = parser.parse_args(arguments)
    if given.command == "check":
        return check.run(given)
    if not given.program:
        run.error("which program is to be run? For one: warpwatch run program.py")
    return watched(given.program)


def watched(command):
    """Run a command and tell what was found; return the exit status."""
    from warpwatch import control

    control.check()
    watch = program.Watch().own()
    if command[0].endswith(".py") or command[0].startswith("-"):
        command = [sys.executable, *command]
    try:
        status = subprocess.run(command, env=os.environ).returncode
    except OSError as error:
        print(f"warpwatch: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        status = 130
    found = program.tell(watch)
    return status or int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
