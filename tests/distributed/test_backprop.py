"""Gradients along a chain that is spread over MPI ranks: the same as one process finds, or one error on all ranks.

`ranks.py` holds what every rank does. Its comparisons are by the largest difference of the gradients at a point, over
samples and entries, relative to the largest gradient there: at every point, and along chains whose links about keep a
gradient's size, so that neither long sums nor other points hide a difference.
"""

import json
import re
import sys
from mmap import PAGESIZE
from pathlib import Path

import pytest
from on_mpi import Session, start

PROGRAM = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def on_ranks(rank_session, tmp_path_factory):
    """Do what is fast on some ranks, once; return what every rank found."""
    folder, known = tmp_path_factory.mktemp("ranks"), {}

    def found(ranks):
        if ranks not in known:
            path = folder / f"{ranks}.json"
            done = rank_session.run(ranks, PROGRAM, "check", path)
            assert done.returncode == 0, done.stderr
            known[ranks] = json.loads(path.read_text())
        return known[ranks]

    return found


@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (2, 4, 7))])
def test_any_number_of_ranks_finds_what_one_process_does(on_ranks, ranks):
    assert [rank["wrong"] for rank in on_ranks(ranks)] == [[]] * ranks


# What the rank at fault says, and with it what the others say: the same, where nobody can tell who is at fault.
FINITE = r"must be finite, got nan at \["
ALIKE = "must be the same on all ranks: it is"
REFUSALS = {
    "sizes": ("^ValueError: jacobians_T must chain from rank to rank: .* size 5 .* rank 0's run, .* size 4", True),
    "sizes of a list": ("^ValueError: jacobians_T must chain .* size 7 .* rank 0's run, .* size 4 .* rank 1's", True),
    "dtype": (f"^ValueError: jacobians_T {ALIKE} of float64 on rank 1, and of float32 on rank 0", True),
    "dtype of a list": (f"^ValueError: jacobians_T {ALIKE} of float64 on rank 1, and of float32 on rank 0", True),
    "kind": (rf"^ValueError: jacobians_T {ALIKE} of shape \(T, B, H, H\) on .* a StructuredChain on rank 0", True),
    "shared": (rf"^ValueError: jacobians_T {ALIKE} .* of shape \(T, H, H\) on rank 0", True),
    "list": (f"^ValueError: jacobians_T {ALIKE} .* and a list on rank 0", True),
    "list of single matrices": (f"^ValueError: the batch {ALIKE} of 3 samples on rank 1, and a single sample", True),
    "method": (f"^ValueError: method {ALIKE} 'chunked' on rank 1, and 'linear' on rank 0", True),
    "batch": (f"^ValueError: the batch {ALIKE} of 3 samples on rank 1, and of 2 samples on rank 0", True),
    "gradient missing, last": ("ValueError: grad_output must be given on rank LAST, .* got None", False),
    "gradient elsewhere": ("ValueError: grad_output must be None on all ranks but rank LAST, .* got ndarray", None),
    "gradient's size, last": (r"ValueError: grad_output must have shape \(3, 4\) .* got \(3, 3\)", False),
    "one term more": (r"ValueError: local_grads must have shape \(2, 3, 4\) .* got \(3, 3, 4\)", None),
    "one term less, last": (r"ValueError: local_grads must have shape \(3, 3, 4\) .* got \(2, 3, 4\)", False),
    "one term more in a list": (r"ValueError: local_grads must be a list of T \(on .* = 2 arrays, got list of 3", None),
    "terms of another dtype": ("TypeError: local_grads has dtype float32, but jacobians_T has float64", False),
    "no terms": ("TypeError: local_grads must be a numpy.ndarray, got str", False),
    "no array": (r"TypeError: jacobians_T\[0\] must be a numpy.ndarray, got list", False),
    "chain changed in place": (r"ValueError: carry must have shape \(T, B, H\) = .* got \(1, 3, 4\)", False),
    "square": ("ValueError: jacobians_T must hold square matrices", False),
    "backend": ("ValueError: backend must be one of .* got 'tpu'", False),
    "cuda": ("UnavailableError: backend='cuda' needs an NVIDIA GPU", False),
    "backend of a list": ("ValueError: backend must be 'numpy' or 'auto' for a list .* got 'cpu'", False),
    "blelloch": ("^ValueError: method must be one of 'auto', 'linear', 'chunked' with comm, .* got 'blelloch'", True),
    "levels": ("ValueError: levels is for method='truncated' only, .* got levels=2", False),
    "truncated": ("^ValueError: method must be one of .* with comm, .* got 'truncated'", True),
    "in the scan": ("RuntimeError: broken", None),
    "in the scan of a list": ("RuntimeError: broken", None),
    "memory in a product, 1": ("MemoryError: no room", False),
    "words that are no text": (r"MemoryError: no (\udcff|\\udcff)", False),
    "no communicator": (r"^TypeError: comm must be an mpi4py.MPI.Intracomm, .* got 'COMM_WORLD'", True),
    "no rank": ("^TypeError: comm must be an mpi4py.MPI.Intracomm", True),
    "left out": ("^TypeError: comm must be an mpi4py.MPI.Intracomm", True),
    "two groups": ("^TypeError: comm must be an mpi4py.MPI.Intracomm", True),
}
for method in "linear", "chunked":
    REFUSALS |= {
        f"nan link, {method}": (f"ValueError: jacobians_T {FINITE}1, 2, 3, 3]", False),
        f"nan gradient, last, {method}": (f"ValueError: grad_output {FINITE}2, 3]", False),
        f"nan term, {method}": (f"ValueError: local_grads {FINITE}1, 2, 3]", False),
        f"nan weights, {method}": (f"ValueError: jacobians_T.weights {FINITE}0, 3, 3]", False),
        f"nan slopes, {method}": (f"ValueError: jacobians_T.slopes {FINITE}0, 1, 2, 3]", False),
        f"nan carry, {method}": (f"ValueError: jacobians_T.carry {FINITE}1, 2, 3]", False),
        f"nan in a list, {method}": (rf"ValueError: jacobians_T\[1\] {FINITE}15]", False),
        f"nan in batched, {method}": (rf"ValueError: jacobians_T\[0\] {FINITE}2, 3]", False),
        f"memory, {method}": ("MemoryError: no room", False),
        f"memory in a list, {method}": ("MemoryError: no room", False),
        f"memory in a list, last, {method}": ("MemoryError: no room", False),
    }


@pytest.mark.parametrize("ranks", [2, 3, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in (4, 7))])
def test_what_one_rank_cannot_do_none_does(on_ranks, ranks):
    every = [rank["refused"] for rank in on_ranks(ranks)]
    for rank, said in enumerate(every):
        assert said.keys() == REFUSALS.keys() - ({"memory in a product, 1"} if ranks == 2 else set())
        for name, text in said.items():
            expected, everywhere = REFUSALS[name]
            odd = ranks - 1 if ", last" in name else 1 if name.endswith(", 1") else 0
            by_others = rf"^ValueError: aborted on all ranks because rank \d failed: {expected}"
            if everywhere is None:  # ranks may be at fault together
                expected = f"^{expected}|{by_others}"
            elif not everywhere:
                expected = f"^{expected}" if rank == odd else by_others.replace(r"\d", str(odd))
            assert re.search(expected.replace("LAST", str(ranks - 1)), text), (rank, name, text)


def test_a_rank_that_is_killed_ends_the_run(tmp_path):
    done = start(3, "-m", "mpi4py", PROGRAM, "killed", tmp_path / "never.json", seconds=60)
    assert done.returncode != 0
    assert not (tmp_path / "never.json").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.full
@pytest.mark.parametrize("T", [10000, 30000])
def test_a_rank_needs_memory_in_proportion_to_its_run(tmp_path, T):
    path, every = tmp_path / "memory.json", {}
    with Session(4) as session:  # of its own: its ranks hold nothing that other tests left
        for ranks in 1, 2, 4:
            done = session.run(ranks, PROGRAM, "memory", path, T)
            assert done.returncode == 0, done.stderr
            every[ranks] = json.loads(path.read_text())
    for ranks, here in every.items():
        gradients = 4 * T * 16 * 20 / ranks
        assert len(here) == ranks
        for rank, found in enumerate(here):
            assert len(found) == 4
            # Of an array, the first and the last page may be there before; each gradient has a byte: is it finite?
            for name, extra in found.items():
                assert gradients - 2 * PAGESIZE <= extra < 1.15 * gradients + 2**20, (ranks, rank, name, extra)
