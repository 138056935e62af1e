"""Draw a scan that was traced: the stepper's picture, and an animation of it."""

from functools import partial

from bppsa_nb.scan.operator import IDENTITY
from bppsa_nb.scan.trace import span_label
from bppsa_nb.schedule.colors import COLORS
from bppsa_nb.schedule.svg import SIDE, Drawing, Style, figure, read, shortened


def scan_figure(trace, squares="numbers"):
    """Draw a `bppsa_nb.scan.trace.Trace`, to be stepped through: HTML. Squares tell places, words, or shapes only."""
    rows = trace.rows()
    called = (f"{i}. {_called(level.level)}" for i, level in enumerate(trace.levels, 1))
    levels = ["inputs", *called, "moved"][: len(rows)]
    sentences = [describe(trace, level, _LABELS[squares]) for level in range(trace.steps + 1)]
    sentences += ["Moved to where the result stands: " + sentences[-1]] * (len(rows) - len(sentences))
    below = "₀₁₂₃₄₅₆₇₈₉"
    sub = ["".join(below[int(digit)] for digit in str(t)) for t in range(trace.n + 1)]
    names = [f"∇x{sub[trace.n]}", *(f"J{sub[t]}ᵀ" for t in range(trace.n, 0, -1))]
    result = ["I", *(f"∇x{each}" for each in reversed(sub))]
    style = partial(_style, squares=squares)
    return figure(Drawing(rows, style, levels, sentences, names, result, cleared_places(trace, rows)))


def _word(operand):
    if operand is IDENTITY:
        return "I"
    first, last = operand.span
    return shortened("".join(_LETTERS[place % len(_LETTERS)] for place in range(first, last + 1)))


def _style(operand, squares):
    if operand is IDENTITY:
        return Style("identity", "I")
    label, width = _LABELS[squares](operand), None
    if squares == "shapes":
        label, width = "", SIDE / 4 if operand.kind == "vector" else None
    return Style(operand.kind, label, operand.product, operand.parents, width)


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZαβγδεζηθικλμ"
_LABELS = {"numbers": span_label, "letters": _word, "shapes": span_label}


def _called(level):
    return "linear" if level.phase == "linear" else f"{level.phase}-sweep, d = {level.d}"


def cleared_places(trace, rows):
    """Return, by row, the place where the identity was put just before its level (Algorithm 1, line 9): a dict."""
    steps = enumerate(zip(trace.levels, rows, rows[1:], strict=False), 1)
    return {r: did.level.pairs[0][1] for r, (did, before, row) in steps if IDENTITY in row and IDENTITY not in before}


def describe(trace, level, label=span_label):
    """Say in a sentence what a level (0: the state before the first) does, and in another what was done so far."""
    if not level:
        text = f"The array before the first level: the gradient at x_{trace.n}"
        text += f" and {trace.n} transposed Jacobian{'s' * (trace.n != 1)}." if trace.n else ", and nothing to do."
        return text
    this = trace.levels[level - 1]
    parts = [" ⋄ ".join(f"({label(parent)})" for parent in product.parents) for product in this.products]
    what = f"computes {len(parts)} product{'s' * (len(parts) != 1)}" if parts else "computes nothing"
    few = ", ".join(parts[:4]) + (", …" if len(parts) > 4 else "")
    text = f"Level {level} of {trace.steps} ({_called(this.level)}) {what}{': ' * bool(parts)}{few}"
    if this.moves:
        text += f", and moves {len(this.moves)} operand{'s' * (len(this.moves) != 1)}"
    kinds = [product.product for before in trace.levels[:level] for product in before.products]
    text += f". So far {kinds.count('mm')} matrix-matrix and {kinds.count('mv')} matrix-vector products"
    return text + f", of {trace.mm} and {trace.mv} in all."


def animation(trace):
    """Draw a Trace as an SVG that stands on its own, and shows one level after the other: `figures/scan.svg`."""
    rows, step, levels = trace.rows(), 1.3, trace.steps + 1
    whole = scan_figure(trace)
    start, end = whole.index("<svg"), whole.index("</svg>")
    drawn = whole[start:end].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" class="scan" ', 1)
    roles = "".join(f"--{role}:{COLORS[role]};" for role in ("matrix", "vector", "identity"))
    lasting = step * (len(rows) + 3)
    moves = "".join(
        f"@keyframes level{r}{{0%,{100 * step * r / lasting:.1f}%{{opacity:.2}}"
        f"{100 * (step * r + 0.4) / lasting:.1f}%,97%{{opacity:1}}100%{{opacity:.2}}}}"
        f'.scan [data-level="{r}"]{{animation:level{r} {lasting:g}s infinite}}'
        for r in range(1, levels)
    )
    style = f"svg{{{roles}background:#fff;font:13px sans-serif}}{read('scan.css')}"
    style += f"@media (prefers-reduced-motion: no-preference){{{moves}}}"
    head, rest = drawn.split(">", 1)
    return f"{head}><style>{style}</style>{rest}</svg>\n"
