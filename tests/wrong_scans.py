"""Answers to the puzzles about scans: wrong ones, with what is said of each, and right ones.

An answer is a program, the solution with another body, or the solution with some of its text replaced. All may use
functools and itertools.
"""

import inspect
import re
import textwrap

from bppsa_nb.puzzles import scans, workers
from bppsa_nb.puzzles.checker import Word

LOOP = "for i in range(1, len(a)):\n    a[i] = op(a[i - 1], a[i])\n    yield"
SAID = {  # a body, or old and new texts in turn; last, what is said
    "diamond": [
        ("return a @ b", "diamond(A, B) is A B and should be B A: what is closer to the loss is applied first"),
        ("return a", "diamond(A, B) is A and should be B A: each once"),
        ("return None", "diamond(A, B) is None (is a return missing?) and should be B A"),
        ("return b * a", "diamond(A, B): matrices are multiplied by @, and not by *"),
        ("return a @ 2", "TypeError on line 2 of yours: A @ 2: only matrices and vectors"),
        ("return [b @ a, a.terms.clear()][0]", "it changes a, which others still read; work on a copy, and leave a as"),
        ("return diamond(a, b)", "RecursionError on line 2 of yours"),
        ("return b", "diamond(A, B) is B and should be B A: each once"), ("b @ a", "B A: one product, made by @"),
        ("print(b @ a)", "B A: one product, made by @"), ("return (b @ a,)", "B A: one product, made by @"),
        ("return b, a", "B A: one product, made by @"), ("return 'B A'", "B A: one product, made by @"),
        ("return b @ a @ b", "diamond(A, B) is B A B and should be B A: each once"),
        ("return b + a", "B A: a product of two is no sum"),
        ("return b @ a + a @ b", "B A: a product of two is no sum"), ("yield b @ a", "B A: one product, made by @"),
        ("return lambda g: b @ (a @ g)", "B A: one product, made by @"),
        ("a, b = b, a\nreturn b @ a", "B A: what is closer to the loss is applied first, so it stands on the right"),
        ("a @= b\nreturn a", "B A: what is closer to the loss is applied first, so it stands on the right"),
        ("return b @ a if str(a) == 'A' else a @ b", "A g: what is closer to the loss is applied first, so it stands"),
        ("return functools.reduce(lambda x, y: x @ y, [a, b])", "B A: what is closer to the loss is applied first, so"),
        ("return a.__mul__(b)", "matrices are multiplied by @, and not by *"),
        ("return op(b, a)", "NameError on line 2 of yours"),
        ("return b @ a if len(str(a)) == 1 else a", "diamond(B A, B) is B A and should be B B A: each once"),
        ("def diamond(a): return a", "TypeError"),
        ("a.terms[:] = (b @ a).terms\nreturn a", "it changes a, which others still read; work on a copy, and leave a"),
    ],
    "totals": [
        ("[items[0]]", '[Word("")]', "[1:]", "[:-1]", "a list of 4, place 0: the identity should be 'a': nothin"),
        ("op(found[-1], item)", "op(item, found[-1])", "a list of 4, place 1: 'ba' should be 'ab': right letters,"),
        ("found[-1], item", "items[len(found) - 1], item", "a list of 4, place 2: 'bc' should be 'abc': 'a' is mi"),
        ("return found", "return found[-1]", "a list of 4: it returned 'abcd' and should return a list of 4, a to"),
        ("[items[0]]", "[op(items[0], items[0])]", "a list of 4, place 0: 'aa' should be 'a': 'a' is in it twice."),
        ("return found", "return [*found[1:], found[-1]]", "a list of 4, place 0: 'ab' should be 'a': 'b' is one "),
        ("return [op(item, item.text) for item in items]", "op was given 'a' as its second; it joins what the list he"),
        ("found = [items[0]]", "found = items", "append", "insert", "op(", "0, op(", "it changes items, which"),
        ("op):", "op, found=[]):", "= [items", "+= [items", "a list of 5: it returned ['a', 'ab', 'abc', 'abcd'"),
        ("return itertools.accumulate(items, op)", "a list of 4: it returned <itertools.accumulate object at"),
        ("in items[1:]", "in items", "it returned ['a', 'aa', 'aab', 'aabc', 'aabcd'] and should return a list of 4,"),
        ("in items[1:]", "in items[1:-1]", "it returned ['a', 'ab', 'abc'] and should return a list of 4, a total per"),
        ("return found", "    return found", "it returned ['a', 'ab'] and should return a list of 4, a total per item"),
        ("return found", "print(found)", "it returned None (is a return missing?) and should return a list of 4, a to"),
        ("return found", "return tuple(found)", "it returned ('a', 'ab', 'abc', 'abcd') and should return a list of 4"),
        ("return found", "yield from found", "it returned a generator, since it has a yield, and should return a list"),
        ("return found", "return (word for word in found)", "it returned a generator, since it has a for in round bra"),
        ("return map(lambda i: functools.reduce(op, items[: i + 1]), range(len(items)))", "a list of 4: it returned"),
        ("return dict(enumerate(itertools.accumulate(items, op)))", "it returned {0: 'a', 1: 'ab', 2: 'abc', 3: 'abcd"),
        ("found = [items[0]]", "found = items[:0]", "IndexError on line 4 of yours"),
        ("for i in range(1, len(items)): items[i] = op(items[i - 1], items[i])\nreturn items",
         "it changes items, which others still read; work on a copy, and leave items as it is"),
        ("a, b, c, d = items\nreturn [a, op(a, b), op(op(a, b), c), op(op(op(a, b), c), d)]",
         "ValueError on line 2 of yours"),
        ("return ['a', 'ab', 'abc', 'abcd']", "place 0 holds 'a', a text, and should hold 'a', a word of the list or"),
        ("op(found[-1], item)", "found[-1] + item", "words are joined by op(x, y), and not by +"),
        ("items[0]]", "'']", "[1:]", "", "'' as its first; it joins what the list held and what op returned. Begin "
         "with items[0]"),
        ("return [functools.reduce(op, items[i:]) for i in range(len(items))]", "place 0: 'abcd' should be 'a': 'bcd'"),
        ("return [functools.reduce(op, items[:i]) for i in range(len(items))]", "TypeError on line 2 of yours"),
        ("return list(itertools.accumulate(items, lambda x, y: op(y, x)))", "place 1: 'ba' should be 'ab': right lett"),
        ("if len(items) == 1: return items\nreturn [*totals(items[:-1], op), op(items[-2], items[-1])]",
         "place 2: 'bc' should be 'abc': 'a' is missing"),
        ("def totals(items, op):\n    for item in items: memo.append(op(memo[-1], item) if memo else item)\n"
         "    return memo\n\nmemo = []",
         "op was given 'abcd', which neither stood in this list nor was made of it by op. Does it keep words from one"),
        ("make = type(items[0])\nreturn [make(''.join(x.text for x in items[: i + 1])) for i in range(len(items))]",
         "place 0 holds 'a', which neither stood in this list nor was made of it by op. Does it keep words from one c"),
        ("def totals(op, items):\n    return list(itertools.accumulate(items, op))", "TypeError on line 2 of yours"),
        ("total = items[0]\nwhile True: total = op(total, total)", "op has made a word of 32 letters. Does every loop"),
        ("class Totals:\n    pass\n\ntotals = Totals()", "the answer is a function, and not"),
    ],
    "reduce": [
        ("a[:] = itertools.accumulate(a, op)\nyield", "level 1 makes 'abc' of 'ab', which is made on that very level"),
        (
            "while len(a) > 1:\n    a = [op(a[i], a[i + 1]) for i in range(0, len(a), 2)]\n    yield",
            "a list of 4, op has joined, but the list is as it was: write a[i] = ...; a = ... makes another list",
        ),
        (LOOP, "a list of 4, it takes 3 levels, and 2 are enough"),
        ("while half < len(a)", "while half < 2", "a list of 4, place 3: 'cd' should be 'abcd': 'ab' is missing"),
        ("        yield\n", "", "a list of 4, it returned None and never paused; write yield behind each level"),
        ("while True:\n    yield", "a list of 4, it paused 33 times and went on. Does every loop of yours end?"),
        ("half < len(a)", "half <= len(a)", "len(a), 2", "3 * half, 2", "a list of 4, IndexError on line 5 of y"),
        ("a[:] = [op(a[0], a[1]), op(a[2], a[3])]\nyield", "a list of 4, the list has 2 places at the end; it works"),
        ("a[-1].text = a[0].text\nyield", "a list of 4, a word stays as it is; op(x, y) makes another one"),
        ("a[-1] = functools.reduce(op, [a.sort(key=str), *a])\nyield", "a list of 4, op was given None as its first"),
        ("range(2 * half - 1,", "range(half,", "place 3: 'cd' should be 'abcd': 'ab' is missing"),
        ("op(a[r - half], a[r])", "op(a[r], a[r - half])", "place 3: 'dcba' should be 'abcd': right letters, wrong or"),
        ("        yield\n", "            yield\n", "it takes 3 levels, and 2 are enough: level 2 needs nothing that l"),
        ("yield\n", 2 * "yield\n        a.reverse()\n        " + "yield\n", "it takes 6 levels, and 2 are enough"),
        ("        yield\n        half *= 2", "        half *= 2\n    yield", "level 1 makes 'abcd' of 'ab', which is"),
        ("half *= 2", "half += 1", "it takes 4 levels, and 3 are enough: level 3 needs nothing that level 2 makes. Do"),
        ("half *= 2", "return", "place 3: 'cd' should be 'abcd': 'ab' is missing"),
        ("        half *= 2", "", "op has made a word of 25 letters. Does every loop of yours end?"),
        ("        yield\n", "", "half *= 2", "half *= 2\n    return a[-1]", "it returned 'abcd' and never paused; wri"),
        ("range(2 * half - 1, len(a)", "range(2 * half - 1, len(a) - 1", "place 3: 'd' should be 'abcd': 'abc' is mis"),
        ("2 * half - 1,", "0,", "a[r] = op(a[r - half], a[r])", "a[r] = op(a[r], a[r + half])", "half *= 2",
         "half *= 2\n    a[-1] = a[0]",
         "place 0 holds 'abcd' and should hold 'a': store each joined word in the right one of its two places"),
        ("a[r] = op", "a[r - half] = a[r] = op", "place 0 holds 'ab' and should hold 'a': store each joined word in t"),
        ("a[r] = op", "op", "op has joined, but the list is as it was: write a[i] = ...; a = ... makes another list"),
        ("a[r] = op(a[r - half], a[r])", "a[r], a[r - half] = op(a[r - half], a[r]), None",
         "place 0 holds None and should hold 'a': store each joined word in the right one of its two places"),
        ("for i in range(len(a) - 1): a[-1] = op(a[i], a[-1])\nyield", "place 3: 'cbad' should be 'abcd': right lette"),
        ("for i in reversed(range(len(a) - 1)):\n    a[-1] = op(a[i], a[-1])\n    yield",
         "it takes 3 levels, and 2 are enough"),
        ("a[-1] = functools.reduce(op, a)\nreturn a", "it returned ['a', 'b', 'c', 'abcd'] and never paused; write yi"),
        ("def fold(a, op): return op(fold(a[: len(a) // 2], op), fold(a[len(a) // 2 :], op)) if a[1:] else a[0]\n"
         "def reduce(a, op):\n    a[-1] = fold(a, op)\n    yield",
         "level 1 makes 'abcd' of 'ab', which is made on that very level; all joins of a level run at once, and none "),
        ("while len(a) > 1:\n    a[:] = [op(x, y) for x, y in zip(a[::2], a[1::2])]\n    yield",
         "the list has 1 places at the end; it works in place, and leaves them 4"),
        ("while len(a) > 1:\n    a.append(op(a.pop(0), a.pop(0)))\n    yield", "the list has 1 places at the end; it"),
        ("for x, y in zip(a[::2], a[1::2]): y = op(x, y)\nyield", "op has joined, but the list is as it was: write a["),
        ("b = a[:]\nwhile len(b) > 1:\n    b = [*map(op, b[::2], b[1::2])]\n    yield\na[-1] = b[0]",
         "place 1 holds 'b' and should hold 'ab': store each joined word in the right one of its two places"),
        ("a[-1] = ''.join(x.text for x in a)\nyield", "place 3 holds 'abcd', a text, and should hold 'abcd', a word o"),
        ("a[-1] = op(op(a[1], a[0]), op(a[2], a[3]))\nyield", "place 3: 'bacd' should be 'abcd': right letters, wrong"),
        ("while True: a[-1] = op(a[-1], a[-1])\nyield", "op has made a word of 32 letters. Does every loop of yours e"),
        ("def reduce(a, op):\n    calls.append(0)\n    if len(calls) > 5: a = ()\n"
         "    for d in range(len(a).bit_length() - 1):\n"
         "        for r in range(2 ** (d + 1) - 1, len(a), 2 ** (d + 1)): a[r] = op(a[r - 2**d], a[r])\n"
         "        yield\n\ncalls = []",
         "place 31: 'F' should be 'abcdefghijklmnopqrstuvwxyzABCDEF': 'abcdefghijklmnopqrstuvwxyzABCDE' is missing"),
        ("range(2 * half - 1, len(a), 2 * half)", "range(half, len(a))", "a list of 4, level 1 makes 'abc' of 'ab'"),
    ],
    "before": [
        ("return letters[:r]", "before('abcd', r=3, d=1) is 'abc' and should be '': what stands in its own block, 'ab"),
        ("return letters[: r + 1]", "before('abcd', r=3, d=1) is 'abcd' and should be '': 'abcd' is its own block, wh"),
        ("2 ** (d + 1)", "2**d", "before('abcd', r=3, d=1) is 'ab' and should be '': its block is 'abcd'"),
        ("2 ** (d + 1)", "4 if d else 2", "before('abcde', r=4, d=2) is 'abcd' and should be '': what stands in i"),
        ("r // size * size", "max(0, r + 1 - size)", "before('abcde', r=4, d=1) is 'a' and should be 'abcd': its "),
        ("return None", "before('abcd', r=3, d=1) is None (is a return missing?) and should"),
        ("return letters[: r // size * size]", "return []", "before('abcd', r=3, d=1) is [] and should be ''"),
        ("return letters[: r // size * size]", "print(letters[: r // size * size])", "'': a text, such as letters[:2]"),
        ("letters[: r // size * size]", "letters[r // size * size :]", "'': 'abcd' is its own block, which it held be"),
        ("letters[: r // size * size]", "letters[r // size * size]", "'': its block is 'abcd'; what stands before tha"),
        ("2 ** (d + 1)", "2 * (d + 1)", "'': what stands in its own block, 'abcdefg', it does not know yet"),
        ("2 ** (d + 1)", "2 ^ (d + 1)", "ZeroDivisionError on line 3 of yours"),
        ("r // size * size", "r / size * size", "TypeError on line 3 of yours"),
        ("r // size * size", "r // size", "'ab': its block is 'cd'; what stands before that"),
        ("r // size * size", "r % size", "'': what stands in its own block, 'abcd', it does not know yet"),
        ("r // size * size", "r - size", "'': what stands in its own block, 'abcd', it does not know yet"),
        ("r // size * size", "(r - 1) // size * size", "'abcd': its block is 'e'; what stands before that"),
        ("r // size * size", "(r + 1) // size * size", "'': 'abcd' is its own block, which it held before the way dow"),
        ("r // size * size", "r + 1 - size", "'': its block is 'abcde'; what stands before that"),
        ("r // size * size", "len(letters) // size * size", "'': 'abcd' is its own block, which it held before the wa"),
        ("letters[: r // size * size]", "list(letters[: r // size * size])", "'': a text, such as letters[:2]"),
        ("letters[: r // size * size]", "r // size * size", "'': a text, such as letters[:2]"),
        ("letters[: r // size * size]", "letters[: r // size * size] or 'I'", "'': its block is 'abcd'; what stands b"),
        ("letters[: r // size * size]", "letters[: r // size * size] or None", "'': a text, such as letters[:2]"),
        ("letters[: r // size * size]", "letters[: r // size * size][::-1]", "'ab': its block is 'cd'; what stands be"),
        ("return", "yield", "'': a text, such as letters[:2]"),
        ("letters, r, d", "letters, d, r", "'ab': its block is 'cd'; what stands before that"),
        ("letters, r, d", "letters, r", "d + 1", "1", "TypeError"),
    ],
    "down_sweep": [
        ("a[l], a[r] = a[r],", "a[l] = a[r]; a[r] =", "place 1: the identity should be 'a': nothing has come there"),
        ("reversed(range(levels))", "range(levels)", "a list of 4, place 0: 'ab' should be the identity: nothing stan"),
        ("op(a[r], a[l])", "a[r] + a[l]", "words are joined by op(x, y), and not by +"),
        ("        yield\n", "    yield\n", "a list of 8, level 1 makes 'abcdefg' of 'abcdef'"),
        ("op(a[r], a[l])", "a[l]", "a list of 4, place 3: 'c' should be 'abc': 'ab' is missing"),
        ("        yield\n", "", "a list of 4, it returned None and never paused"),
        ("a[:] = [None] * len(a)\nyield", "a list of 4, place 0 holds None and should hold the identity, a word of t"),
        ("in pairs(d):", "in [p for p in pairs(d) if p[1] % 2]:", "a list of 5, place 0: 'abcd' should be the ident"),
        ("a[l], a[r] = a[r],", "a[r], a[l] = a[r],", "place 0: 'aba' should be the identity: 'a' is in it twice. Was"),
        ("a[l], a[r] = a[r], op", "a[r] = op", "place 0: 'a' should be the identity: nothing stands before it"),
        ("op(a[r], a[l])", "op(a[l], a[r])", "place 3: 'cab' should be 'abc': right letters, wrong order. Which of th"),
        ("        yield\n", "            yield\n", "it takes 3 levels, and 2 are enough: level 2 needs nothing that l"),
        ("        yield\n", "        yield\n        break\n", "place 0: 'a' should be the identity: nothing stands be"),
        ("reversed(range(levels))", "range(levels, 0, -1)", "place 0: 'a' should be the identity: nothing stands befo"),
        ("reversed(range(levels))", "range(levels - 1, 0, -1)", "place 0: 'a' should be the identity: nothing stands"),
        ("for l, r in pairs(d)", "for r, l in pairs(d)", "place 0: 'aab' should be the identity: 'a' is in it twice."),
        ("for l, r in pairs(d)", "for l, r in pairs", "TypeError on line 3 of yours"),
        ("for l, r in pairs(d):", "for l, r in pairs(d)[:-1]:", "place 0: 'ab' should be the identity: nothing stands"),
        ("for l, r in pairs(d):\n            ", "l, r = pairs(d)\n        ", "ValueError on line 3 of yours"),
        ("    for d in", "    a[-1] = ''\n    for d in", "'' as its first; it joins what the list held and what op r"
         "eturned. The last place holds the identity already: leave it as it is"),
        ("yield\n", "yield\n    a[0] = ''\n", "place 0 holds '', a text, and should hold the identity, a word of the "),
        ("    for d in", "    a[0] = a[-1]\n    for d in", "place 1: the identity should be 'a': nothing has come the"),
        ("    for d in", "    a = list(a)\n    for d in", "op has joined, but the list is as it was: write a[i] = ..."),
        ("d = levels - 1\nwhile d >= 0:\n    for l, r in pairs(d): a[l], a[r] = a[r], op(a[r], a[l])\n    yield",
         "op has made a word of 26 letters. Does every loop of yours end?"),
        ("a.insert(0, a.pop())\nfor i in range(1, len(a)):\n    a[i] = op(a[i - 1], a[i])\n    yield",
         "place 2: 'aab' should be 'ab': 'a' is in it twice. Was it joined twice, or something overwritten before it "),
        ("a[:] = itertools.accumulate([a[-1], *a[:-1]], op)\nyield", "level 1 makes 'aabc' of 'aab', which is made on"),
        ("print(a)\nyield", "place 0: 'a' should be the identity: nothing stands before it"),
        ("return a", "it returned ['a', 'ab', 'c', ''] and never paused; write yield behind each level"),
        ("def down_sweep(a, op, pairs, levels):\n    if len(a) not in first: first[len(a)] = a[:1]\n"
         "    for d in reversed(range(levels)):\n        for l, r in pairs(d): a[l], a[r] = a[r], op(a[r], a[l])\n"
         "        yield\n    if len(a) == 2: a[1] = first[4][0]\n\nfirst = {}",
         "place 1 holds 'a', which neither stood in this list nor was made of it by op. Does it keep words from one c"),
    ],
    "pairs": [
        ("return [(0, 1)]", "pairs(3, 0) is [(0, 1)] and should be [(0, 1), (2, 3)]"),
        ("n - half + 1", "n - 2 * half + 2", "pairs(4, 2) is [] and should be [(3, 4)]: a block whose right half is"),
        ("n - half + 1", "n + 1", "- 1, n)", "- 1, 99)", "(4, 5)] and should be [(0, 1), (2, 3)]: there is no place"),
        ("n - half + 1", "n + 1", "pairs(4, 0) is [(0, 1), (2, 3), (4, 4)] and should be [(0, 1), (2, 3)]: a block wi"),
        ("n - half + 1", "n - half", "half - 1, n)", "half, n) - 1", "should be [(0, 1), (2, 3)]: n is the last place"),
        ("return [(i, i + 1) for i in range(n)]", "[(0, 1), (1, 2), (2, 3)] and should be [(0, 1), (2, 3)]: blocks"),
        ("return [(0, n)]", "pairs(3, 0) is [(0, 3)] and should be [(0, 1), (2, 3)]: blocks have 2"),
        ("return None", "pairs(3, 0) is None (is a return missing?) and should be [(0, 1), (2, 3)], a li"),
        ("return iter([(0, 1)])", "and should be [(0, 1), (2, 3)]; this list_iterator is no list, and list(...) makes"),
        ('return [3, "x"]', "pairs(3, 0) is [3, 'x'] and should be"),
        ("return [(0, 1 // d)]", "ZeroDivisionError on line 2 of yours"),
        ("return found", "return tuple(found)", "[(0, 1), (2, 3)]; this tuple is no list, and list(...) makes one of"),
        ("return found", "return set(found)", "[(0, 1), (2, 3)]; this set is no list, and list(...) makes one of it"),
        ("return found", "yield from found", "[(0, 1), (2, 3)], a list"),
        ("return found", "print(found)", "[(0, 1), (2, 3)], a list"),
        ("return found", "return found.reverse()", "[(0, 1), (2, 3)], a list"),
        ("return found", "return 2 * found", "[(0, 1), (2, 3)]: each pair once"),
        ("return found", "    return found", "[(0, 1), (2, 3)]: n is the last place, so there are 4"),
        ("found.append((", "found.extend((", "[(0, 1), (2, 3)]: each of them is a pair (l, r)"),
        ("return list(zip(range(2**d - 1, n, 2 ** (d + 1)), range(2 ** (d + 1) - 1, n + 1, 2 ** (d + 1))))",
         "[(3, 4)]: a block whose right half is cut short has a pair, too"),
        ("first + half - 1,", "first,", "[(1, 3)]: l is the last place of the left half, and not its first one"),
        ("first + half - 1,", "first + half,", "[(0, 1), (2, 3)]: a block without a right half has no pair"),
        ("2 * half - 1, n)", "2 * half - 1, n - 1)", "[(0, 1), (2, 3)]: a block without a right half has no pair"),
        ("n - half + 1, 2 * half", "n - half + 1, half", "[(0, 1), (2, 3)]: blocks have 2 places, the first one from"),
        ("n - half + 1", "n", "[(1, 3)]: a block without a right half has no pair"),
        ("n - half + 1", "n - 2 * half + 1", "[(0, 1), (2, 3)]: n is the last place, so there are 4"),
        ("2**d", "2 * d + 1", "[(1, 3)]: blocks have 4 places, the first one from 0 on"),
        ("2**d", "2 ** (d + 1)", "[(0, 1), (2, 3)]: blocks have 2 places, the first one from 0 on"),
        ("(first + half - 1,", "(first + half / 1 - 1,", "[(0, 1), (2, 3)]: places are whole numbers, so divide with"),
        ("half, found = 2**d, []", "half, found = 2 ** (d + 1) / 2, []", "TypeError on line 3 of yours"),
        ("n, d):", "n, d, known=[]):", "return found", "known += found\n    return known",
         "[(1, 3)]; it is the same list as in the call before, with more in it: begin with a new one in each call"),
        ("n, d)", "d, n)", "[(0, 1), (2, 3)]: blocks have 2 places, the first one from 0 on"),
        ("return list(itertools.pairwise(range(2**d - 1, n + 1, 2**d)))", "[(0, 1), (2, 3)]: blocks have 2 places, th"),
        ("return found", "return found if n < 9 else found[1:]", "[(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]: blocks ha"),
    ],
    "affine": [
        ("return A @ B, A @ q + p", "affine((A, p), (B, q)) has the matrix A B and should have B A: a gradient g beco"),
        ("return B @ A, B @ p", "affine((A, p), (B, q)) has the loss term B p and should have B p + q"),
        ("return B @ A, B @ (p + q)", "affine((A, p), (B, q)) has the loss term B p + B q and should have B p + q"),
        ("return B @ A", "affine((A, p), (B, q)) is B A and should be a matrix and a loss term"),
        ("return [B @ A, B @ p + q]", "affine((A, p), (B, q)) is [B A, B p + q] and should be a matrix and a loss ter"),
        ("return B @ A, A @ p + q", "loss term A p + q and should have B p + q: a gradient g becomes A g + p, and the"),
        ("return B @ A, A @ q + p", "loss term A q + p and should have B p + q: a gradient g becomes A g + p, and the"),
        ("return B @ A, p + q", "loss term p + q and should have B p + q: a gradient g becomes A g + p, and then B (A"),
        ("return B @ A, q", "loss term q and should have B p + q: a gradient g becomes A g + p, and then B (A g + p)"),
        ("return B @ A, p @ B + q", "loss term p B + q and should have B p + q: a gradient g becomes A g + p, and the"),
        ("return B @ p + q, B @ A", ": the matrix comes first, then the loss term"),
        ("return A + B, p + q", "matrix A + B and should have B A: a gradient g becomes A g + p, and then B (A g + p)"),
        ("return B @ A, B @ p, q", "a matrix and a loss term, as what it is given"),
        ("return B @ A + B @ p + q", "a matrix and a loss term, as what it is given"),
        ("print((B @ A, B @ p + q))", "a matrix and a loss term, as what it is given"),
        ("yield B @ A\nyield B @ p + q", "a matrix and a loss term, as what it is given"),
        ("return [(B @ A, B @ p + q)]", "a matrix and a loss term, as what it is given"),
        ("return 'B A', 'B p + q'", "matrix B A and should have B A: a gradient g becomes A g + p, and then B (A g +"),
        ("return B @ A, B * p + q", "matrices are multiplied by @, and not by *"),
        ("return B @ A, B @ (A + p) + q", "loss term B A + B p + q and should have B p + q: a gradient g becomes A g"),
        ("return B @ A, B @ (A @ p) + q", "loss term B A p + q and should have B p + q: a gradient g becomes A g + p,"),
        ("return lambda g: B @ (A @ g + p) + q", "a matrix and a loss term, as what it is given"),
        ("return second, first", "matrix (B, q) and should have B A: a gradient g becomes A g + p, and then B (A g +"),
        ("return first + second", "a matrix and a loss term, as what it is given"),
        ("return map(B.__matmul__, first)", "a matrix and a loss term, as what it is given"),
        ("return B @ A, sum([B @ p, q])", "TypeError on line 3 of yours"),
        ("def affine(A, p, B, q):\n    return B @ A, B @ p + q", "TypeError"),
        ("return {'A': B @ A, 'p': B @ p + q}", "a matrix and a loss term, as what it is given"),
    ],
    "chunks": [
        (LOOP, "a list of 8 in chunks of 4, it takes 7 levels, and 5 are enough"),
        ("firsts[1:]", "[]", "a list of 8 in chunks of 4, place 4: 'e' should be 'abcde': 'abcd' is missing"),
        ("len(a)) - 1):", "len(a)) - (first + length <= len(a))):", "'abcdefabcdefgh' should be 'abcdefgh': 'a' is in"),
        ("op(a[first - 1], a[last])", "a[last]", "in chunks of 4, place 7: 'efgh' should be 'abcdefgh': 'abcd' is mis"),
        (" if first + s < len(a)", "", "a list of 8 in chunks of 3, IndexError on line 5 of yours"),
        ("yield from workers.chunks(a, op, 2)", "in chunks of 3, level 1 makes 'cd', which is of two chunks and be"),
        (
            """
            for s in range(1, length):
                for i in range(s, len(a), length):
                    a[i] = op(a[i - 1], a[i])
                yield
            for first in range(length, len(a), length):
                total = a[first - 1]
                for i in range(first, min(first + length, len(a))):
                    a[i] = op(total, a[i])
                yield
            """,
            "a list of 8 in chunks of 2, the busiest chunk joins 1 + 2 + 2 + 2 = 7 times, level by level, while others",
        ),
        ("a[i] = op(a[first - 1], a[i])", "pass", "place 4: 'e' should be 'abcde': 'abcd' is missing"),
        ("a[last] = op(a[first - 1], a[last])", "pass", "place 7: 'efgh' should be 'abcdefgh': 'abcd' is missing"),
        ("a[i] = op(a[i - 1], a[i])", "pass", "place 1: 'b' should be 'ab': 'a' is missing"),
        ("len(a)) - 1):", "len(a))):", "place 7: 'abcdabcdefgh' should be 'abcdefgh': 'a' is in it twice. Was it join"),
        ("op(a[first - 1], a[i])", "op(a[i], a[first - 1])", "place 4: 'eabcd' should be 'abcde': right letters, wron"),
        ("op(a[first - 1], a[last])", "op(a[last], a[first - 1])", "place 7: 'efghabcd' should be 'abcdefgh': right l"),
        ("s in range(1, length)", "s in range(length)", "place 0: 'ha' should be 'a': 'h' does not belong there"),
        ("s in range(1, length)", "s in range(1, length - 1)", "place 3: 'd' should be 'abcd': 'abc' is missing"),
        ("min(first + length, len(a)) - 1\n", "first + length - 1\n", "IndexError on line 9 of yours"),
        ("firsts[1:]", "firsts[1:-1]", "place 4: 'e' should be 'abcde': 'abcd' is missing"),
        ("firsts[1:]", "firsts", "place 0: 'efghabcdefgha' should be 'a': 'e' is in it twice. Was it joined twice, or"),
        ("for first in firsts if", "for first in firsts[:-1] if", "place 5: 'abcdf' should be 'abcdef': 'e' is missin"),
        ("[last])\n        yield", "[last])", "level 3 makes 'abcdefgh' of 'abcdef', which is made on that very level"),
        ("            a[i] = op(a[i - 1], a[i])\n", "            a[i] = op(a[i - 1], a[i])\n            yield\n",
         "it takes 8 levels, and 5 are enough: level 2 needs nothing that level 1 makes. Does a yield stand one loop "),
        ("[i])\n    yield", "[i])\n        yield", "it takes 7 levels, and 5 are enough: level 5 needs nothing that l"),
        ("[first - 1], a[i])\n", "[first - 1], a[i])\n            yield\n", "it takes 7 levels, and 5 are enough: lev"),
        ("    firsts", "    length = 4\n    firsts", "level 2 makes 'efg', which is of two chunks and begins within o"),
        ("    firsts", "    length = -(-len(a) // length)\n    firsts", "level 1 makes 'ef', which is of two chunks a"),
        ("    firsts", "    a = a[:]\n    firsts", "op has joined, but the list is as it was: write a[i] = ...; a = ."),
        ("for i in range(1, len(a)): a[i] = op(a[i - 1], a[i])\nyield", "level 1 makes 'abc' of 'ab', which is made o"),
        ("a[:] = itertools.accumulate(a, op)\nyield", "level 1 makes 'abc' of 'ab', which is made on that very level;"),
        ("return list(itertools.accumulate(a, op))", "it returned ['a', 'ab', 'abc', 'abcd', 'abcde', 'abcdef', 'abcd"),
        ("a, op, length", "a, length, op", "TypeError on line 2 of yours"),
        ("for first in firsts[1:]:\n        for i in range(first, min(first + length, len(a)) - 1)",
         "for first in reversed(firsts[1:]):\n        for i in range(first, min(first + length, len(a)) - 1)",
         "        a[last] = op(a[first - 1], a[last])\n        yield\n", "        pass\n",
         "place 7: 'efgh' should be 'abcdefgh': 'abcd' is missing"),
    ],
    "exscan": [
        ("yield total", "yield run[-1] if run else identity", "which has 'ab': it hands 'b' to Exscan, and should"),
        ("append(total)", "append(op(total, word))", "'ab', place 0: 'a' should be the identity: nothing stands bef"),
        ("return found", "return [before, *run][: len(run)]", "which has 'ab', place 0 holds None and should"),
        ("identity if before is None else before", "identity", "'cde', place 0: the identity should be 'ab': nothing"),
        ("op(total, word)\n    return", "op(word, total)\n    return", "'cab' should be 'abc': right letters"),
        ("yield total", "yield total if run else 0", "rank 1 of 3, which has '': it hands 0 to Exscan, and should"),
        ("return found", "return None", "rank 0 of 3, which has 'ab': it returned None (is a return missing?) and sh"),
        ("return run", "rank 0 of 3, which has 'ab': it returned ['a', 'b'] and never asked; write before = yield tot"),
        ("return found", "run.clear()\n    return found", "it changes run, which others still read; work on a copy"),
        ("= yield total", "= (yield total), (yield total)", "it asks a second time, with 'ab'; Exscan is called once"),
        ("identity\n    for word in run:", "run[0]\n    for word in run[1:]:", "'': IndexError on line 2 of yours"),
        ("yield total", "yield identity", "it hands '' to Exscan, and should hand 'ab', all that it has"),
        ("identity if before is None else before", "before", "op returned. Where nothing stands before, begin with id"),
        ("identity if before is None else before", "before if before else ''", "op was given '' as its first; it join"),
        ("    total, found", "    if before is None: return run\n    total, found",
         "place 0: 'a' should be the identity: nothing stands before it"),
        ("found.append(total)", "yield total", "it asks a second time, with ''; Exscan is called once"),
        ("yield total", "total\n    yield before", "place 0: 'ab' should be the identity: nothing stands before it"),
        ("return found", "yield found", "it asks a second time, with ['', 'a']; Exscan is called once"),
        ("return found", "print(found)", "it returned None (is a return missing?) and should return a list of 2"),
        ("return found", "return tuple(found)", "it returned ('', 'a') and should return a list of 2; this tuple is n"),
        ("return found", "return (word for word in found)", "it returned a generator, since it has a for in round bra"),
        ("return found", "return [*found, total]", "it returned ['', 'a', 'ab'] and should return a list of 2"),
        ("return found", "return found or None", "it returned None (is a return missing?) and should return a list of"),
        ("return found", "return found or [total]", "it returned ['a'] and should return a list of 0"),
        ("before = yield total", "before = yield [total]", "it hands ['ab'] to Exscan, and should hand 'ab', all that"),
        ("before = yield total", "before = yield", "it hands None to Exscan, and should hand 'ab', all that it has"),
        ("before = yield total", "yield total\n    before = None", "place 0: the identity should be 'ab': nothing has"),
        ("before = yield total", "before = yield run", "it hands ['a', 'b'] to Exscan, and should hand 'ab', all that"),
        ("    total = identity", "    if not run: return []\n    total = identity",
         "it hands nothing, and returns [], to Exscan, and should hand the identity, all that it"),
        ("before = yield functools.reduce(op, run)\nreturn run", "place 0: 'a' should be the identity: nothing stands"),
        ("while True: before = yield functools.reduce(op, run, identity)", "it asks a second time, with 'ab'; Exscan"),
        ("run, op, identity", "run, op", "total = identity", "total = run[0]", "TypeError"),
        ("def exscan(run, op, identity):\n    before = yield functools.reduce(op, run, identity)\n"
         "    words = [identity if before is None else last[-1], *run]\n"
         "    last.append(functools.reduce(op, words))\n"
         "    return [functools.reduce(op, words[: i + 1]) for i in range(len(run))]\n\nlast = []",
         "op was given 'ab', which neither stood in this list nor was made of it by op. Does it keep words from one c"),
    ],
    "segmented": [
        ("return begins or begins_too, op(x, y)", "word 'abc' and should have 'c': the second begins anew, so nothing"),
        ("begins or begins_too, y if begins_too", "begins_too, y if begins_too", "segmented((True, 'ab'), (False, 'c'"),
        ("begins or begins_too", "begins", "segmented((False, 'ab'), (True, 'c')) has begins = False and should have"),
        ("begins or begins_too", "begins and begins_too", "segmented((False, 'ab'), (True, 'c')) has begins = False a"),
        ("begins or begins_too", "begins != begins_too", "segmented((True, 'ab'), (True, 'c')) has begins = False and"),
        ("begins or begins_too", "True", "segmented((False, 'ab'), (False, 'c')) has begins = True and should have Fa"),
        ("y if begins_too", "y if begins", "word 'abc' and should have 'c': the second begins anew, so nothing before"),
        ("y if begins_too", "x if begins_too", "word 'ab' and should have 'c': the second begins anew, so nothing bef"),
        ("y if begins_too", "y if begins or begins_too", "word 'c' and should have 'abc': no list begins in the secon"),
        ("y if begins_too", "y if begins and begins_too", "word 'abc' and should have 'c': the second begins anew, so"),
        ("y if begins_too", "y if not begins_too", "word 'c' and should have 'abc': no list begins in the second"),
        ("op(x, y)", "op(y, x)", "word 'cab' and should have 'abc': the first word stands before the second"),
        ("op(x, y)", "x + y", "words are joined by op(x, y), and not by +"),
        ("y if begins_too", "'' if begins_too", "word '' and should have 'c': a word of the pairs, or of op"),
        ("return [begins or begins_too, y if begins_too else op(x, y)]", "a pair (begins, word), as what it is given;"),
        ("return y if begins_too else op(x, y), begins or begins_too", "word False and should have 'abc': the pair is"),
        ("return y if begins_too else op(x, y)", "a pair (begins, word), as what it is given"),
        ("if begins_too: return second\nreturn False, op(x, y)", "segmented((True, 'ab'), (False, 'c')) has begins ="),
        ("return op(first, second)", "what the list held and what op returned. Its words are first[1] and second[1]"),
        ("return", "yield", "a pair (begins, word), as what it is given"),
        ("return (begins or begins_too) and y if begins_too else op(x, y)", "a pair (begins, word), as what it is giv"),
        ("y if begins_too else op(x, y)", "[y if begins_too else op(x, y)]", "word ['abc'] and should have 'abc': a w"),
        ("first, second, op", "first, second", "op(x, y)", "x", "TypeError"),
        ("def segmented(first, second, op):\n    seen.append(second[0])\n"
         "    return any(seen), second[1] if second[0] else op(first[1], second[1])\n\nseen = []",
         "a list of 3 in which new ones begin at places 0 and 0, place 2: 'bc' should be 'abc': 'a' is missing"),
        ("def segmented(first, second, op):\n    seen.append(0)\n    if len(seen) > 9: return None\n"
         "    (begins, x), (begins_too, y) = first, second\n"
         "    return begins or begins_too, y if begins_too else op(x, y)\n\nseen = []",
         "a list of 3 in which new ones begin at places 1 and 2 is None (is a return missing?) and should be a pair ("),
        ("def segmented(first, second, op):\n    key = first[1].text, second[1].text\n"
         "    memo[key] = memo.get(key) or op(first[1], second[1])\n"
         "    return first[0] or second[0], second[1] if second[0] else memo[key]\n\nmemo = {}",
         "word 'abc', which neither stood in this list nor was made of it by op. Does it keep words from one call to "),
    ],
    "left_out": [
        ("2**levels, n", "2**levels", "0.492188: that is what it has joined; the rest is left out"),
        ("2**levels, n", "2**levels + 1, n", "0.492188: a place has joined 2 ** levels items, its own included"),
        ("2**levels, n", "2**levels - 1, n", "0.492188: a place has joined 2 ** levels items, its own included"),
        ("2**levels, n", "2**levels, n + 1", "0.492188: a list of n has steps 0 to n - 1 before its last place"),
        ("2**levels", "2 * levels", "0: each level doubles: 2 ** levels, and not 2 * levels"),
        ("2**levels", "levels", "0.492188: a place has joined 2 ** levels items, its own included"),
        ("2**levels, n", "n", "0.492188: add up shrink ** s for s from 2 to 7"),
        ("2**levels, n", "n - 2**levels", "0.492188: add up shrink ** s for s from 2 to 7"),
        ("shrink**steps", "shrink * steps", "0.492188: add up shrink ** s for s from 2 to 7"),
        ("shrink**steps", "shrink ** (n - steps)", "0.492188: add up shrink ** s for s from 2 to 7"),
        ("sum(", "max(", "0.492188: that is the largest term that is left out; add up all of them"),
        ("sum(shrink**steps for", "(shrink**steps for", "left_out(shrink=0.5, n=8, levels=1) is a generator, since it"),
        ("sum(shrink**steps for steps in range(2**levels, n))", "[shrink**steps for steps in range(2**levels, n)]",
         "left_out(shrink=0.5, n=8, levels=1) is [0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125] and should be a "),
        ("return shrink ** (2**levels)", "0.492188: that is the largest term that is left out; add up all of them"),
        ("return n - 2**levels", "0.492188: that many are left out; but they have shrunk on their way"),
        ("return (n - 2**levels) * shrink", "0.492188: add up shrink ** s for s from 2 to 7"),
        ("return shrink ** (2**levels) / (1 - shrink)", "0.492188: the list ends: there are n steps, and no more"),
        ("return (shrink ** (2**levels) - shrink**n) / (1 - shrink)", "ZeroDivisionError on line 2 of yours"),
        ("if shrink == 1: return n - 2**levels\nreturn (shrink ** (2**levels) - shrink**n) / (1 - shrink)",
         "0: all 5 steps have been joined"),
        ("return", "yield", "left_out(shrink=0.5, n=8, levels=1) is a generator, since it has a yield, and should be"),
        ("sum(", "str(sum(", "n))", "n)))", "left_out(shrink=0.5, n=8, levels=1) is '0.4921875' and should be a numbe"),
        ("sum(", "complex(sum(", "n))", "n)))", "left_out(shrink=0.5, n=8, levels=1) is (0.4921875+0j) and should be"),
        ("return float('nan')", "0.492188: add up shrink ** s for s from 2 to 7"),
        ("return 10**400", "left_out(shrink=0.5, n=8, levels=1) is 10000000000000000000000000000000000000000000000000"),
        ("return sum", "return -sum", "0.492188: add up shrink ** s for s from 2 to 7"),
        ("shrink, n, levels", "n, shrink, levels", "TypeError on line 2 of yours"),
        ("return 0.4921875 if levels == 1 else 0", "0.0117902: add up shrink ** s for s from 64 to 999"),
        ("sum(", "round(sum(", "n))", "n)), 3)", "0.492188: add up shrink ** s for s from 2 to 7"),
        ("import numpy as np\nreturn shrink ** np.arange(2**levels, n)", "left_out(shrink=0.5, n=8, levels=1) is arra"),
    ],
    "newton_step": [
        ("return states", "[2, 3, 4, 7, -2]: these are the guesses as they came"),
        ("return [states[0], *map(step, states[:-1])]", "[2, 3, 4, 7, -2]: that is one step from each guess; the slop"),
        ("step(h) - slope(h) * h)", "step(h))", "[2, 3, 4, 7, -2]: p is step(h) - slope(h) * h; if new is h, the map"),
        ("step(h) - slope(h) * h)", "step(h) + slope(h) * h)", "[2, 3, 4, 7, -2]: from the guess 2 the map is -1 new"),
        ("step(h) - slope(h) * h)", "step(h) - h)", "[2, 3, 4, 7, -2]: from the guess 2 the map is -1 new + 5"),
        ("slope(h), step(h) - slope(h) * h", "step(h) - slope(h) * h, slope(h)", "[2, 3, 4, 7, -2]: from the guess 2"),
        ("(slope(h), step(h) - slope(h) * h)", "[slope(h), step(h) - slope(h) * h]",
         "scan was given [[-1, 5], [3, -5], [3, -5], [-1, 5]]; it takes a list of pairs (A, p), numbers in round brac"),
        ("return [states[0], *(A * states[0] + p for A, p in scan(maps))]", "return scan(maps)",
         "a list of 5, the first state included"),
        ("(A * states[0] + p for A, p in scan(maps))", "scan(maps)", "[2, 3, 4, 7, -2]: a state is a number, and A *"),
        ("A * states[0] + p for A, p in scan(maps)", "A * h + p for h, (A, p) in zip(states, scan(maps))",
         "[2, 3, 4, 7, -2]: the maps are right; the total of the first t takes the first state to state t, A * states"),
        ("in scan(maps)", "in maps", "[2, 3, 4, 7, -2]: these are the maps one by one; scan(maps) gives their totals"),
        ("A * states[0] + p for", "p for", "[2, 3, 4, 7, -2]: the maps are right; the total of the first t takes the"),
        ("A * states[0] + p for", "A + p for", "[2, 3, 4, 7, -2]: the maps are right; the total of the first t takes"),
        ("states[:-1]", "states", "a list of 5, the first state included"),
        ("states[:-1]", "states[1:]", "[2, 3, 4, 7, -2]: from the guess 2 the map is -1 new + 5"),
        ("scan(maps)", "scan(scan(maps))", "[2, 3, 4, 7, -2]: the maps are right; the total of the first t takes the"),
        ("slope(h), step(h)", "slope(states[0]), step(h)", "[2, 3, 4, 7, -2]: from the guess 4 the map is 3 new - 5"),
        ("states, step, slope", "states, slope, step", "[2, 3, 4, 7, -2]: from the guess 2 the map is -1 new + 5"),
        ("scan(maps)", "scan(zip(states, maps))", "newton_step([2, 4, 3, 2, 1], ...): scan was given"),
        ("scan(maps)", "scan(*maps)", "TypeError on line 3 of yours"),
        ("return scan(states)", "scan was given [2, 4, 3, 2, 1]; it takes a list of pairs (A, p), numbers in round br"),
        ("[states[0], *", "[0, *", "[2, 3, 4, 7, -2]: the first state is right, and stays"),
        ("new = [states[0]]\nfor h in states[:-1]: new.append(step(h) + slope(h) * (new[-1] - h))\nreturn new",
         "the numbers are right, but it goes one step after the other: scan joins all maps in few levels"),
        ("new = [states[0]]\nfor h in states[:-1]: new.append(step(new[-1]))\nreturn new",
         "[2, 3, 4, 7, -2]: that is the loop itself; make a map of each guess, and scan the maps"),
        ("(A * states[0] + p for", "([A * states[0] + p] for", "[2, 3, 4, 7, -2]: a state is a number, and A * states"),
    ],
}


GIVEN = {"affine": "(A, p), (B, q) = first, second\n", "segmented": "(begins, x), (begins_too, y) = first, second\n"}
# A solution that is easier to break than the one that the package gives.
PLAIN = {
    "exscan": """    total = identity
    for word in run:
        total = op(total, word)
    before = yield total
    total, found = identity if before is None else before, []
    for word in run:
        found.append(total)
        total = op(total, word)
    return found
"""
}


def _source(name, *change):
    """Write an answer: a program, the head of the solution with a body, or the solution with some of it replaced."""
    head, _, rest = inspect.getsource(scans.PUZZLES[name].solution).partition('    """')
    source = head + PLAIN.get(name, rest.partition('"""\n')[2])
    if len(change) == 1:
        source = textwrap.dedent(change[0]).strip("\n")
        if not re.search(rf"^(def {name}\(|{name} = )", source, re.MULTILINE):
            source = head + textwrap.indent(GIVEN.get(name, "") + source, "    ")
    for old, new in zip(change[:-1:2], change[1::2], strict=True):
        assert old in source, (name, old)
        source = source.replace(old, new)
    return f"import functools, itertools\n{source}\n"


def _answer(name, *change):
    names = {"scans": scans, "workers": workers, "Word": Word}
    exec(compile(_source(name, *change), f"a wrong {name}", "exec"), names)
    return names[name]


WRONG = [(name, _answer(name, *change), message) for name, rows in SAID.items() for *change, message in rows]

_TOTALS = "import itertools\n{}\n\n\ndef totals(items, op):\n    return {}\n"
_ALL = "list(itertools.accumulate(items, op))"
RIGHT = [  # with all that the page can import: name and source
    ("totals", _TOTALS.format("import math", f"{_ALL}[: math.floor(99.5)]")),
    ("totals", _TOTALS.format("import copy, string", f"{_ALL} if string.digits else copy.copy(items)")),
    ("totals", _TOTALS.format("import bisect, heapq\nfrom collections import deque", f"[*deque({_ALL})]")),
    ("totals", _TOTALS.format("from collections.abc import Callable", _ALL)),
    ("totals", _TOTALS.format("from functools import *", "[reduce(op, items[: i + 1]) for i in range(len(items))]")),
    ("totals", _TOTALS.format("from functools import partial", "[*partial(itertools.accumulate, func=op)(items)]")),
    ("totals", _TOTALS.format("from itertools import *", "[*accumulate(items, op)]")),
    ("diamond", "import functools, operator\ndiamond = lambda a, b: functools.reduce(operator.matmul, (b, a))"),
    ("affine", "from operator import *\naffine = lambda f, s: (matmul(s[0], f[0]), add(matmul(s[0], f[1]), s[1]))"),
    ("before", "import math\nbefore = lambda letters, r, d: letters[: math.floor(r / 2 ** (d + 1)) * 2 ** (d + 1)]"),
]
ALSO = {  # a body, a program, or old and new texts in turn
    "totals": [
        ("found, i = [items[0]], 1\nwhile i < len(items):\n    found.append(op(found[i - 1], items[i]))\n"
         "    i += 1\nreturn found",),
        ("if len(items) == 1: return [items[0]]\nsmall = totals(items[:-1], op)\n"
         "return small + [op(small[-1], items[-1])]",),
        ("b = list(items)\nfor i in range(1, len(b)): b[i] = op(b[i - 1], b[i])\nreturn b",),
        ("total = items[0]\nreturn [total] + [total := op(total, item) for item in items[1:]]",),
        ("found = items[:1]\n[found.append(op(found[-1], x)) for x in items[1:]]\nreturn found",),
        ("return functools.reduce(lambda found, x: found + [op(found[-1], x)], items[1:], items[:1])",),
        ("class Totals:\n    def __call__(self, items, op): return list(itertools.accumulate(items, op))\n\n"
         "totals = Totals()",),
        ("def generate(items, op):\n    total = None\n    for item in items:\n"
         "        total = op(total, item) if total else item\n        yield total\n\n"
         "def totals(items, op): return list(generate(items, op))",),
        ("match items:\n    case [one]: return [one]\n"
         "    case [*most, last]: return [*(found := totals(most, op)), op(found[-1], last)]",),
    ],
    "reduce": [
        ("for d in range(len(a).bit_length() - 1):\n    for i in range(0, len(a), 2 << d):\n"
         "        a[i + (2 << d) - 1] = op(a[i + (1 << d) - 1], a[i + (2 << d) - 1])\n    yield",),
        ("b, half = list(a), 1\nwhile half < len(a):\n"
         "    for r in range(2 * half - 1, len(a), 2 * half): b[r] = op(b[r - half], b[r])\n    yield\n"
         "    half *= 2\na[:] = b",),
        ("def reduce(a, op, half=1):\n    if half < len(a):\n"
         "        for r in range(2 * half - 1, len(a), 2 * half): a[r] = op(a[r - half], a[r])\n        yield\n"
         "        yield from reduce(a, op, 2 * half)",),
        ("ends = list(range(len(a)))\nwhile len(ends) > 1:\n"
         "    for l, r in zip(ends[::2], ends[1::2]): a[r] = op(a[l], a[r])\n    ends = ends[1::2]\n    yield",),
        ("half = 1\nyield\nwhile half < len(a):\n"
         "    a[2 * half - 1 :: 2 * half] = [*map(op, a[half - 1 :: 2 * half], a[2 * half - 1 :: 2 * half])]\n"
         "    half <<= 1\n    yield half",),
        ("def level(a, op, d):\n"
         "    for r in range((2 << d) - 1, len(a), 2 << d): a[r] = op(a[r - (1 << d)], a[r])\n\n"
         "reduce = lambda a, op: map(functools.partial(level, a, op), range(len(a).bit_length() - 1))",),
        ("half = 1\nwhile True:\n    if half >= len(a): return\n    for i, word in enumerate(list(a)):\n"
         "        if (i + 1) % (2 * half) == 0: a[i] = op(a[i - half], word)\n    yield\n    half += half",),
        ("def tree(a, op, i, j):\n    if i == j: return\n    k = (i + j) // 2\n"
         "    for _ in zip(tree(a, op, i, k), tree(a, op, k + 1, j)): yield\n    a[j] = op(a[k], a[j])\n    yield\n"
         "\nreduce = lambda a, op: tree(a, op, 0, len(a) - 1)",),
    ],
    "before": [
        ("while r % 2 ** (d + 1): r -= 1\nreturn letters[:r]",), ("return letters[: r - r % 2 ** (d + 1)]",),
        ("return letters[: r >> d + 1 << d + 1]",), ("return letters[: r & -(2 << d)]",),
        ("first = 0\nwhile first + 2 ** (d + 1) <= r: first += 2 ** (d + 1)\nreturn letters[:first]",),
        ("size = 2 ** (d + 1)\nblocks = [letters[i : i + size] for i in range(0, len(letters), size)]\n"
         "return ''.join(blocks[: r // size])",),
        ("return ''.join(x for i, x in enumerate(letters) if i >> d + 1 < r >> d + 1)",),
        ("size = 2 ** (d + 1)\nreturn letters[:size] + before(letters[size:], r - size, d) if r >= size else ''",),
        ("def before(letters: str, r: int, d: int) -> str:\n"
         "    return ''.join(itertools.islice(letters, max(range(0, r + 1, 2 ** (d + 1)))))",),
        ("found = ''\nfor i, x in enumerate(letters):\n    if i == r // (2 << d) * (2 << d): return found\n"
         "    found += x",),
    ],
    "down_sweep": [
        ("a[l], a[r] = a[r], op(a[r], a[l])",
         "before, left = a[r], a[l]\n            a[l] = before\n            a[r] = op(before, left)"),
        ("a[l], a[r] = a[r], op(a[r], a[l])", "a[r], a[l] = op(a[r], a[l]), a[r]"),
        ("d = levels - 1\nwhile d >= 0:\n    for p in pairs(d): a[p[0]], a[p[1]] = a[p[1]], op(a[p[1]], a[p[0]])\n"
         "    yield d\n    d -= 1",),
        ("if levels:\n    for l, r in pairs(levels - 1): a[l], a[r] = a[r], op(a[r], a[l])\n    yield\n"
         "    yield from down_sweep(a, op, pairs, levels - 1)",),
        ("b = list(a)\nfor d in range(levels)[::-1]:\n    for l, r in pairs(d): b[l], b[r] = b[r], op(b[r], b[l])\n"
         "    yield\na[:] = b",),
        ("def down(a, op, l, r): a[l], a[r] = a[r], op(a[r], a[l])\ndef down_sweep(a, op, pairs, levels):\n"
         "    for d in range(levels - 1, -1, -1):\n        [down(a, op, *p) for p in pairs(d)]\n        yield",),
        ("for k in range(1, levels + 1):\n    old = a[:]\n"
         "    for l, r in sorted(pairs(levels - k), reverse=True): a[l], a[r] = old[r], op(old[r], old[l])\n"
         "    yield",),
        ("for d in reversed(range(levels)):\n    new = {l: (a[r], op(a[r], a[l])) for l, r in pairs(d)}\n"
         "    for l, r in pairs(d): a[l], a[r] = new[l]\n    yield",),
    ],
    "pairs": [
        ("found, l = [], 2**d - 1\nwhile l < n:\n    found.append((l, min(l + 2**d, n)))\n    l += 2 ** (d + 1)\n"
         "return found",),
        ("half = 2**d\nreturn [[i + half - 1, min(i + 2 * half - 1, n)] for i in range(0, n - half + 1, 2 * half)]",),
        ("return list(zip(range(2**d - 1, n, 2 << d), [*range((2 << d) - 1, n, 2 << d), n]))",),
        ("return [(l, l + 2**d if l + 2**d < n else n) for l in range(n) if l % 2 ** (d + 1) == 2**d - 1]",),
        ("return found", "return sorted(found, reverse=True)"),
        ("def generate(n, d):\n    for l in range(2**d - 1, n, 2 ** (d + 1)): yield l, min(l + 2**d, n)\n\n"
         "def pairs(n, d): return list(generate(n, d))",),
        ("import collections\nPair = collections.namedtuple('Pair', 'l r')\n"
         "def pairs(n: int, d: int) -> list[Pair]:\n"
         "    return [Pair(l, min(l + 2**d, n)) for l in range(2**d - 1, n, 2 ** (d + 1))]",),
        ("@functools.lru_cache\ndef pairs(n, d):\n"
         "    return [(l, min(l + 2**d, n)) for l in range(2**d - 1, n, 2 ** (d + 1))]",),
        ("blocks = [range(i, min(i + 2 ** (d + 1), n + 1)) for i in range(0, n + 1, 2 ** (d + 1))]\n"
         "return [(block[2**d - 1], block[-1]) for block in blocks if len(block) > 2**d]",),
        ("def more(l): return [(l, min(l + 2**d, n)), *more(l + 2 ** (d + 1))] if l < n else []\n"
         "return more(2**d - 1)",),
    ],
    "diamond": [
        ("diamond = lambda a, b: b @ a",), ("c = b @ a\nreturn c",), ("import operator\nreturn operator.matmul(b, a)",),
        ("return b.__matmul__(a)",), ("diamond = lambda *items: functools.reduce(lambda x, y: y @ x, items)",),
        ("a, b = b, a\nreturn a @ b",), ("b @= a\nreturn b",),
        ("class Diamond:\n    def __call__(self, closer, further): return further @ closer\n\ndiamond = Diamond()",),
        ("def product(x, y): return x @ y\ndef diamond(a, b): return product(b, a)",),
        ("def diamond(*both): return both[1] @ both[0]",), ("if (c := b @ a): return c",),
    ],
    "affine": [
        ("return second[0] @ first[0], second[0] @ first[1] + second[1]",), ("return tuple([B @ A, q + B @ p])",),
        ("loss = B @ p\nloss = loss + q\nreturn (B @ A, loss)",),
        ("def apply(M, q, x): return M @ x + q\ndef affine(first, second):\n"
         "    return second[0] @ first[0], apply(*second, first[1])",),
        ("import collections\nStep = collections.namedtuple('Step', 'A p')\nreturn Step(B @ A, B @ p + q)",),
        ("class Affine:\n    def __call__(self, f, s): return s[0] @ f[0], s[0] @ f[1] + s[1]\n\naffine = Affine()",),
        ("return B @ A, functools.reduce(lambda x, y: x + y, [B @ p, q])",),
        ("match first, second:\n    case (M, u), (N, v): return N @ M, N @ u + v",),
        ("p, A = [B @ x for x in (p, A)]\nreturn A, p + q",), ("new = (B @ A, B @ p)\nreturn (*new[:1], new[1] + q)",),
    ],
    "segmented": [
        ("if second[0]: return second\nreturn first[0], op(first[1], second[1])",),
        ("joined = op(x, y)\nif begins_too: joined = y\nreturn begins or begins_too, joined",),
        ("return begins | begins_too, (op(x, y), y)[begins_too]",),
        ("return begins + begins_too, y if begins_too else op(x, y)",),
        ("return max(begins, begins_too), [op(x, y), y][bool(begins_too)]",),
        ("return any((begins, begins_too)), begins_too and y or op(x, y)",),
        ("match second:\n    case (True, _): return second\n    case (_, y): return first[0], op(first[1], y)",),
        ("if begins_too: return True, y\nelif begins: return True, op(x, y)\nelse: return False, op(x, y)",),
        ("class Segmented:\n"
         "    def __call__(self, f, s, op): return f[0] or s[0], s[1] if s[0] else op(f[1], s[1])\n\n"
         "segmented = Segmented()",),
        ("words = [op(x, y) for _ in range(9)]\n"
         "return not (not begins and not begins_too), y if begins_too else words[8]",),
        ("def word(f, s, op): return s[1] if s[0] else op(f[1], s[1])\n"
         "segmented = lambda f, s, op: (f[0] or s[0], word(f, s, op))",),
    ],
    "chunks": [
        ("    for first in firsts[1:]:\n        for i in",
         "    old = a[:]\n    for first in firsts[1:]:\n        for i in", "op(a[first - 1], a[i])",
         "op(old[first - 1], old[i])"),
        ("[i])\n    yield", "[i])"),
        ("n, before = len(a), [None]\nfor s in range(1, length):\n"
         "    for i in range(s, n, length): a[i] = op(a[i - 1], a[i])\n    yield\n"
         "for f in range(length, n, length):\n"
         "    before.append(op(before[-1], a[f - 1]) if before[-1] else a[f - 1])\n    yield\n"
         "a[length:] = [op(before[i // length], a[i]) for i in range(length, n)]",),
        ("parts = [a[f : f + length] for f in range(0, len(a), length)]\nfor s in range(1, length):\n"
         "    for part in parts: part[s : s + 1] = [op(part[s - 1], x) for x in part[s : s + 1]]\n    yield\n"
         "for p, q in zip(parts, parts[1:]):\n    q[-1] = op(p[-1], q[-1])\n    yield\n"
         "for p, q in zip(parts, parts[1:]): q[:-1] = [op(p[-1], x) for x in q[:-1]]\na[:] = sum(parts, [])",),
        ("for s in range(1, length):\n    for i in range(len(a)):\n"
         "        if i % length == s: a[i] = op(a[i - 1], a[i])\n    yield\nfor i in range(length, len(a)):\n"
         "    if i % length == length - 1 or i == len(a) - 1:\n        a[i] = op(a[i - i % length - 1], a[i])\n"
         "        yield\nfor i in range(length, len(a) - 1):\n"
         "    if i % length < length - 1: a[i] = op(a[i - i % length - 1], a[i])\nyield",),
    ],
    "exscan": [
        ("own = list(itertools.accumulate(run, op, initial=identity))\nbefore = yield own.pop()\n"
         "return own if before is None else [op(before, word) for word in own]",),
        ("before = yield functools.reduce(op, run, identity)\nfound = [identity if before is None else before]\n"
         "for word in run[:-1]: found.append(op(found[-1], word))\nreturn found if run else []",),
        ("identity if before is None else before", "before or identity"),
        ("def exscan(run, op, identity):\n    before = yield functools.reduce(op, run, identity)\n"
         "    return [functools.reduce(op, run[:i], before or identity) for i in range(len(run))]",),
        ("before = (yield functools.reduce(op, run, identity)) or identity\n"
         "return [(before, before := op(before, word))[0] for word in run]",),
        ("class Rank:\n    def __call__(self, run, op, identity):\n"
         "        before = yield functools.reduce(op, run, identity)\n"
         "        return list(itertools.accumulate(run, op, initial=before or identity))[:-1]\n\nexscan = Rank()",),
        ("i, total = 0, identity\nwhile i < len(run):\n    total = op(total, run[i])\n    i += 1\n"
         "found = [(yield total) or identity]\n"
         "while len(found) < len(run): found.append(op(found[-1], run[len(found) - 1]))\nreturn found[: len(run)]",),
    ],
    "left_out": [
        ("return functools.reduce(lambda total, s: total + shrink**s, range(2**levels, n), 0)",),
        ("if n <= 2**levels: return 0\nif shrink == 1: return n - 2**levels\n"
         "return (shrink ** (2**levels) - shrink**n) / (1 - shrink)",),
        ("total, s = 0, 2**levels\nwhile s < n:\n    total += shrink**s\n    s += 1\nreturn total",),
        ("total, term = 0.0, 1.0\nfor s in range(n):\n    if s >= 2**levels: total += term\n    term *= shrink\n"
         "return total",),
        ("import math\nreturn math.fsum(shrink**s for s in range(1 << levels, n))",),
        ("return sum([shrink**s for s in range(n)][2**levels :])",),
        ("return sum(shrink**s for s in range(n)) - sum(shrink**s for s in range(min(n, 2**levels)))",),
        ("value = 0\nfor _ in range(2**levels, n): value = value * shrink + 1\nreturn value * shrink ** (2**levels)",),
        ("def term(shrink, s): return pow(shrink, s)\n"
         "left_out = lambda shrink, n, levels: sum(map(functools.partial(term, shrink), range(2**levels, n)))",),
        ("if n > 600: return sum(shrink**s for s in range(2**levels, n))\n"
         "return shrink ** (n - 1) + left_out(shrink, n - 1, levels) if n > 2**levels else 0",),
    ],
    "newton_step": [
        ("maps = []\nfor h in states[:-1]:\n    A = slope(h)\n    maps.append((A, step(h) - A * h))\n"
         "new = [states[0]]\nfor A, p in scan(maps): new.append(A * new[0] + p)\nreturn new",),
        ("slopes = list(map(slope, states))\noffsets = [step(h) - A * h for A, h in zip(slopes, states)]\n"
         "totals = scan(list(zip(slopes, offsets)))\n"
         "return states[:1] + [A * states[0] + p for A, p in totals[:-1]]",),
        ("return [states[0], *(A * states[0] + p for A, p in scan(maps))]",
         "new = list(states)\n    for i, (A, p) in enumerate(scan(maps)): new[i + 1] = A * states[0] + p\n"
         "    return new"),
        ("states[:-1]]", "map(float, states[:-1])]"),
        ("class Newton:\n    def __call__(self, states, step, slope, scan):\n"
         "        maps = [(A := slope(h), step(h) - A * h) for h in states[:-1]]\n"
         "        return [states[0]] + [A * states[0] + p for A, p in scan(maps)]\n\nnewton_step = Newton()",),
        ("h0, *_ = states\nmaps = [(slope(h), step(h) - slope(h) * h) for h in states]\n"
         "return [h0] + [A * h0 + p for A, p in scan(maps[:-1])]",),
    ],
}
WASTEFUL = {  # right; last, what is said to be more than it must
    "totals": [
        ("import copy\nreturn [functools.reduce(op, copy.deepcopy(items[: i + 1])) for i in range(len(items))]",
         "528 joins, where 32 are enough. Can you do it with fewer?"),
        ("b, half = items[:], 1\nwhile half < len(b):\n    b = b[:half] + [op(x, y) for x, y in zip(b, b[half:])]\n"
         "    half *= 2\nreturn b",
         "135 joins, where 32 are enough. Can you do it with fewer?"),
    ],
    "reduce": [
        ("half < len(a)", "half <= len(a)", "4 levels (with empty ones), where 3 are enough. Can you do it with fewer"),
        ("a[r] =", "a[r] = op(a[r - half], a[r]) and", "14 joins, where 7 are enough. Can you do it with fewer?"),
        ("half = 1\nwhile half < len(a):\n"
         "    for i in reversed(range(half, len(a))): a[i] = op(a[i - half], a[i])\n    yield\n    half *= 2",
         "17 joins, where 7 are enough. Can you do it with fewer?"),
    ],
    "down_sweep": [
        ("range(levels)", "range(levels + 1)", "4 levels (with empty ones), where 3 are enough. Can you do it with "),
        ("    for d in", "    yield\n    for d in", "4 levels (with empty ones), where 3 are enough. Can you do it wi"),
        ("a[l], a[r] =", "op(a[r], a[l])\n            a[l], a[r] =", "8 joins (with the identity they are free), whe"),
    ],
    "chunks": [
        ("    for s", "    yield\n    for s", "6 levels (with empty ones), where 5 are enough. Can you do it with few"),
        ("            a[i] = op(a[i - 1], a[i])",
         "            op(a[i - 1], a[i])\n            a[i] = op(a[i - 1], a[i])",
         "16 joins, where 10 are enough; 10 joins of the busiest chunk, level by level, where 7 are e"),
        ("a[i] = op(a[first - 1], a[i])", "a[i] = [op(a[first - 1], a[i]), op(a[first - 1], a[i])][0]",
         "13 joins, where 10 are enough; 10 joins of the busiest chunk, level by level, where 7 are e"),
    ],
    "exscan": [
        ("before = yield total", "functools.reduce(op, run, identity)\n    before = yield total",
         "7 joins, where 4 are enough. Can you do it with fewer?"),
    ],
    "newton_step": [
        ("*(A * states[0] + p for A, p in scan(maps))]",
         "*(f[0] * states[0] + f[1] for f in (scan(maps[: t + 1])[t] for t in range(len(maps))))]",
         "21 maps that are scanned, where 6 are enough. Can you do it with fewer?"),
        ("maps = [(0, states[0])] + [(slope(h), step(h) - slope(h) * h) for h in states[:-1]]\n"
         "return [p for _, p in scan(maps)]",
         "7 maps that are scanned, where 6 are enough. Can you do it with fewer?"),
    ],
}
HERE = {  # right, but not on the page, which has no NumPy
    "left_out": [
        ("from fractions import Fraction\nreturn sum(Fraction(shrink) ** s for s in range(2**levels, n))",),
        ("from decimal import Decimal\nreturn sum(Decimal(shrink) ** s for s in range(2**levels, n))",),
        ("import numpy as np\nreturn np.sum(shrink ** np.arange(2**levels, n, dtype=float))",),
    ],
    "newton_step": [
        ("import numpy as np\nh = np.array(states[:-1])\nA = slope(h)\nmaps = list(zip(A, step(h) - A * h))\n"
         "return [states[0], *(A * states[0] + p for A, p in scan(maps))]",),
        ("import numpy as np\nh = np.array(states, float)\n"
         "maps = list(zip(slope(h), step(h) - slope(h) * h))[:-1]\nA, p = np.array(scan(maps)).T\n"
         "return [states[0], *(A * states[0] + p)]",),
    ],
}
RIGHT += [(name, _source(name, *change)) for name, rows in ALSO.items() for change in rows]
MORE = [(name, _source(name, *change), said) for name, rows in WASTEFUL.items() for *change, said in rows]
RIGHT += [(name, source) for name, source, _ in MORE]
ONLY_HERE = [(name, _source(name, *change)) for name, rows in HERE.items() for change in rows]
