"""The puzzles about kernels: run on the CPU, from their PTX, every access watched; where there is a GPU, too."""

import sys

import numpy as np
import puzzle_answers
import pytest
from rings import more
from texts import beside

import warpwatch
from bppsa_nb import puzzles
from bppsa_nb.machine import backends
from bppsa_nb.puzzles import kernels
from bppsa_nb.puzzles.kernels import H


@pytest.fixture
def watched():
    """Run kernels from their PTX where there is a GPU, too."""
    pytest.importorskip("numba_cuda", reason="needs a CUDA compiler: the gpu extra")
    with warpwatch.device():
        yield


INNER, OUTER = puzzle_answers.read("kernels"), puzzle_answers.read("kernels_outer")
COUNTED = beside(__file__)["counted"]  # what right answers are told that they cost


@pytest.mark.parametrize("answer", [*INNER, *map(more, OUTER)], ids=str)
def test_answers_are_judged(answer, watched):
    answer.judge()


def test_wrong_kernels_are_drawn(watched):
    answer = puzzle_answers.source("up_level", "left_of(pair, d)", "left_of(pair, 0)")
    html = puzzles.puzzle("up_level").check(puzzle_answers.made("up_level", answer))._repr_html_()
    assert html.count("<svg") == 2 and html.count('<g class="word wrong"') == 3 and ">acd<" in html


@pytest.mark.parametrize("name", COUNTED)
def test_solutions_cost_what_the_best_known_ones_do(name, watched):
    verdict = puzzles.puzzle(name).check(puzzles.puzzle(name).solution)
    assert verdict and [what for what, *_ in verdict.costs] == COUNTED[name]
    assert all(took == best for _, took, best in verdict.costs) and "more than it must" not in repr(verdict)


def test_shared_memory_is_no_waste_where_the_best_known_has_none(watched):
    own = "own = cuda.shared.array((H, H), float64)\n    own[i, j] = mats[r, i, j]\n    cuda.syncthreads()\n    entry"
    edits = "    cuda.syncthreads()\n", "", "entry = 0", f"{own} = 0", "mats[r, i, k]", "own[i, k]"
    answer = puzzle_answers.source("up_level", *edits)
    verdict = puzzles.puzzle("up_level").check(puzzle_answers.made("up_level", answer))
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
