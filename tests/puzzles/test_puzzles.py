"""What all puzzles share: `check`, hints, solutions, what was solved, and the pictures."""

import io
import re
import signal
import sys
import threading
import xml.etree.ElementTree as ET
from functools import partial

import puzzle_answers
import pytest

from bppsa_nb import puzzles
from bppsa_nb.machine import files
from bppsa_nb.puzzles import contents, limits

pytestmark = pytest.mark.usefixtures("cache")


def swapped(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[l], a[r])
        yield


def misplaced(a, op, pairs, levels):
    for d in range(levels):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[r], a[l])
        yield


def loop(a, op):
    for i in range(1, len(a)):
        a[i] = op(a[i - 1], a[i])
        yield


def endless(a, op):
    while True:
        pass


def never_paused(a, op):
    while True:
        a[0] = a[0]
    yield


exec(compile("def waits():\n    while True: pass", "another cell", "exec"), cell := {})


def by_helper(a, op):
    cell["waits"]()
    yield


class Endless:
    on = True

    def __call__(self, a, op):
        cell["waits"]()


def keeps_everything(a, op):
    while Endless.on:
        try:
            while Endless.on:
                pass
        except BaseException:
            continue


def leaves(a, op):
    yield
    exit()


def presses_ctrl_c(a, op):
    raise KeyboardInterrupt


def solved(name):
    return puzzles.puzzle(name).solution


def test_what_was_solved_is_kept(cache):
    assert repr(puzzles.progress()).startswith("0 of 24 puzzles solved: 0 of 48 points\n○  1 totals")
    assert not puzzles.check("diamond", lambda a, b: a @ b) and not (kept := cache / "answers.json").exists()
    for name in ("diamond", "reduce", "diamond"):
        assert puzzles.check(name, solved(name))
    assert list(files.read_json(kept)["puzzles"]) == ["reduce", "diamond"]
    shown = puzzles.progress()
    assert shown.solved == ["reduce", "diamond"] and "●  2 reduce" in repr(shown) and "○  1 totals" in repr(shown)
    assert repr(shown).startswith("2 of 24 puzzles solved: 3 of 48 points")


@pytest.mark.parametrize("text", ["", "{", "3", "\xff", '["totals"]', '{"puzzles": {"x": {}}}'])
def test_a_damaged_record_is_named_and_hides_no_verdict(cache, text):
    cache.mkdir()
    (kept := cache / "answers.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(files.CorruptFileError, match=r"answers\.json is damaged: .*; delete it to begin anew"):
        puzzles.progress()
    verdict = puzzles.check("diamond", solved("diamond"))
    assert verdict and "But that cannot be kept for `progress()`: " in verdict.message
    assert kept.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("name", puzzles.NAMES)
def test_solutions_are_right_and_stubs_are_not(name, capsys):
    puzzle = puzzles.puzzle(name)
    if name in contents.KERNELS:
        pytest.importorskip("numba_cuda", reason="needs a CUDA compiler: the gpu extra")
    assert not puzzle.check(puzzle_answers.made(name, puzzle.stub))
    assert not puzzle.check(None) and not puzzle.check(lambda *_: None)
    puzzles.solution(name)
    text = capsys.readouterr().out
    assert '"""' not in text and text.startswith(puzzle.text()) and text.count(puzzle.explained[:30]) == 1
    assert puzzle.check(puzzle_answers.made(name, puzzle.text())) and len(puzzle.hints) == 3


def test_hints_are_printed(capsys):
    puzzles.hint("down_sweep")
    puzzles.hint("down_sweep", 3)
    first, third = capsys.readouterr().out.splitlines()
    assert first.startswith("The left half needs") and third.startswith("a[l], a[r] = a[r]")


@pytest.mark.parametrize("answer", [endless, by_helper, partial(by_helper), Endless(), keeps_everything])
def test_what_does_not_end_is_ended(answer, monkeypatch):
    monkeypatch.setattr(puzzles, "SECONDS", 0.2)
    said = "✗ still running after 0.2 seconds. Does every loop of yours end?"
    cannot = " It cannot be stopped; restart Python."
    # What keeps everything may be caught between two of its lines.
    assert repr(puzzles.check("reduce", answer)) in (said, *[said + cannot] * (answer is keeps_everything))
    monkeypatch.setattr(Endless, "on", False)
    for thread in (each for each in threading.enumerate() if each.name == "an answer"):
        thread.join()


@pytest.mark.skipif(sys.platform == "win32", reason="nothing tells there how much memory a process has")
def test_what_fills_the_memory_is_ended(monkeypatch):
    def pairs(n, d):
        found = []
        while True:
            found.append(b"x" * 10**6)

    monkeypatch.setattr(limits, "MEMORY", 2**20)
    assert puzzles.check("pairs", pairs).message == "it fills the memory. Does every loop of yours end?"


def test_no_answer_ends_python(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    left = "a list of 4, SystemExit on line 3 of yours: an answer returns, and leaves Python running"
    assert puzzles.check("reduce", leaves).message == left and not sys.stdin.closed
    pressed = "it raises KeyboardInterrupt, as if somebody had pressed Ctrl-C"
    assert puzzles.check("reduce", presses_ctrl_c).message == pressed


def test_ctrl_c_interrupts(foreground):
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        puzzles.check("reduce", endless)
    assert "an answer" not in [each.name for each in threading.enumerate()]


def drawings(verdict):
    html = verdict._repr_html_()
    assert html.startswith('<p role="status">')
    return [ET.fromstring(found) for found in re.findall("<svg.*?</svg>", html, re.DOTALL)]


def red(drawing):
    return [(g.find("rect").get("x"), g.find("text").text) for g in drawing.iter("g") if "wrong" in g.get("class", "")]


def test_what_is_wrong_is_red_and_the_right_scan_stands_beside_it():
    yours, right = drawings(puzzles.check("down_sweep", swapped))
    assert [text for _, text in red(yours)] == ["c", "ab", "cab"] and red(right) == []
    assert sum(line.get("class") == "join wrong" for line in yours.iter("line")) == 2
    yours, right = drawings(puzzles.check("down_sweep", misplaced))
    assert [text for _, text in red(yours)][0] != "" and red(right) == []
    (own,) = drawings(puzzles.check("down_sweep", solved("down_sweep")))
    assert red(own) == [] and "it ends as I, a, ab, abc, abcd, abcde, abcdef, abcdefg" in own.get("aria-label")


def test_a_scan_of_ones_own_is_shown(monkeypatch):
    shown = puzzles.show(loop, "abc")
    assert repr(shown) == "a b c\na ab c\na ab abc"
    drawn = ET.fromstring(re.search("<svg.*</svg>", shown._repr_html_())[0])
    assert drawn.get("aria-label") == "A list of 3 before a scan and after each of 2 levels; it ends as a, ab, abc."
    assert "I" in repr(puzzles.show(lambda a, op, identity: iter([a.append(identity)]), "a", puzzles.IDENTITY))
    monkeypatch.setattr(puzzles, "SECONDS", 0.2)
    with pytest.raises(TimeoutError, match="still running after 0.2 seconds. Does every loop of yours end"):
        puzzles.show(never_paused, "abc")


def test_what_could_not_be_read_is_not_drawn():
    assert drawings(puzzles.check("diamond", lambda a, b: a)) == []

    def right_for_few(a, op):
        for i in range(0 if len(a) > 8 else 1, len(a).bit_length()):
            for r in range(2**i - 1, len(a), 2**i):
                a[r] = op(a[r - 2 ** (i - 1)], a[r]) if i else a[r]
            yield
        if len(a) > 8:
            a[-1] = a[0]

    verdict = puzzles.check("reduce", right_for_few)
    assert not verdict and "a list of 16" in verdict.message and drawings(verdict) == []
