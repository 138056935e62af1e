"""What programs do where nobody reads what they print, as after the last line of ``bppsa-nb list | head``."""

import io
import os
import sys


def run(program, *arguments):
    """Run a program that prints, with letters that a terminal lacks escaped; return 1, quietly, if its reader goes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return program(*arguments)
        finally:
            if sys.stdout is not None:  # closed from the start
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # which Python flushes at exit, once more
        return 1
