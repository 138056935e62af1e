"""Puzzles about CUDA kernels. They run on letters, too: matrices that spell what they were multiplied from.

A = [[1, 1], [0, 1]] and B = [[1, 0], [1, 1]] are free: no two products of them are the same. Letter k is A^k B, and a 1
in the corner makes it H by H, with H = 3. So a matrix that a kernel has written can be read, and told off in words.
"""

import numpy as np

from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.puzzles.arrays import compare
from bppsa_nb.puzzles.checker import LETTERS, Puzzles, Verdict, Word, Wrong, name, told
from bppsa_nb.puzzles.launches import costs, launch, see_who
from bppsa_nb.puzzles.scans import pairs
from bppsa_nb.puzzles.warps import PUZZLES as WARPS
from bppsa_nb.scan import levels

PUZZLES = Puzzles(WARPS)
H = 3
LENGTHS = (8, 4, 7, 3, 2, 6)  # places of the lists that are tried, the gradient's included
left_of = cuda.jit(levels.pair_left, device=True)
right_of = cuda.jit(levels.pair_right, device=True)
_A, _B = np.array([[1.0, 1], [0, 1]]), np.array([[1.0, 0], [1, 1]])


def spelled(word):
    """Return the matrix of a word [shape=(H, H)]: the product of its letters' matrices by ⋄, in reverse."""
    found = np.eye(H)
    for letter in word:
        found[:2, :2] = np.linalg.matrix_power(_A, LETTERS.index(letter)) @ _B @ found[:2, :2]
    return found


def read(matrix):
    """Return the word that a matrix spells, or None if it is no product of letters; see `spelled`."""
    text = read_vector(np.array(matrix) @ np.ones(H))
    return text if text is not None and np.array_equal(spelled(text), matrix) else None


def read_vector(vector):
    """Return the word whose matrix took a vector of ones to this one, or None if there is none.

    It undoes letter by letter what was done to (1, 1): larger above is A's doing, larger below B's.
    """
    x, y, corner = vector
    if not (corner == 1 <= min(x, y) <= max(x, y) < 1e15 and x == int(x) and y == int(y)):
        return None
    text, power = "", 0
    while (x, y) != (1, 1):
        if power == len(LETTERS):
            return None
        if x > y:
            x, power = x - y, power + 1
        elif y > x:
            x, y, text, power = x, y - x, LETTERS[power] + text, 0
        else:
            return None
    return None if power else text


class _Levels:
    """What a list of words holds, level by level: as it should be, and as kernels leave it.

    Of numbers that no scan of the list makes, one asks `questions`.
    """

    def __init__(self, what, texts, questions):
        self.what, self.questions = what, questions
        self.right = [[Word(text) for text in texts]]
        self.yours = [list(self.right[0])]

    def level(self, d, made, found, said=None):
        """Take what a level should have made, texts by place with the places of their parents, and what is there.

        Raises `Wrong`, whose verdict shows both, if they are not the same; `said` are reasons by place.
        """
        for rows, texts in ((self.right, {p: text for p, (text, _) in made.items()}), (self.yours, found)):
            row, before = list(rows[-1]), rows[-1]
            for place, text in texts.items():
                if text != before[place].text:
                    parents = [before[p] for p in made[place][1]] if place in made else []
                    row[place] = Word("?" if text is None else text, parents)
            rows.append(row)
        for place, text in sorted(found.items()):
            wanted = self.right[-1][place].text
            if text == wanted:
                continue
            word, where = self.yours[-1][place], f"{self.what}, level {len(self.right) - 1} (d = {d})"
            if said and place in said:
                why = f"place {place}: {name(text or '')} should be {name(wanted)}: {said[place]}"
            elif text is None or len(set(text)) < len(text):
                numbers = "numbers that no letters multiply to" if text is None else f"{text!r}"
                why = f"place {place}: {numbers} should be {name(wanted)}. {self.questions}"
            else:
                why = str(told(place, word, wanted))
            message = f"{where}, {why}"
            raise Wrong(message, verdict=Verdict(False, message, self.yours, self.right, word))


_PRODUCT = (
    "Entry [i, j] is row i of mats[r] times column j of mats[l], summed over all k: is it? Does each thread write its "
    "own entry? Does one read what another has overwritten?"
)

_TRANSPOSED = "it is transposed; entry [i, j] belongs in row i and column j"


@cuda.jit
def up_level(mats, d):
    """Multiply the pairs of level d of the way up: a[r] becomes a[l] ⋄ a[r]."""
    pair, i, j = cuda.blockIdx.x, cuda.threadIdx.x, cuda.threadIdx.y
    l, r = left_of(pair, d), right_of(pair, d, mats.shape[0] - 1)
    entry = 0.0
    for k in range(H):
        entry += mats[r, i, k] * mats[l, k, j]
    cuda.syncthreads()
    mats[r, i, j] = entry


@PUZZLES.rule_of(up_level)
def _rule_up_level(answer):
    found = []
    for n in LENGTHS:
        letters = LETTERS[:n]
        mats = np.stack([spelled(letter) for letter in letters])
        found.append(_words(answer, mats, [_Levels(f"a list of {n}", letters, _PRODUCT)]))
    _numbers(answer, 6)
    letters = LETTERS[: LENGTHS[0]]
    best = _words(up_level, np.stack([spelled(letter) for letter in letters]), [_Levels("", letters, "")])
    return _right(f"a list of {len(letters)}, {len(best)} launches", costs(found[0], best))


def _right(what, rows):
    return Verdict(True, "Right, in words and in numbers.", costs=rows, example=what)


def _words(answer, mats, seen):
    """See that a kernel of the way up is right for words; return its launches' reports.

    `mats` are (n, H, H), or (n, B, H, H) of as many `_Levels`.
    """
    (n, *batch), reports = mats.shape[:-2], []
    for d in range(levels.up_levels(n - 1)):
        there = pairs(n - 1, d)
        launched = launch(answer, (len(there), *batch) if batch else len(there), (H, H), mats, d)
        mats = launched.arrays[0]
        for each, found in zip(seen, mats.reshape(n, -1, H, H).swapaxes(0, 1), strict=True):
            words = [word.text for word in each.right[-1]]
            made = {r: (words[l] + words[r], (l, r)) for l, r in there}
            turned = {r: _TRANSPOSED for r, (text, _) in made.items() if read(found[r].T) == text}
            each.level(d, made, {place: read(matrix) for place, matrix in enumerate(found)}, turned)
        reports.append(launched.report)
    return reports


def _numbers(answer, n, batch=()):
    """See that a kernel of the way up is right for numbers, too, for words have zeros; and that its work is shared."""
    mats = np.random.default_rng(0).standard_normal((n, *batch, H, H))
    places = np.arange(mats.size).reshape(n, -1, H * H)
    for d in range(levels.up_levels(n - 1)):
        wanted, there = mats.copy(), pairs(n - 1, d)
        for l, r in there:
            wanted[r] = mats[r] @ mats[l]
        launched = launch(answer, (len(there), *batch) if batch else len(there), (H, H), mats, d)
        (mats,) = launched.arrays
        compare("words come out right, but of numbers mats", mats, wanted)
        see_who(launched, (H, H), [sample for _, r in there for sample in places[r]], "products")


_HANDED_DOWN = (
    "Entry i is row i of mats[l] times vecs[r], summed over all k: is it? Does one thread read what another has "
    "overwritten?"
)


@cuda.jit
def down_level(mats, vecs, d):
    """Hand down gradients on level d of the way down."""
    pair, i = cuda.blockIdx.x, cuda.threadIdx.x
    l, r = left_of(pair, d), right_of(pair, d, mats.shape[0] - 1)
    if pair == 0:
        vecs[r, i] = mats[l, i, 0]
    else:
        entry = 0.0
        for k in range(H):
            entry += mats[l, i, k] * vecs[r, k]
        cuda.syncthreads()
        vecs[l, i], vecs[r, i] = vecs[r, i], entry


@PUZZLES.rule_of(down_level)
def _rule_down_level(answer):
    found = [_words_down(answer, n) for n in LENGTHS]
    rng = np.random.default_rng(0)
    mats, vecs = rng.standard_normal((6, H, H)), np.zeros((6, H))
    mats[0] = mats[0, :, :1]  # the gradient, in every column
    for d in range(levels.up_levels(5)):
        for l, r in pairs(5, d):
            mats[r] = mats[r] @ mats[l]
    places, wanted = np.arange(vecs.size).reshape(vecs.shape), vecs.copy()
    for d in reversed(range(levels.down_levels(5))):
        there, groups = pairs(5, d), []
        for l, r in there:
            if r == there[0][1]:
                wanted[r] = mats[l, :, 0]
            else:
                wanted[l], wanted[r] = wanted[r], mats[l] @ wanted[r]
            groups.append(places[r] if r == there[0][1] else places[[l, r]].ravel())
        launched = launch(answer, len(there), H, mats, vecs, d)
        vecs = launched.arrays[1]
        compare("words come out right, but of numbers vecs", vecs, wanted)
        see_who(launched, H, groups, "pairs' vectors")
    best = _words_down(down_level, LENGTHS[0])
    return _right(f"a list of {LENGTHS[0]}, {len(best)} launches", costs(found[0], best))


def _words_down(answer, n):
    """See that a kernel of the way down is right for a list of n words; return its launches' reports."""
    letters, ones = LETTERS[:n], np.ones(H)
    words = list(letters)
    for d in range(levels.up_levels(n - 1)):
        for l, r in pairs(n - 1, d):
            words[r] = words[l] + words[r]
    mats = np.stack([spelled(word.removeprefix("a")) for word in words])
    for place, word in enumerate(words):
        if word.startswith("a"):
            mats[place] = (mats[place] @ ones)[:, None]
    vecs, seen, reports = np.zeros((n, H)), _Levels(f"a list of {n}", [""] * n, _HANDED_DOWN), []
    for d in reversed(range(levels.down_levels(n - 1))):
        there, before, made = pairs(n - 1, d), {p: word.text for p, word in enumerate(seen.right[-1])}, {}
        for l, r in there:
            first = r == there[0][1]
            made[r] = before[r] + words[l], () if first else (r,)
            if not first:
                made[l] = before[r], (r,)
        launched = launch(answer, len(there), H, mats, vecs, d)
        vecs = launched.arrays[1]
        found = {p: None if (text := read_vector(vecs[p])) is None else "a" + text for p in made}
        found = {p: "" if found[p] is None and not vecs[p].any() else found[p] for p in made}
        seen.level(d, made, found, {there[0][1]: "of pair 0, which gets it from mats[l], where the gradient is"})
        reports.append(launched.report)
    return reports


@cuda.jit
def up_level_of_batch(mats, d):
    """Multiply the pairs of level d of the way up for all samples of a batch at once."""
    pair, b, i, j = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x, cuda.threadIdx.y
    l, r = left_of(pair, d), right_of(pair, d, mats.shape[0] - 1)
    entry = 0.0
    for k in range(H):
        entry += mats[r, b, i, k] * mats[l, b, k, j]
    cuda.syncthreads()
    mats[r, b, i, j] = entry


@PUZZLES.rule_of(up_level_of_batch)
def _rule_up_level_of_batch(answer):
    found = []
    for kernel, n in ((answer, 4), (answer, 7), (answer, 2), (up_level_of_batch, 4)):
        samples = LETTERS[:n], LETTERS[n : 2 * n]
        mats = np.stack([[spelled(sample[place]) for sample in samples] for place in range(n)])
        what, questions = f"a batch of two lists of {n}, sample", f"{_PRODUCT} Is block (pair, b) alone with sample b?"
        seen = [_Levels(f"{what} {b}", sample, questions) for b, sample in enumerate(samples)]
        found.append(_words(kernel, mats, seen))
    _numbers(answer, 5, (3,))
    return _right("two lists of 4, 2 launches", costs(found[0], found[-1]))
