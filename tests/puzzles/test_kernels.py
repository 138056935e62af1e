"""The puzzles about kernels: on the simulator, and on a GPU where there is one."""

import inspect

import numpy as np
import pytest
from on_cuda import on_gpu, on_simulator

from bppsa_nb import puzzles
from bppsa_nb.machine import backends

here = [on_simulator("simulator"), on_gpu("gpu")]
NAMES = ("up_level", "down_level", "up_level_of_batch")
if backends.simulated() or backends.cuda_available():
    from numba import cuda  # noqa: F401 - answers use it

    from bppsa_nb.puzzles import kernels, launches
    from bppsa_nb.puzzles.kernels import H, left_of, right_of  # noqa: F401 - answers use them

    def source(name):
        """A right answer: the solution without its docstring."""
        head, _, rest = inspect.getsource(kernels.PUZZLES[name].solution.py_func).partition('    """')
        return head + rest.partition('"""\n')[2]

    UP = source("up_level")
    LOOP = UP[UP.index("    entry") : UP.index("    cuda.sync")]
else:
    UP = LOOP = ""  # nothing runs
FIRST = "a list of 8, level 1 (d = 0), place 1: "
# What is changed in a right answer, and what is said then.
WRONG = {
    "up_level": [
        ("mats[r, i, k] * mats[l, k, j]", "mats[l, i, k] * mats[r, k, j]", FIRST + "'ba' should be 'ab': right"),
        ("mats[r, i, j] = entry", "mats[l, i, j] = entry", "place 0: 'ab' should be 'a': 'b' is one too far"),
        ("    cuda.syncthreads()\n", "", "Does one read what another has overwritten?"),
        ("range(H)", "range(H - 1)", "numbers that no letters multiply to should be 'ab'"),
        ("range(H)", "range(2)", "numbers that no letters multiply to should be 'ab'"),
        ("entry += ", "entry = ", "numbers that no letters multiply to should be 'ab'"),
        ("mats[l, k, j]", "mats[l, j, k]", "place 1: numbers that no letters multiply to should be"),
        ("left_of(pair, d)", "left_of(pair, 0)", "level 2 (d = 1), place 3: 'acd' should be 'abcd': 'b' is missing"),
        ("mats.shape[0] - 1)", "mats.shape[0])", "IndexError on line 7 of yours: index 7 is out of bounds for axis 0 "),
        ("@cuda.jit\n", "", "'up_level' is a function and no kernel; write @cuda.jit above it"),
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
        ("cuda.blockIdx.y", "0", "sample 0, level 1 (d = 0), place 1: 'aab' should be 'ab'. Entry [i, j] is row i"),
        ("mats[l, b,", "mats[l, 0,", "sample 1, level 1 (d = 0), place 1: 'af' should be"),
        ("mats[r, b, i, k]", "mats[r, 1 - b, i, k]", "sample 0, level 1 (d = 0), place 1: 'af' should be"),
        ("cuda.blockIdx.y", "cuda.blockIdx.x", "sample 0, level 1 (d = 0), place 1: 'aab' should be 'ab'"),
        ("mats[r, b, i, j] = entry", "mats[r, 0, i, j] = entry", "sample 0, level 1 (d = 0), place 1: "),
    ],
}
# What only the simulator can tell.
SYNC = "    cuda.syncthreads()\n"
TOLD = [
    ("mats[l, k, j]", "mats[l + 40, k, j]", " of block (0, 0, 0): IndexError on line 7 of yours: index 40 is out"),
    (SYNC, f"    if i > 0:\n    {SYNC}", "thread (1, 0, 0) waits at the barrier of line 9, others at none"),
    (
        SYNC,
        f"    if j == 1:\n    {SYNC}    else:\n    {SYNC}",
        "thread (0, 0, 0) waits at the barrier of line 11, thread (0, 1, 0) at the barrier of line 9; all",
    ),
    ("  entry += ", "  while True: pass\n        entry += ", "line 7 of yours: still running after 0.5 seconds. Does"),
    ("entry = 0.0", "entry = cell['waits']()", "line 5 of yours: still running after 0.5 seconds. Does"),
    ("entry = 0.0", "raise SystemExit", "Ended: it raises SystemExit; a kernel's threads run to the end"),
    ("entry = 0.0", "entry = nothing", "NameError on line 5 of yours: name 'nothing' is not defined"),
]


exec(compile("def waits():\n    while True: pass", "another cell", "exec"), cell := {})


def answer(name, source, path="an answer"):
    names = dict(globals())
    exec(compile(source, path, "exec"), names)
    return names[name]


def verdict_on(source, path):
    """What is said of an answer that is in a file, where its source is found."""
    path.write_text(source)
    return puzzles.puzzle("up_level").check(answer("up_level", source, path))


@pytest.mark.parametrize("kind", here)
@pytest.mark.parametrize("name", NAMES)
def test_solutions_are_right_and_stubs_are_not(name, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path))
    puzzle = puzzles.puzzle(name)
    assert puzzles.check(name, puzzle.solution)
    assert not puzzles.check(name, answer(name, puzzle.stub)) and len(puzzle.hints) == 3
    puzzles.solution(name)
    text = capsys.readouterr().out
    assert text.startswith("@cuda.jit\ndef ") and '"""' not in text
    assert len(WRONG[name]) >= 5


@pytest.mark.parametrize("kind", here)
@pytest.mark.parametrize("name, row", [(name, row) for name, rows in WRONG.items() for row in range(len(rows))])
def test_wrong_kernels_are_told_why(name, row, kind):
    old, new, message = WRONG[name][row]
    right = source(name)
    assert old in right and puzzles.puzzle(name).check(answer(name, right)).right
    verdict = puzzles.puzzle(name).check(answer(name, right.replace(old, new)))
    if kind == "gpu" and "syncthreads" in old:
        return  # a race is lost sometimes only
    # On a GPU, nobody looks at indices: what such a kernel finds is wrong.
    assert not verdict and (message in verdict.message or (kind == "gpu" and message.startswith("IndexError")))


@pytest.mark.parametrize("kind", here[:1])
@pytest.mark.parametrize("number", range(len(TOLD)))
def test_the_simulator_names_block_and_thread(number, kind, monkeypatch):
    old, new, message = TOLD[number]
    if "still running" in message:
        monkeypatch.setattr(launches, "SECONDS", 0.5)
    verdict = puzzles.puzzle("up_level").check(answer("up_level", UP.replace(old, new)))
    assert old in UP and not verdict and message in verdict.message


@pytest.mark.parametrize("kind", here[:1])
@pytest.mark.parametrize(
    "old, new, message",
    [
        (LOOP, "    entry = sum(mats[r, i, k] * mats[l, k, j] for k in range(H))\n", "line 5 of yours: The use of"),
        (LOOP, f"    n = mats.shape[1]\n    cuda.shared.array((n, n), 'float64')\n{LOOP}", "there is no array("),
        ("= entry\n", "= entry\n    return entry\n", "line 10 of yours: No conversion from float64 to none"),
        ("= entry\n", "= entry\n    yield\n", "it has a yield, which makes it wait"),
    ],
)
def test_what_only_the_simulator_runs_is_wrong(old, new, message, kind, tmp_path):
    verdict = verdict_on(UP.replace(old, new), tmp_path / "mine.py")
    assert old in UP and not verdict and message in verdict.message


@pytest.mark.parametrize("kind", here[:1])
def test_what_a_right_kernel_calls_is_compiled_with_it(kind, tmp_path):
    program = f"""import numpy as anything
from numba import float64
half = 0.5

def twice(x):
    return float64(2) * anything.float64(x)

@cuda.jit(device=True)
def same(x):
    return half * twice(x)

{UP.replace("= entry", "= same(entry)")}"""
    verdict = verdict_on(program, tmp_path / "mine.py")
    assert verdict and verdict.message.endswith("It compiles for a GPU, too."), verdict
    program = program.replace("half = 0.5", "halves = 0.5,").replace("half *", "halves[0] *")
    verdict = verdict_on(program, tmp_path / "mine.py")
    assert verdict and "not tried: it uses halves, a tuple, which cannot be taken along" in verdict.message, verdict


@pytest.mark.parametrize("kind", here[:1])
def test_kernels_compile_where_numpy_has_dropped_row_stack(kind, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import numpy\nvars(numpy).pop('row_stack', None)\n")
    monkeypatch.syspath_prepend(tmp_path)  # which the process that compiles gets
    assert kernels.compiled.why_not(kernels.up_level, "float64[:, :, ::1]", "int64") is None


@pytest.mark.parametrize("kind", here)
def test_wrong_kernels_are_drawn(kind):
    verdict = puzzles.puzzle("up_level").check(answer("up_level", UP.replace("left_of(pair, d)", "left_of(pair, 0)")))
    html = verdict._repr_html_()
    assert html.count("<svg") == 2 and html.count('<g class="word wrong"') == 3 and ">acd<" in html


@pytest.mark.parametrize("kind", here)
def test_matrices_spell_words(kind):
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


def test_without_a_gpu_and_its_simulator_it_says_what_to_do():
    if backends.simulated() or backends.cuda_available():
        pytest.skip("kernels run here")
    with pytest.raises(backends.UnavailableError, match="NUMBA_ENABLE_CUDASIM"):
        puzzles.check("up_level", puzzles.puzzle("up_level").solution)
