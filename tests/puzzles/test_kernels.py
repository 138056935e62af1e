"""The puzzles about kernels: run on the CPU, from their PTX, every access watched; where there is a GPU, too."""

import inspect
import re
import sys

import numpy as np
import pytest
from numba import cuda, float64, njit  # noqa: F401 - answers use them
from rings import more
from wrong_kernels import RIGHT as BODIES
from wrong_kernels import SAID, WASTEFUL, cell
from wrong_kernels import answer as made

from bppsa_nb import ptx, puzzles
from bppsa_nb.machine import backends
from bppsa_nb.puzzles import kernels
from bppsa_nb.puzzles.kernels import H, left_of, right_of  # noqa: F401 - answers use them


def source(name):
    """A right answer: the solution without its docstring."""
    head, _, rest = inspect.getsource(kernels.PUZZLES[name].solution.py_func).partition('    """')
    return head + rest.partition('"""\n')[2]


UP = source("up_level")
LOOP, SYNC = UP[UP.index("    entry") : UP.index("    cuda.sync")], "    cuda.syncthreads()\n"
FIRST = "a list of 8, level 1 (d = 0), place 1: "
# What is changed in a right answer, and what is said then.
WRONG = {
    "up_level": [
        ("mats[r, i, k] * mats[l, k, j]", "mats[l, i, k] * mats[r, k, j]", FIRST + "'ba' should be 'ab': right"),
        ("mats[r, i, j] = entry", "mats[l, i, j] = entry", "place 0: 'ab' should be 'a': 'b' is one too far"),
        ("range(H)", "range(H - 1)", "numbers that no letters multiply to should be 'ab'"),
        ("range(H)", "range(2)", "Does one read what another has overwritten?"),
        ("entry += ", "entry = ", "numbers that no letters multiply to should be 'ab'"),
        ("mats[l, k, j]", "mats[l, j, k]", "place 1: numbers that no letters multiply to should be"),
        ("left_of(pair, d)", "left_of(pair, 0)", "level 2 (d = 1), place 3: 'acd' should be 'abcd': 'b' is missing"),
        ("@cuda.jit\n", "", "'up_level' is a function and no kernel; write @cuda.jit above it"),
        ("@cuda.jit\n", "@njit\n", "'up_level' is a function and no kernel; write @cuda.jit above it"),
        ("@cuda.jit\n", "@cuda.jit(device=True)\n", "'up_level' is a function and no kernel; write @cuda.jit above"),
    ],
    "down_level": [
        ("mats[l, i, k] *", "mats[l, k, i] *", "'abcdaaaabaaab' should be 'abcdef'. Entry i is row i of mats[l] times"),
        ("mats[l, i, k]", "mats[r, i, k]", "level 2 (d = 1), place 7: 'abcdefgh' should be 'abcdef'"),
        ("vecs[r, i], entry", "entry, vecs[r, i]", "level 2 (d = 1), place 5: 'abcdef' should be 'abcd': 'ef' does"),
        ("vecs[l, i], vecs[r, i] = vecs[r, i], entry", "vecs[r, i] = entry", "place 5: the identity should be"),
        ("if pair == 0:", "if pair < 0:", "place 7: the identity should be 'abcd': of pair 0, which gets it from"),
        ("if pair == 0:", "if True:", "level 2 (d = 1), place 5: the identity should be 'abcd'"),
        ("= mats[l, i, 0]", "= mats[r, i, 0]", "level 1 (d = 2), place 7"),
        ("= vecs[r, i], entry", "= vecs[r, i], entry\n    mats[r, i, 0] = 0.0", "it changes mats, which"),
    ],
    "up_level_of_batch": [
        ("mats[l, b,", "mats[l, 0,", "sample 1, level 1 (d = 0), place 1: 'af' should be"),
        ("mats[r, b, i, k] * mats[l, b,", "mats[l, b, i, k] * mats[r, b,", "sample 0, level 1 (d = 0), place 1: 'ba'"),
        ("mats[r, b, i, j] = entry", "mats[l, b, i, j] = entry", "sample 0, level 1 (d = 0), place 0: 'ab' should"),
        ("range(H)", "range(H - 1)", "should be 'ab'. Entry [i, j] is row i"),
        ("range(H)", "range(2)", "Is block (pair, b) alone with sample b?"),
    ],
}
# What is seen where every access is watched: what is changed in which right answer, and what is said of that.
READ = "which thread (0, 2) of block {} reads in line 7 of yours; "
FOUND = [
    ("up_level", SYNC, "", "line 8 of yours: thread (0, 0) of block 0 writes mats[1, 0, 0], " + READ.format(0) + "no"),
    ("up_level", SYNC, f"    if i > 0:\n    {SYNC}", "line 9 of yours: thread (1, 0) of block 0 waits at a barrier "
     "with 6 of 9 threads, 3 have returned; all threads of a block reach the same barriers"),
    ("up_level", SYNC, f"    if j == 1:\n    {SYNC}    else:\n    {SYNC}", "line 9 of yours: thread (0, 1) of block 0 "
     "waits at a barrier with 3 of 9 threads, 6 wait at line 11 of yours; all"),
    ("up_level", SYNC, f"    if i == 1:\n        return\n{SYNC}", "numbers that no letters multiply to should be"),
    ("up_level", "mats.shape[0] - 1)", "mats.shape[0])", "line 7 of yours: thread (0, 0) of block 1 reads "
     "mats[7, 0, 0], which is not there: mats has shape (7, 3, 3)"),
    ("up_level", "range(H)", "range(H + 1)", "thread (2, 0) of block 3 reads mats[8, 0, 0], which is not there"),
    ("up_level", "mats[l, k, j]", "mats[l - 16, k, j]", "reads mats[-8, 0, 0], which is not there"),
    ("up_level", "    entry = 0.0", "    mine = cuda.shared.array((H, H), float64)\n    entry = mine[i, j]",
     "line 6 of yours: thread (0, 0) of block 0 reads shared array[0] in shared memory, which nothing has written"),
    ("up_level", "  entry += ", "  while True: pass\n        entry += ", "line 7 of yours: thread (0, 0) of block 0 "
     "still runs after"),
    ("up_level", "entry = 0.0", "entry = 0.0\n    while mats[r, i, j] > -1:\n        mats[r, i, j] = 0",
     "line 6 of yours: thread"),
    ("up_level", "entry = 0.0", "entry = cuda.shfl_sync(511, 0.0, 9)", "line 5 of yours: thread (0, 0) of block 0 ask"),
    ("down_level", f"    {SYNC}", "", "thread 0 of block 1 writes vecs[7, 0], which thread 2 of block 1 reads in line"),
    *(("up_level_of_batch", old, new, f"block {one} writes mats[1, 0, 0, 0], {READ.format(other)}blocks of a launch")
      for old, new, one, other in [
          ("cuda.blockIdx.y", "0", (0, 0), (0, 1)), ("cuda.blockIdx.y", "cuda.blockIdx.x", (0, 0), (0, 1)),
          ("mats[r, b, i, k]", "mats[r, 1 - b, i, k]", (0, 0), (0, 1)),
          ("mats[r, b, i, j] = entry", "mats[r, 0, i, j] = entry", (0, 1), (0, 0)),
      ]),
]  # fmt: skip
# What is said of what cannot be compiled, or launched.
REFUSED = [
    ("entry = 0.0", "entry = nothing", "it does not compile: NameError: name 'nothing' is not defined"),
    ("entry = 0.0", "entry = H.real.nothing", "it does not compile: line 5 of yours: Unknown attribute 'nothing'"),
    (LOOP, "    entry = sum(mats[r, i, k] for k in range(H))\n", "compile: line 5 of yours: The use of yield"),
    (LOOP, f"    n = mats.shape[1]\n    cuda.shared.array((n, n), 'float64')\n{LOOP}", "there is no array("),
    ("entry = 0.0", "raise SystemExit", "line 5 of yours: Encountered unsupported constant type used for exception"),
    ("= entry\n", "= entry\n    return entry\n", "CUDA kernel must have void return type"),
    ("= entry\n", "= entry\n    yield\n", "it has a yield, which makes it wait"),
    ("(mats, d)", "(mats, d, e)", "kernel up_level takes 3 arguments (mats, d, e), 2 came"),
    ("entry = 0.0", "entry = cuda.local.array(1 << 27, float64)[d]", "bytes of local memory; it has at most 524288"),
    ("entry = 0.0", "entry = 0.0\n    up_level(mats, d)", "it does not compile: compiler re-entrant"),
]


def answer(name, source):
    return cell(name, source, dict(globals()))


@pytest.fixture
def watched():
    """Run kernels from their PTX where there is a GPU, too."""
    pytest.importorskip("numba_cuda", reason="needs a CUDA compiler: the gpu extra")
    with ptx.device():
        yield


def few_of(bodies):
    """Have the inner ring try every fifth body of a puzzle."""
    return [(more if row % 5 else pytest.param)(name, row) for name in bodies for row in range(len(bodies[name]))]


@pytest.mark.parametrize("name", WRONG)
def test_solutions_are_right_and_stubs_are_not(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path))
    puzzle = puzzles.puzzle(name)
    assert puzzles.check(name, puzzle.solution) and puzzles.check(name, answer(name, source(name)))
    assert not puzzles.check(name, answer(name, puzzle.stub)) and len(puzzle.hints) == 3
    puzzles.solution(name)
    text = capsys.readouterr().out
    assert text.startswith("@cuda.jit\ndef ") and '"""' not in text


@pytest.mark.parametrize("name, row", [(name, row) for name, rows in WRONG.items() for row in range(len(rows))])
def test_wrong_kernels_are_told_why(name, row):
    old, new, message = WRONG[name][row]
    verdict = puzzles.puzzle(name).check(answer(name, source(name).replace(old, new)))
    assert old in source(name) and not verdict and message in verdict.message, verdict


@pytest.mark.parametrize("name, row", few_of(SAID))
def test_wrong_bodies_are_told_why(name, row, watched):
    body, message = SAID[name][row]
    verdict = puzzles.puzzle(name).check(made(name, body))
    assert not verdict and message in verdict.message, verdict


@pytest.mark.parametrize("name, row", few_of(BODIES))
def test_right_bodies_are_right(name, row, watched):
    verdict = puzzles.puzzle(name).check(made(name, BODIES[name][row]))
    assert verdict, verdict


@pytest.mark.parametrize("name, old, new, message", FOUND)
def test_what_is_found_names_lines_blocks_and_threads(name, old, new, message, watched):
    verdict = puzzles.puzzle(name).check(answer(name, "\n\n" + source(name).replace(old, new)))
    assert old in source(name) and not verdict and message in verdict.message, verdict


@pytest.mark.parametrize("old, new, message", REFUSED)
def test_what_no_gpu_runs_is_told_in_words(old, new, message, watched):
    verdict = puzzles.puzzle("up_level").check(answer("up_level", "\n\n" + UP.replace(old, new)))
    assert old in UP and not verdict and message in verdict.message, verdict


# Other ways to be right: by what, and what stands before it.
CALLED = "halves = 0.5,\n\n@cuda.jit(device=True)\ndef twice(x):\n    return float64(2) * halves[0] * x\n\n"
RIGHT = [
    ("= entry\n", "= twice(entry)\n", CALLED), ("mats[l, k, j]", "mats[l - mats.shape[0], k, j]", ""),
    ("    entry = 0.0", "    count = cuda.shared.array(1, 'int64')\n    if i == j == 0: count[0] = 0\n"
     f"{SYNC}    cuda.atomic.add(count, 0, 1)\n    own = cuda.local.array(2, float64)\n    own[1] = 0.0\n"
     "    entry = own[i - i + 1]", ""),
    ("mats[l, k, j]", "cuda.shfl_sync(511, mats[l, i, j], k + H * j)", ""),
    ("cuda.syncthreads()", "cuda.syncthreads_count(i)", ""), ("@cuda.jit\n", "@cuda.jit()\n", ""),
    ("@cuda.jit\n", "@cuda.jit(fastmath=True)\n", ""),
]  # fmt: skip


@pytest.mark.parametrize("old, new, before", RIGHT)
def test_there_are_other_ways_to_be_right(old, new, before):
    verdict = puzzles.puzzle("up_level").check(answer("up_level", before + UP.replace(old, new)))
    assert old in UP and verdict, verdict


def test_wrong_kernels_are_drawn():
    verdict = puzzles.puzzle("up_level").check(answer("up_level", UP.replace("left_of(pair, d)", "left_of(pair, 0)")))
    html = verdict._repr_html_()
    assert html.count("<svg") == 2 and html.count('<g class="word wrong"') == 3 and ">acd<" in html


COUNTED = {  # what right answers are told that they cost
    "up_level": ["warp instructions", "idle lanes, in percent", "sectors", "barriers"],
    "down_level": ["warp instructions", "idle lanes, in percent", "sectors", "barriers"],
    "up_level_of_batch": ["warp instructions", "idle lanes, in percent", "sectors", "barriers"],
    "detective": [],
    "race": ["warp instructions", "sectors", "atomics"],
    "coalesced": ["warp instructions", "sectors"],
    "padded": ["warp instructions", "sectors", "passes per request", "barriers"],
    "warp_sum": ["shuffles of a warp", "warp instructions", "idle lanes, in percent", "sectors"],
}


@pytest.mark.parametrize("name", COUNTED)
def test_solutions_cost_what_the_best_known_ones_do(name, watched):
    verdict = puzzles.puzzle(name).check(puzzles.puzzle(name).solution)
    assert verdict and [what for what, *_ in verdict.costs] == COUNTED[name]
    assert all(took == best for _, took, best in verdict.costs) and "more than it must" not in repr(verdict)


@pytest.mark.parametrize("name, body, more", WASTEFUL)
def test_what_is_right_and_wasteful_is_told_the_number_to_beat(name, body, more, watched):
    verdict = puzzles.puzzle(name).check(made(name, body))
    assert verdict and re.search(f"It takes more than it must: .*{more}", verdict.message), verdict


def test_shared_memory_is_no_waste_where_the_best_known_has_none(watched):
    body = next(body for body in BODIES["up_level"] if "cuda.shared" in body)
    verdict = puzzles.puzzle("up_level").check(made("up_level", body))
    assert [what for what, *_ in verdict.costs] == COUNTED["up_level"][:3] and "more than it must" not in repr(verdict)


def test_matrices_spell_words():
    rng = np.random.default_rng(0)
    for length in range(9):
        word = "".join(rng.choice([*"abcdefgh"], length))
        matrix = kernels.spelled(word)
        assert kernels.read(matrix) == word == kernels.read_vector(matrix @ np.ones(H))
        other = kernels.spelled(word + "a")
        assert np.array_equal(other, kernels.spelled("a") @ matrix)
    scaled = [matrix * factor for factor in (1.5, np.nan, -1, 0, 1e200)]
    for wrong in (*scaled, matrix.T @ np.diag([1, 1, 2])):
        assert kernels.read(wrong) is None
    for wrong in ([2, 4, 1], [0, 1, 1], [1, 2, 2], [np.inf, 1, 1], [1.5, 1, 1], [3, 1, 1]):
        assert kernels.read_vector(np.array(wrong)) is None


def test_without_a_compiler_it_says_what_to_do(monkeypatch):
    monkeypatch.delitem(sys.modules, "numba_cuda")
    monkeypatch.setattr(backends, "cuda_available", lambda: False)
    with pytest.raises(ModuleNotFoundError, match="need a compiler: `pip install 'bppsa-nb"):
        puzzles.check("up_level", puzzles.puzzle("up_level").solution)
