"""Draw a verdict: the scan that an answer really was, with what is wrong in red, beside the right one.

Of a right answer: what it costs, what it has shown, a solution with its reason, and what comes next.
"""

from html import escape

from bppsa_nb.puzzles import contents
from bppsa_nb.schedule import svg


def verdict(found):
    """Return the HTML of a `bppsa_nb.puzzles.checker.Verdict`."""
    color, sign = ("#00795a", "✓") if found.right else ("#c00000", "✗")
    said = f'<p role="status"><b style="color:{color}">{sign}</b> {escape(found.message)}</p>'
    drawn = []
    if found.yours and len(found.yours[0]) <= 12:  # what can be read
        drawn.append(f"<div>Your scan{_draw(found.yours, _marks(found))}</div>")
        if found.solution:
            drawn.append(f"<div>As it should be{_draw(found.solution)}</div>")
    scans = f'<div class="scans">{"".join(drawn)}</div>' if drawn else ""
    return said + scans + (_afterwards(found) if found.puzzle else "")


def _afterwards(found):
    """Return what follows a right answer."""
    puzzle, name = found.puzzle, contents.following(found.puzzle.name)
    parts = []
    if found.costs:
        table = f"<caption>Counted for {escape(found.example)}</caption>"
        table += "<tr><td><th scope=col>yours<th scope=col>best known"
        for what, took, best in found.counted:
            table += f"<tr><th scope=row>{escape(what)}<td>{took}<td>{best}"
        parts.append(f"<table>{table}</table>")
    parts.append(f"<p>{_prose(puzzle.learned)}</p>")
    solution = f"<pre><code>{escape(puzzle.text())}</code></pre><p>{_prose(puzzle.explained)}</p>"
    parts.append(f"<details><summary>A solution, and why it is so</summary>{solution}</details>")
    # A heading of the same notebook, or another one; the page of puzzles goes by the name.
    if name is None:
        to, text = "../docs/after_puzzles.md", "what you can do now"
    else:
        other = name not in contents.SCANS and puzzle.name in contents.SCANS
        to, text = f"#{contents.title(name).replace(' ', '-')}", contents.title(name)
        to = f"02b_solve_kernel_puzzles.ipynb{to}" if other else to
    return "".join(parts) + f'<p>Next: <a href="{to}" data-puzzle="{name or ""}">{escape(text)}</a></p>'


def _prose(text):
    """Return a sentence as HTML; what stands in backticks is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if n % 2 else part for n, part in enumerate(parts))


def watched(scan):
    """Return the HTML of a `bppsa_nb.puzzles.Watched`."""
    return _draw(scan.rows)


def _marks(found):
    """Find the squares to point at: where the wrong word was made, and of what; or where it ended, if it was given."""
    rows, word = found.yours, found.marked
    if word is None:
        return ()
    if word.first_out_of_order() is not word:  # it is right, and stands where another should
        if len(rows) == len(found.solution):  # the first square that holds something else than in the right scan
            pairs = (((r, i), rows[r][i], word) for r, row in enumerate(found.solution) for i, word in enumerate(row))
            return {next(at for at, mine, right in pairs if _label(mine) != _label(right))}
        right = [getattr(each, "text", None) for each in found.solution[-1]]
        last = enumerate(zip(rows[-1], right, strict=False))
        return {(len(rows) - 1, place) for place, (each, text) in last if each is word and word.text != text}
    # A word that was never stored is shown where what was made of it stands.
    here = next(((r, i) for r, row in enumerate(rows) for i, each in enumerate(row) if _made_of(each, word)), None)
    if here is None:
        return ()
    r, place = here
    return {(r, place), *((r - 1, i) for i, each in enumerate(rows[r - 1]) if r and each in word.parents)}


def _made_of(each, word):
    return hasattr(each, "comes_of") and each.comes_of(word)


def _draw(rows, marked=()):
    levels = ["before", *(f"level {r}" for r in range(1, len(rows)))]
    last = ", ".join(_label(word) for word in rows[-1])
    places = [str(place) for place in range(len(rows[0]))]
    sentences = [f"The list {level}: {', '.join(map(_label, row))}." for level, row in zip(levels, rows, strict=True)]
    took = len(rows) - 1
    sentences[-1] = f"A list of {len(rows[0])} before a scan and after each of {took} levels; it ends as {last}."
    empty = [any(getattr(word, "text", None) == "" for word in row) for row in rows]
    # Where the identity comes up, somebody has put it into the last place (Algorithm 1, line 9).
    cleared = {r: len(rows[0]) - 1 for r in range(1, len(rows)) if empty[r] and not empty[r - 1]}
    drawing = svg.Drawing(rows, _style, levels, sentences, names=places, cleared=cleared, marked=marked)
    return svg.figure(drawing, legend=(), steps=False)


def _style(word):
    if not hasattr(word, "text"):
        return svg.Style("word", _label(word))
    return svg.Style("word" if word.text else "identity", _label(word), "join", word.parents)


def _label(word):
    text = getattr(word, "text", None)
    if text is None:
        return repr(word)[:8]
    return svg.shortened(text) or "I"
