"""Scans as pages draw them."""

import re
import xml.etree.ElementTree as ET

import pytest
from texts import beside

from bppsa_nb.machine import files
from bppsa_nb.scan.operator import IDENTITY
from bppsa_nb.scan.trace import span_label, trace
from bppsa_nb.schedule import svg, traced

SCANS = [(7, "blelloch", None), (63, "blelloch", None), (9, "truncated", 2)]
SCANS += [(n, method, None) for n in (0, 1, 2, 5) for method in ("linear", "blelloch", "hillis_steele")]


def drawing(html):
    return ET.fromstring(re.search("<svg.*</svg>", html, re.DOTALL)[0])


def squares(group):
    return [each for each in group.iter("g") if each.get("data-id") is not None]


@pytest.mark.parametrize(("n", "method", "levels"), SCANS)
def test_each_level_is_a_group_with_what_the_array_holds(n, method, levels):
    run = trace(n, method, levels)
    rows, groups = run.rows(), [g for g in drawing(traced.scan_figure(run)).iter("g") if g.get("data-level")]
    assert [int(group.get("data-level")) for group in groups] == [*range(len(rows))]
    made = {}
    for r, (row, group) in enumerate(zip(rows, groups, strict=True)):
        assert group.get("data-sentence").startswith(traced.describe(run, r) if r <= run.steps else "Moved")
        row = [operand for operand in row if operand is not None]
        drawn = squares(group)
        assert len(drawn) == len(row)
        for square, operand in zip(drawn, row, strict=True):
            assert made.setdefault(square.get("data-id"), operand) is operand
            assert square.find("text").text == span_label(operand)
            if operand is not IDENTITY and operand.parents:
                assert [made[number] for number in square.get("data-from").split()] == [*operand.parents]
    lines = [line.get("class") for line in drawing(traced.scan_figure(run)).iter("line")]
    if method in ("blelloch", "truncated", "hillis_steele"):  # where parents stand in the row above
        assert lines.count("mm") == 2 * run.mm if method == "blelloch" else lines.count("mm") <= 2 * run.mm


def test_squares_tell_letters_or_shapes():
    run = trace(12, "blelloch")
    letters = traced.scan_figure(run, "letters")
    drawn = {each.find("text").text: each.find("rect").get("width") for each in squares(drawing(letters))}
    assert drawn["a"] == "32" and float(drawn["abc…jkl"]) > 60  # a column is as wide as its longest word
    assert {*"abcdefghijklm", "abcd", "efgh", "abc…jkl"} < set(drawn) and "0:3" not in drawn
    assert "computes 3 products: (ab) ⋄ (cd), (ef) ⋄ (gh), (ij) ⋄ (kl)" in letters
    shapes = squares(drawing(traced.scan_figure(run, "shapes")))
    widths = {(each.get("class").split()[0], float(each.find("rect").get("width"))) for each in shapes}
    assert widths == {("matrix", 32), ("vector", 8), ("identity", 32)}
    assert {each.find("text").text for each in shapes} == {None, "I"}


def test_sentences():
    run = trace(3, "blelloch")
    assert [traced.describe(run, level) for level in range(4)] == beside(__file__)["levels"]
    assert traced.describe(trace(0, "linear"), 0).endswith("the gradient at x_0, and nothing to do.")
    assert "Level 2 of 5 (linear) computes 1 product: (0:1) ⋄ (2)." in traced.describe(trace(5, "linear"), 2)
    assert "(6) ⋄ (7), …." in traced.describe(trace(20, "blelloch"), 1)


def test_what_is_wrong_and_its_parents_are_red():
    good, bad = svg.Style("word", "ab"), svg.Style("word", "<c&d>", "join", ("x", "y"))
    styles, rows = {"x": good, "y": good, "z": bad}, [["x", "y"], ["x", "z"]]
    drawn = svg.Drawing(rows, styles.get, ["one", "two"], ["", "done"], marked={(0, 1), (1, 1)})
    text = svg.figure(drawn, steps=False)
    assert "<script>" not in text and "<figcaption" not in text
    found = drawing(text)
    assert sum("wrong" in each.get("class", "") for each in squares(found)) == 2
    assert [line.get("class") for line in found.iter("line")] == ["join wrong", "join wrong"]
    assert "<c&d>" in [each.text for each in found.iter("text")]


def test_the_animation_is_that_of_the_scan():
    text = traced.animation(trace(7, "blelloch"))
    assert (files.root() / "figures" / "scan.svg").read_text(encoding="utf-8") == text
    assert ET.fromstring(text).get("role") == "img" and text.count("@keyframes") == 5 and "http" not in text[90:]
