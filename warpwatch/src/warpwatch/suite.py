"""A test suite, watched: what a launch does wrong fails the test, fixture or module that launched it."""

import json
import os
import shutil

import pytest

from warpwatch import program


class Suite:
    """Hooks of pytest, while it watches; `outside` is what was found while no test was running."""

    def __init__(self, config):
        self.around = os.environ.get("WARPWATCH_TO")  # of a program that has started these tests
        try:
            self.watch, self.outside = program.begin().own(), []
            self.watch.ignore, self.watch.steps = program.settings(config.rootpath)
        except ValueError as error:
            raise pytest.UsageError(f"warpwatch: {error}") from error

    def part(self, item):
        """Let a part of a test run; fail it if something was found, or add that to how it failed."""
        self.outside += self.watch.take()
        marked = [rule for mark in item.iter_markers("warpwatch") for rule in program.rules(*mark.args, **mark.kwargs)]
        try:
            result = yield
        except BaseException as error:
            if text := told(self.watch.take(marked)):
                if isinstance(error, pytest.skip.Exception):
                    pytest.fail(f"{text}\n(the test was to be skipped: {error})", pytrace=False)
                error.add_note(text)
            raise
        if text := told(self.watch.take(marked)):
            if failed := getattr(item, "_excinfo", None):  # of a `unittest.TestCase`, which pytest raises later
                failed[0].value.add_note(text)
            else:
                pytest.fail(text, pytrace=False)
        return result

    pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = pytest.hookimpl(wrapper=True)(part)

    def pytest_sessionfinish(self, session):
        """Fail a session in which something was found outside of tests; a worker of pytest-xdist hands rows over."""
        self.outside += self.watch.take()
        if told(self.outside) and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["warpwatch"] = self.watch.rows, self.outside
            shutil.rmtree(os.path.dirname(self.watch.path))  # for a worker may end at once
        elif self.around:
            with open(self.around, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in self.watch.rows)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Take the rows of a worker."""
        rows, outside = getattr(node, "workeroutput", {}).get("warpwatch", ((), ()))
        self.watch.rows += rows
        self.outside += outside

    def pytest_terminal_summary(self, terminalreporter):
        """Show what was launched, and what was found where no test was running."""
        terminalreporter.section("warpwatch")
        program.tell(self.watch, terminalreporter.write_line)
        if text := told(self.outside):
            terminalreporter.write_line("Outside of tests:\n" + text, red=True)


def told(rows):
    """Return what was found, a line each."""
    return "\n".join(dict.fromkeys(each["text"] for row in rows for each in row["found"]))
