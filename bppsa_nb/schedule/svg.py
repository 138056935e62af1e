"""Draw a scan as a page shows it: an SVG with a group for each level, and a few lines of script that step through them.

Without the script all levels show, so that it reads on paper, too. `draw.tree` makes pictures of the same rows. This
file needs nothing but Python, so that the puzzles draw in a web page as in a notebook.
"""

from functools import cache
from html import escape
from pathlib import Path

from bppsa_nb.schedule.colors import COLORS

SIDE = 32  # pixels, of a square
_GAP, _ROW, _TOP = 14, 62, 36  # between two, from row to row, the margin above
_LETTER, _SMALL = 7.5, 6  # about as wide as one is: in a square, in the name of a level
_LEGEND = (
    ("square matrix", "transposed Jacobian(s)"), ("square vector", "gradient"), ("square identity", "identity"),
    ("line mm", "matrix × matrix"), ("line mv", "matrix × vector"), ("line move", "moves"),
)  # fmt: skip


class Style:
    """How an operand is drawn: its kind and label, which kind of product made it, of which operands, how wide it is."""

    def __init__(self, kind, label, product="", parents=(), width=None):
        self.kind, self.label, self.product, self.parents, self.width = kind, label, product, parents, width


class Drawing:
    """What a list held before a scan and after each of its levels.

    `rows` are lists of operands, or None where there is none yet; the same object is the same operand. It is drawn as
    ``style(operand)`` says, a `Style`. `levels` and `sentences` are what a row is called, and what is said of it.
    `names` and `result` are written above the first row and below the last. `cleared` has, by row, the place where the
    identity was put just before its level; `marked`, rows and places of squares that are red, as lines to them are.
    """

    def __init__(self, rows, style, levels, sentences, names=(), result=(), cleared=None, marked=()):
        self.rows, self.style, self.levels, self.sentences = rows, style, levels, sentences
        self.names, self.result, self.cleared, self.marked = names, result, cleared or {}, marked


def figure(drawing, legend=_LEGEND, steps=True):
    """Return a `Drawing` as HTML; `legend` has classes and names; with `steps`, a slider shows level by level."""
    head = "".join(f"--{role}:{COLORS[role]};" for role in ("matrix", "vector", "identity"))
    explained = "".join(f'<span><i class="{kind}"></i>{name}</span>' for kind, name in legend)
    drawn = f'<div class="drawing">{svg(drawing)}</div><div class="legend">{explained}</div>'
    caption = f'<figcaption role="status" aria-live="polite">{escape(drawing.sentences[-1])}</figcaption>'
    stepper = f"{caption}<script>{read('scan.js')}</script>" if steps else ""
    return f'<figure class="scan" style="{head}"><style>{read("scan.css")}</style>{drawn}{stepper}</figure>'


def svg(drawing):
    """Draw the rows alone; see `figure`."""
    rows, sentences, result, marked = drawing.rows, drawing.sentences, drawing.result, drawing.marked
    styles = {id(x): drawing.style(x) for row in rows for x in row if x is not None}
    sides, number = [SIDE] * max(map(len, rows)), {key: i for i, key in enumerate(styles)}
    for place, x in (each for row in rows for each in enumerate(row) if each[1] is not None):
        sides[place] = max(sides[place], min(9, len(styles[id(x)].label)) * _LETTER + 8)
    left = [14 + _SMALL * max(map(len, drawing.levels)), *(side + _GAP for side in sides)]
    middle = lambda place: sum(left[: place + 1]) + sides[place] / 2  # noqa: E731
    groups = []
    for r, row in enumerate(rows):
        above = {id(x): place for place, x in enumerate(rows[r - 1])} if r else {}
        y, lines, squares = _TOP + _ROW * r, [], []
        for place, x in enumerate(row):
            if x is None:
                continue
            here, at = styles[id(x)], middle(place)
            fresh = not r or place >= len(rows[r - 1]) or rows[r - 1][place] is not x
            if r and fresh:
                sources, kind = ([x], "move") if id(x) in above else (here.parents, here.product)
                wrong = " wrong" * ((r, place) in marked and kind != "move")
                for source in (above[id(each)] for each in sources if id(each) in above):
                    lines.append(_line(kind + wrong, middle(source), y - _ROW + SIDE, at, y))
                if here.kind == "identity" and r in drawing.cleared and id(x) not in above:
                    root, half = middle(drawing.cleared[r]), y - _ROW / 2 + SIDE / 2
                    lines.append(_line("move", root, half, at, y))
                    squares.append(_square("identity", root, half - 9, 18, 18, "I"))
            kind = here.kind + " old" * (not fresh) + " wrong" * ((r, place) in marked)
            parents = " ".join(str(number[id(p)]) for p in here.parents if id(p) in number)
            data = f' data-id="{number[id(x)]}"' + f' data-from="{parents}"' * bool(parents)
            squares.append(_square(kind, at, y, here.width or sides[place], SIDE, here.label, data))
        name = f'<text class="level" x="4" y="{y + 20}">{escape(drawing.levels[r])}</text>'
        said = f'data-level="{r}" data-sentence="{escape(sentences[r])}"'
        below = _names(result, middle, y + 48) if r == len(rows) - 1 else ""
        groups.append(f"<g {said}>{name}{''.join(lines)}{''.join(squares)}{below}</g>")
    width, height = round(sum(left) - _GAP / 2), _TOP + _ROW * len(rows) - (0 if result else _ROW - SIDE - 8)
    return (
        f'<svg viewBox="0 0 {width} {height}" style="--w:{width}px;--h:{height}px" role="img" '
        f'aria-label="{escape(sentences[-1])}">{_names(drawing.names, middle, 22)}{"".join(groups)}</svg>'
    )


def _square(kind, middle, y, width, height, label, data=""):
    size = min(13, (width - 4) / max(1, len(label)) * 1.75)
    small = f' style="font-size:{size:.1f}px"' if size < 12.5 else ""
    return (
        f'<g class="{kind}"{data}><rect x="{middle - width / 2:g}" y="{y:g}" width="{width:g}" height="{height}"/>'
        f'<text x="{middle:g}" y="{y + height / 2 + 4.5:g}"{small}>{escape(label)}</text></g>'
    )


def _line(kind, x1, y1, x2, y2):
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _names(names, middle, y):
    return "".join(f'<text class="name" x="{middle(i):g}" y="{y}">{escape(x)}</text>' for i, x in enumerate(names))


@cache
def read(name):
    """Return the text of `scan.css` or `scan.js`."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def shortened(word):
    """Return what a square has room for, of a word."""
    return word if len(word) <= 8 else f"{word[:3]}…{word[-3:]}"
