"""What checks answers: words that remember what they were joined from, and a check of scans over them.

Joining words is associative, has an identity, the empty word, and does not commute. Above all it is free: what comes
out spells how it was made, and nothing else spells the same. So a scan that is right for distinct letters is right for
every operation that is associative and has an identity: for matrices, transposed Jacobians, affine maps.

This file needs nothing but Python, so that the same puzzles run in a notebook and in a web page.
"""

from bppsa_nb.puzzles import contents

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFG"  # lists of up to 33
LENGTHS = (4, 5, 6, 7, 8, 3, 2, 1, *range(9, len(LETTERS) + 1))  # a list of 4 shows more than one of 1


class Wrong(Exception):
    """What is wrong with an answer, in a sentence; the word to point at, if it is one's fault; a Verdict, if made."""

    def __init__(self, message, word=None, verdict=None):
        super().__init__(message)
        self.word, self.verdict = word, verdict


class TooLong(BaseException):
    """An answer took longer than it may; no ``except Exception`` of its own keeps it."""


PAST_ANSWERS = (TooLong, KeyboardInterrupt)  # whatever else an answer raises is told in words


def shown(value):
    """Return how a value prints, cut off where it is long; its kind where it does not print."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def returned(value):
    """Return how what an answer returned prints, with what may be amiss."""
    if hasattr(value, "send"):
        return f"a generator, since it has {'a for in round brackets' if 'genexpr' in shown(value) else 'a yield'},"
    return "None (is a return missing?)" if value is None else shown(value)


def slip(found, last=None):
    """Say it where a list was asked for, and another kind was returned, or the list that was returned `last`."""
    if found is last and found is not None:
        return "; it is the same list as in the call before, with more in it: begin with a new one in each call"
    if isinstance(found, (tuple, set, frozenset)) or (hasattr(found, "__next__") and not hasattr(found, "send")):
        return f"; this {type(found).__name__} is no list, and list(...) makes one of it"
    return ""


class Word:
    """Letters in the order in which they were joined: of which two words, and on which level of a scan."""

    def __init__(self, text, parents=(), level=0):
        self._text, self.parents, self.level = text, parents, level

    @property
    def text(self):
        """What it spells, which stays."""
        return self._text

    @text.setter
    def text(self, _):
        raise Wrong("a word stays as it is; op(x, y) makes another one")

    def __repr__(self):
        return repr(self.text)

    def __deepcopy__(self, _=None):
        return self

    __copy__ = __deepcopy__

    def __add__(self, other):
        raise Wrong("words are joined by op(x, y), and not by +")

    __radd__ = __add__

    def comes_of(self, other):
        """Tell whether another word went into this one."""
        return self is other or any(parent.comes_of(other) for parent in self.parents)

    def first_out_of_order(self):
        """Return the word where its letters stopped being neighbors in order, or None if they still are."""
        for parent in self.parents:
            if found := parent.first_out_of_order():
                return found
        return None if self.text in LETTERS else self


IDENTITY = Word("")
STRANGE = "which neither stood in this list nor was made of it by op. Does it keep words from one call to the next?"


def words(text):
    """Return a list of words, one of each letter."""
    return [Word(letter) for letter in text]


class Join:
    """``op(a, b)``, the word a followed by the word b: what a puzzle's answer is given. It never raises for an order.

    `given` are words that it may join, beside those that it has made. `level` is that of the scan which runs; `busy`,
    those on which it was called; `made`, the words that it joined; `early`, the first one joined from one that is made
    on the same level. `begin` says what to do instead of joining something of one's own, such as an empty text.
    """

    def __init__(self, given, begin="Begin with a word of the list"):
        self.most, self.longest = 4 * len(given) ** 2 + 16, 2 * len(given) + 16
        self.known = {word for word in given if isinstance(word, Word)}
        self.level, self.busy, self.made, self.early, self.begin = 1, set(), [], None, begin

    def knows(self, word):
        """Tell whether something is a word that it was given or has made."""
        return isinstance(word, Word) and (not word.text or word in self.known)

    def __call__(self, a, b):
        """Join two words."""
        for which, word in (("first", a), ("second", b)):
            if not isinstance(word, Word):
                given = f"op was given {shown(word)} as its {which}"
                raise Wrong(f"{given}; it joins what the list held and what op returned. {self.begin}")
            if not self.knows(word):
                raise Wrong(f"op was given {word}, {STRANGE}")
        self.busy.add(self.level)
        if not a.text or not b.text:
            return a if a.text else b
        if len(self.made) == self.most:
            raise Wrong(f"op was called {self.most + 1} times. Does every loop of yours end?")
        word = Word(a.text + b.text, (a, b), self.level)
        if len(word.text) > self.longest:
            raise Wrong(f"op has made a word of {len(word.text)} letters. Does every loop of yours end?")
        self.made.append(word)
        self.known.add(word)
        if self.early is None and self.level in (a.level, b.level):
            self.early = word
        return word


class Task:
    """A scan of one list: what it holds before and must hold then, and how many levels are enough for that.

    `wanted` are texts by place; `arguments` what the answer is given beside the list and op. `also` is given the `Join`
    of a scan that is right, and its list. It says what else is `Wrong` with it, and returns what else it costs. `spare`
    levels more are right, too. `begin` is what to tell a `Join`, if anything.
    """

    def __init__(self, what, start, wanted, levels, *arguments, also=None, spare=0, begin=()):
        self.what, self.start, self.wanted, self.levels, self.arguments = what, start, wanted, levels, arguments
        self.also, self.spare, self.begin = also, spare, begin


class Puzzle:
    """A solution, a rule, and the words of `puzzles.toml`.

    `rule` is given an answer, raises `Wrong`, and returns a Verdict, or None for a right answer.
    """

    def __init__(self, solution, rule):
        self.solution, self.rule = solution, rule
        function = getattr(solution, "py_func", solution)  # of a kernel
        self.name, code = function.__name__, function.__code__
        words = contents.ALL[self.name]
        self.hints, self.learned, self.explained = words["hints"], words["learned"], words["explained"]
        head = f"def {self.name}({', '.join(code.co_varnames[: code.co_argcount])}):"
        self.stub = "\n".join([head, *(f"    {line}".rstrip() for line in words["stub"].split("\n"))])
        if function is not solution:
            self.stub = f"@cuda.jit\n{self.stub}"

    def check(self, answer):
        """Return the `Verdict` on an answer."""
        try:
            if not callable(answer):
                raise Wrong(f"the answer is a function, and not {shown(answer)}")
            found = self.rule(answer)
        except Wrong as wrong:
            return Verdict(False, str(wrong)) if wrong.verdict is None else wrong.verdict  # which is false
        found = Verdict(True, "Right.") if found is None else found
        found.puzzle = self if found else None
        return found

    def text(self):
        """Return the solution's source, without its docstring."""
        import inspect  # seconds, in a web page

        before, _, rest = inspect.getsource(getattr(self.solution, "py_func", self.solution)).partition('"""')
        return before.rstrip() + rest.partition('"""')[2].rstrip()


class Puzzles(dict):
    """Puzzles by the names of their solutions."""

    def rule_of(self, solution):
        """Make a puzzle with the rule that stands below."""

        def decorate(rule):
            puzzle = Puzzle(solution, rule)
            self[puzzle.name] = puzzle
            return rule

        return decorate


class Verdict:
    """Whether an answer is right, and why not; `yours` and `solution` are what the list held, level by level.

    `costs` are rows of a right answer: what is counted, how many it takes, and how many the best known answer takes;
    `example` is what it was counted for; a `slack` of 1.2 lets compilers differ. `puzzle` is what was asked, if the
    answer is right.
    """

    puzzle = None

    def __init__(self, right, message, yours=(), solution=(), marked=None, *, costs=(), example="", slack=1.2):
        self.right, self.message, self.yours, self.solution, self.marked = right, message, yours, solution, marked
        self.costs, self.example = list(costs), example
        more = [f"{number(took)} {what}, where {number(best)} are enough" for what, took, best in self.costs
                if took > slack * best]
        if more:
            self.message += f" It takes more than it must: {'; '.join(more)}. Can you do it with fewer?"

    def __bool__(self) -> bool:
        return self.right

    @property
    def counted(self) -> list[tuple[str, str, str]]:
        """The rows of `costs`, as text."""
        return [(what, number(took), number(best)) for what, took, best in self.costs]

    def __repr__(self):
        lines = [f"{'✓' if self.right else '✗'} {self.message}"]
        if self.puzzle:
            lines += [f"  {what}: {took} (the best known: {best})" for what, took, best in self.counted]
            lines.insert(1, f"  Counted for {self.example}:") if self.costs else None
            following = contents.following(self.puzzle.name)
            lines.append(f"  Learned: {self.puzzle.learned.replace('`', '')}")
            lines.append(f"  Next: {contents.title(following)}" if following else "  That was the last one.")
        return "\n".join(lines)

    def _repr_html_(self):
        from bppsa_nb.puzzles.drawing import verdict

        return verdict(self)


def check_scan(answer, solution, tasks):
    """Run a scan, a generator that pauses after each level, on all tasks: the Verdict on it."""
    example = max((task for task in tasks if len(task.start) <= 8), key=lambda task: len(task.start), default=tasks[0])
    for task in tasks:
        rows, right = [], []
        try:
            found = run(answer, task, rows)
        except PAST_ANSWERS:
            raise
        except BaseException as error:
            wrong = _wrong(error, answer)
            run(solution, task, right)
            return Verdict(False, f"{task.what}, {wrong}", rows, right, wrong.word)
        if task is example:
            drawn, best = rows, run(solution, task, [])
            costs = [(what, took, least) for (what, took), (_, least) in zip(found, best, strict=True)]
    message = f"Right for every list of up to {max(len(task.start) for task in tasks)} places."
    return Verdict(True, message, drawn, costs=costs, example=example.what, slack=1)


def number(value):
    """Return a number as people write it: four digits at most behind the first one that is not zero."""
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


class Given:
    """What an answer is given to read, under the names that it has in the solution; `check` is Wrong if it changed."""

    def __init__(self, solution, arguments):
        self._names, self._values, self._before = solution.__code__.co_varnames, arguments, list(map(_look, arguments))

    def check(self):
        """Compare it with what it was."""
        for name, before, now in zip(self._names, self._before, self._values, strict=False):
            if _look(now) != before:
                raise changed(name)


def changed(name):
    """Say that an answer changes what it may read only."""
    return Wrong(f"it changes {name}, which others still read; work on a copy, and leave {name} as it is")


def _look(value):
    """Return what tells whether a value was changed: an array's bytes, or how it prints."""
    return (value.shape, str(value.dtype), value.tobytes()) if hasattr(value, "tobytes") else repr(value)


def call(answer, solution, *arguments, where=""):
    """Call an answer on what it may read only; what it raises, or changes, becomes `Wrong`, in words."""
    given = Given(solution, arguments)
    found = _guarded(answer, where, answer, *arguments)
    given.check()
    return found


def _guarded(answer, where, work, *arguments):
    """Return what some work does; what an answer raises there becomes `Wrong`, in words."""
    try:
        return work(*arguments)
    except PAST_ANSWERS:
        raise
    except BaseException as error:
        raise _wrong(error, answer, where) from error


class Returned:
    """What a generator returned."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"nothing, and returns {shown(self.value)},"


def go_on(answer, steps, given, where):
    """Give a generator what it waits for; return what it yields, or what it `Returned`."""

    def send():
        try:
            return steps.send(given)
        except StopIteration as stop:
            return Returned(stop.value)

    return _guarded(answer, where, send)


def run(answer, task, rows):
    """Run a scan over words, put what the list held into `rows`, and return what it costs; Wrong says what is wrong."""
    a, n, op = list(task.start), len(task.start), Join(task.start, *task.begin)
    rows.append(list(a))
    pauses = answer(a, op, *task.arguments)
    if not hasattr(pauses, "__next__"):
        raise Wrong(f"it returned {shown(pauses)} and never paused; write yield behind each level")
    changed = set()  # levels; one that joins is one, too; what only moves words after the last pause is not
    for number, _ in enumerate(pauses):
        changed |= {op.level} if keep(rows, a) else set()
        op.level += 1
        if number > 4 * n + 16:
            raise Wrong(f"it paused {number} times and went on. Does every loop of yours end?")
    keep(rows, a)
    levels = len(changed | op.busy)
    if len(a) != n:
        raise Wrong(f"the list has {len(a)} places at the end; it works in place, and leaves them {n}")
    for place, wanted in task.wanted.items():
        if not op.knows(a[place]) or a[place].text != wanted:
            if op.early and op.knows(a[place]) and len(set(a[place].text)) < len(a[place].text):
                break  # letters are twice in it, and this is why
            if op.made and len(rows) == 1:
                raise Wrong("op has joined, but the list is as it was: write a[i] = ...; a = ... makes another list")
            wrong = told(place, a[place], wanted)
            there = [i for i, word in enumerate(a) if wanted and op.knows(word) and word.text == wanted and i != place]
            raise Wrong(f"{wrong}; {wanted!r} stands at place {there[0]}", wrong.word) if there else wrong
    if op.early:
        first = next(word for word in op.early.parents if word.level == op.early.level)
        raise Wrong(
            f"level {op.early.level} makes {op.early} of {first}, which is made on that very level; all joins of a "
            "level run at once, and none may wait for another",
            op.early,
        )
    if levels > task.levels + task.spare:
        raise Wrong(f"it takes {levels} levels, and {task.levels} are enough{_idle(op)}")
    joins = "joins (with the identity they are free)" if "" in task.wanted.values() else "joins"
    paused = len({*range(1, op.level)} | changed | op.busy)
    waits = "levels" + " (with empty ones)" * (paused > levels)
    return [(waits, paused), (joins, len(op.made)), *(task.also(op, a) if task.also else ())]


def _idle(op):
    """Name a level that need not wait for the one before it."""
    needed = {word.level for word in op.made if any(parent.level == word.level - 1 for parent in word.parents)}
    idle = [level for level in sorted(op.busy) if level - 1 in op.busy and level not in needed]
    said = "level {} needs nothing that level {} makes. Does a yield stand one loop too deep?"
    return f": {said.format(idle[0], idle[0] - 1)}" if idle else ""


def keep(rows, a):
    """Put a list into `rows` if it differs from the last one; tell whether it does."""
    if len(a) != len(rows[-1]) or any(now is not before for now, before in zip(a, rows[-1], strict=True)):
        rows.append(list(a))
        return True
    return False


def name(text):
    """Call a word by what it spells, or by what it is, if it spells nothing."""
    return repr(text) if text else "the identity"


def told(place, found, wanted):
    """Say what is wrong with what a place holds, as a `Wrong`."""
    if not isinstance(found, Word):
        what = f"{shown(found)}, a text," if isinstance(found, str) else shown(found)
        return Wrong(f"place {place} holds {what} and should hold {name(wanted)}, a word of the list or of op")
    text = found.text
    if text == wanted:
        return Wrong(f"place {place} holds {text!r}, {STRANGE}", found)
    twice = [letter for letter in text if text.count(letter) > 1]
    missing = "".join(letter for letter in wanted if letter not in text)
    beyond = "".join(letter for letter in text if letter not in wanted)
    if twice:
        why = f"{twice[0]!r} is in it twice. Was it joined twice, or something overwritten before it was read?"
    elif not missing and not beyond:
        why = "right letters, wrong order. Which of the two comes first in the list?"
    elif not wanted:
        why = "nothing stands before it"
    elif not text:
        why = "nothing has come there, or it was overwritten before it was read"
    elif not missing and text == wanted + beyond and len(beyond) == 1:
        why = f"{beyond!r} is one too far. Does it hold what stands before its place, or up to it?"
    elif not missing:
        why = f"{beyond!r} does not belong there"
    elif not beyond:
        why = f"{missing!r} is missing"
    else:
        why = f"it has {beyond!r} in place of {missing!r}"
    return Wrong(f"place {place}: {name(text)} should be {name(wanted)}: {why}", found.first_out_of_order() or found)


def _wrong(error, answer, where=""):
    """Make of what an answer raised what is `Wrong` with it, and say where."""
    begin, known = f"{where}: " if where else "", isinstance(error, Wrong)
    return Wrong(f"{begin}{error}", error.word, error.verdict) if known else Wrong(begin + said(error, answer))


def said(error, answer, words=None):
    """Say what an answer raised, on which of its lines, and in which words: its own, if no others are given."""
    code, line, at = getattr(answer, "__code__", None), "", error.__traceback__
    while at is not None and code is not None:
        if at.tb_frame.f_code.co_filename == code.co_filename and at.tb_lineno >= code.co_firstlineno:
            line = f" on line {at.tb_lineno - code.co_firstlineno + 1} of yours"
        at = at.tb_next
    try:
        what = "an answer returns, and leaves Python running" if isinstance(error, SystemExit) else words or str(error)
    except Exception:
        what = "without words"
    return f"{type(error).__name__}{line}: {what}"
