"""Loops shared out among threads: every piece once, whoever takes it."""

import os
import signal
import sys
import threading
import time
import types

import pytest

from bppsa_nb.machine import workers


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("parallel", [True, False])
def test_every_index_is_visited_once(count, threads, parallel, monkeypatch):
    monkeypatch.setattr(workers, "THREADS", threads)
    visited, lock = [], threading.Lock()

    def visit(name, first, last):
        with lock:
            visited.extend(range(first, last))
        return name == "name"

    assert workers.parallel_for(visit, count, "name", parallel=parallel) is True
    assert sorted(visited) == list(range(count))
    assert not count or workers.parallel_for(visit, count, "other", parallel=parallel) is False
    sizes = []  # more chunks where there is much to do
    assert workers.parallel_for(lambda first, last: sizes.append(last - first) is None, 100, chunks=50)
    assert sizes == [2] * 50


def test_one_failure_is_enough(monkeypatch):
    monkeypatch.setattr(workers, "THREADS", 2)
    for bad in range(20):
        assert workers.parallel_for(lambda first, last: not first <= bad < last, 20) is False  # noqa: B023

    def fail(first, last):
        raise RuntimeError("piece")

    with pytest.raises(RuntimeError, match="piece"):
        workers.parallel_for(fail, 20)
    here, failed = threading.get_ident(), threading.Event()

    def fail_elsewhere(first, last):
        if threading.get_ident() != here:
            failed.set()
            raise RuntimeError("another thread's piece")
        return failed.wait(10)

    with pytest.raises(RuntimeError, match="another thread's piece"):
        workers.parallel_for(fail_elsewhere, 20)
    failed.clear()
    said = lambda first, last: failed.wait(10) if threading.get_ident() == here else bool(failed.set())  # noqa: E731
    assert workers.parallel_for(said, 20) is False  # which the other thread's piece returned


def test_no_thread_writes_any_more_after_ctrl_c(monkeypatch):
    monkeypatch.setattr(workers, "THREADS", 2)
    here, entered, running, begun = threading.get_ident(), threading.Event(), [], []

    def piece(first, last):
        if threading.get_ident() == here:
            entered.wait(10)
            raise KeyboardInterrupt
        running.append(first)
        begun.append(first)
        entered.set()
        time.sleep(0.2)
        running.pop()
        return True

    with pytest.raises(KeyboardInterrupt):
        workers.parallel_for(piece, 8)
    assert not running and len(begun) == 1  # and the others are left


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_works_in_a_forked_child(monkeypatch):
    monkeypatch.setattr(workers, "THREADS", 2)
    assert workers.parallel_for(lambda first, last: True, 20)
    child = os.fork()
    if child == 0:
        os._exit(0 if workers.parallel_for(lambda first, last: True, 20) else 1)
    assert os.waitpid(child, 0)[1] == 0


def blas_threads():
    return [library["num_threads"] for library in workers._blas.info() if library["user_api"] == "blas"]


def test_blas_has_its_threads_back_and_the_limit_is_the_main_thread_s(monkeypatch):
    before, limits = blas_threads(), []
    with workers.one_blas_thread():
        assert set(blas_threads()) == {1}
        with workers.one_blas_thread():
            pass
        assert set(blas_threads()) == {1}
    assert blas_threads() == before
    monkeypatch.setattr(workers, "_blas", types.SimpleNamespace(limit=limits.append))

    def use():
        with workers.one_blas_thread():
            pass

    other = threading.Thread(target=use)
    other.start()
    other.join()
    assert not limits


@pytest.mark.parametrize("where", ["get", "put", "acquire"])
def test_ctrl_c_at_any_moment_leaves_threads_that_serve(where, monkeypatch, foreground):
    """Interrupted wherever a function of that name returns."""
    monkeypatch.setattr(workers, "THREADS", 2)
    raised = []

    def interrupt(frame, event, argument):
        name = frame.f_code.co_name if event == "return" else getattr(argument, "__name__", "")
        if event in ("return", "c_return") and name == where and not raised:
            raised.append(where)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(interrupt)
    try:
        workers.parallel_for(lambda first, last: True, 20)
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    assert workers.parallel_for(lambda first, last: True, 20)
