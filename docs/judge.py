"""Run an answer in the page of puzzles, and say in words what kept it from running. Brython runs this file there."""

import sys

from bppsa_nb.puzzles.checker import IDENTITY, Verdict, said
from bppsa_nb.puzzles.scans import PUZZLES

_MOST = 2000  # letters of what an answer prints
_DEEP = 200  # calls within calls; the browser's own limit is some 300, and is not told in words
_ALIKE = {  # what word processors, PDFs and web pages make of what was typed: what is meant
    "“”„«»": 'type the quote "',
    "‘’‚′`´": "type the quote '",
    "–—−‐": "type the minus -",
    "×·∗": "type the sign *",
    "…": "type three dots",
    "≤": "type <=",
    "≥": "type >=",
    "≠": "type !=",
    "←": "type =",
    "（），：": "type the narrow one",
    "\u00a0\u2002\u2003\u2007\u2009\u202f\u3000": "type a space",
    "\u200b\u200c\u200d\u2060\ufeff\u00ad": "type the line anew",
}
_ELSEWHERE = {  # what other languages have
    "++": "Python has no ++; write += 1",
    "&&": "Python writes and, not &&",
    "||": "Python writes or, not ||",
    "else if": "Python writes elif, not else if",
    "function ": "Python writes def, not function",
    "print ": "print has parentheses: print(...)",
}


class Printed:
    """What an answer prints, or the beginning of that."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        """Keep some text."""
        if len(self.text) <= _MOST:
            self.text += text

    def flush(self):
        """Do nothing; it is there already."""

    def __str__(self):
        return self.text if len(self.text) <= _MOST else f"{self.text[:_MOST]}\n... and more"


def judge(name, code):
    """Return what there is to show of an answer.

    Whether it is right, in a sentence why, the HTML of its verdict, the line at fault, a remark, and what it printed;
    the last three may be empty.
    """
    printed = sys.stdout = sys.stderr = Printed()
    sys.setrecursionlimit(_DEEP)
    line, names = 0, _names()
    try:
        exec(code, names)
        verdict = PUZZLES[name].check(names[name]) if name in names else Verdict(False, _missing(name, code))
    except SyntaxError as error:
        line, why = _why(error, code)
        verdict = Verdict(False, f"line {line}: {why}")
    except BaseException as error:
        line = _line(error)
        verdict = Verdict(False, f"line {line}: " * bool(line) + said(error, None))
    remark = ""
    if not verdict and printed.text and not any(word in code for word in ("return", "yield", "lambda")):
        remark = f"It prints, and has no return: what is printed is for you to read, and {name} hands over nothing."
    right, shown = bool(verdict), f"{line}  {code.splitlines()[line - 1]}" if line else ""
    return [right, verdict.message, verdict._repr_html_(), shown, remark, str(printed)]


def _names():
    """Return what an answer has beside Python: what the notebook's cells have, and words for what a page lacks."""

    def nothing(*_, **__):
        pass

    def leave(*_):
        raise SystemExit

    def ask(*_):
        raise OSError("nobody answers here; all that you need is in the arguments")

    def open_file(*_, **__):
        raise OSError("this page has no files; all that you need is in the arguments")

    names = {"__name__": "__main__", "IDENTITY": IDENTITY, "input": ask, "open": open_file}
    names |= {"exit": leave, "quit": leave}
    return names | {each: nothing for each in ("check", "hint", "show", "solution", "progress", "help", "breakpoint")}


def _missing(name, code):
    """Say that an answer is not there, and what is."""
    if not code.strip():
        return "nothing is written there; Start again brings the first lines back"
    heads = [line.split("(")[0].split() for line in code.splitlines() if line.startswith(("def ", "class "))]
    there = [head[1].rstrip(":") for head in heads if len(head) > 1]
    if not there:
        return f"there is no {name} in what you wrote; it begins with def {name}("
    near = [each for each in there if _plain(each) == _plain(name)] or there
    meant = "is it" if len(near) == 1 else "is one of them"
    return f"there is no {name} in what you wrote; it has {', '.join(near)}: {meant} meant?"


def _plain(name):
    return name.replace("_", "").lower()


def _line(error):
    """Return on which line of an answer an error came up, before it was called; 0 if on none."""
    line, at = 0, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == "<string>":
            line = at.tb_lineno
        at = at.tb_next
    return line


def _why(error, code):
    """Return the line of an answer that is no Python, and why."""
    lines = code.splitlines()
    number = min(max(1, error.lineno or 1), len(lines))
    if error.msg == "unexpected indent":  # Brython names the last line
        number = next(n for n in range(1, len(lines) + 1) if _indented("\n".join(lines[:n])))
        return number, "it stands further to the right than the line before, and nothing there asks for that"
    line = lines[number - 1]
    begin = line.lstrip()
    for prompt in (">>>", "...", "In ["):
        if begin.startswith(prompt):
            return number, f"{prompt} is a prompt, and not part of the program; take it out of all lines"
    if begin.startswith("```"):
        return number, "``` is Markdown, and not part of the program; take it out"
    if begin.startswith(("%", "!")):
        return number, f"{begin[0]} is an order to Jupyter; this page has Python alone"
    for letter in line:
        for alike, meant in _ALIKE.items() if error.msg.startswith("invalid") and letter in error.msg else ():
            if letter in alike:
                return number, _pasted(letter, meant, number, lines)
    for sign, why in _ELSEWHERE.items():
        if sign in line:
            return number, why
    if error.msg == "invalid syntax":
        indents = [len(each) - len(each.lstrip()) for each in lines[: number - 1] if each.strip()]
        if indents and len(line) - len(begin) not in indents and len(line) - len(begin) < indents[-1]:
            return number, "no line before it begins at the same place, so it is unclear to which block it belongs"
        for quote in ("'", '"'):
            if line.count(quote) % 2:
                return number, f"invalid syntax; a quote {quote} may not be closed"
    return number, error.msg


def _indented(code):
    try:
        compile(code, "<string>", "exec")
    except SyntaxError as error:
        return error.msg == "unexpected indent"
    return False


def _pasted(letter, meant, number, lines):
    seen = letter
    if not letter.isprintable() or not letter.strip():
        seen = f"a letter that looks like a space or like nothing (U+{ord(letter):04X})"
    others = [str(n) for n, line in enumerate(lines, 1) if letter in line and n != number]
    also = f"; so {'does line' if len(others) == 1 else 'do lines'} {', '.join(others)}" if others else ""
    return f"it has {seen}, as PDFs and web pages do{also}; {meant}"
