"""What programs do where what they print cannot be written, as after the last line of ``bppsa-nb list | head``."""

import os
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress


def run(program, *arguments):
    """Run a program that prints, and return what it returns, or 1 where not all that it printed was written.

    It ends where that cannot be written, quietly if its reader is gone.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed from the start; the next file opened must not take its place
            setattr(sys, name, open(os.devnull, "w"))
    streams = _Stream(sys.stdout), _Stream(sys.stderr)
    try:
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            try:
                return program(*arguments)
            finally:
                for stream in streams:
                    stream.flush()
    except _Unwritten as stop:
        error = stop.__cause__
    if not isinstance(error, BrokenPipeError):
        with suppress(OSError):
            print(f"what is printed cannot be written: {error.strerror}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):  # which Python flushes at exit, once more
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 1


class _Unwritten(BaseException):
    """Something printed could not be written; whoever foresees an OSError has another one in mind."""


class _Stream:
    """A stream that tells its own errors from those of other files, and escapes what its encoding lacks."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        with _telling():
            try:
                return self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding
                return self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def flush(self):
        with _telling():
            self._stream.flush()


@contextmanager
def _telling():
    try:
        yield
    except OSError as error:
        raise _Unwritten from error
