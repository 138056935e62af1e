"""Share out compiled loops among the cores.

Plain threads that run compiled code without Python's global lock. Numba's own parallel loops would do the same, but
take more than twice as long to compile, and their threads wait by spinning: where another thread holds a core, one of
BLAS that spins after a product included, a barrier can cost a time slice. These threads sleep, and whoever is done
takes the next piece.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache

import scipy.linalg.cython_blas  # noqa: F401  the BLAS that compiled np.dot calls, loaded before it is looked for
from numba import config
from threadpoolctl import ThreadpoolController

THREADS = config.NUMBA_NUM_THREADS  # one per core, or what the environment variable of that name says
PIECES = 4  # per thread, so that a slow one holds up no more than a part of its share


@cache
def _pool():
    # The calling thread takes pieces, too.
    return ThreadPoolExecutor(max(THREADS - 1, 1), thread_name_prefix="bppsa_nb")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork has the pool, but not its threads


def share_out(function, count, *arguments, worth=True, pieces=0):
    """Call ``function(*arguments, first, last)`` on pieces of ``range(count)``, on all cores.

    Parameters
    ----------
    function : callable
        Compiled, with ``nogil=True``. Pieces must not depend on each other.
    count : int
    *arguments
    worth : bool
        Whether there is enough to do to wake other threads; one piece on this one if not.
    pieces : int
        How many at least, where there is so much to do that Ctrl-C should not wait for the end of a piece.

    Returns
    -------
    bool
        Whether all calls returned true.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, once no thread is writing any more.
    """
    if not worth or count < 2 or (THREADS == 1 and not pieces):
        return bool(function(*arguments, 0, count))
    pieces = min(count, max(pieces, PIECES * THREADS))
    bounds = [count * i // pieces for i in range(pieces + 1)]
    left = list(zip(bounds[:-1], bounds[1:], strict=True))

    def take_pieces():
        done = True
        while left:
            try:
                piece = left.pop()
            except IndexError:  # another thread was quicker
                break
            done &= function(*arguments, *piece)
        return done

    others = []
    try:
        others += [_pool().submit(take_pieces) for _ in range(THREADS - 1)]
    except RuntimeError:  # Python is shutting down and starts no more threads: this one does all there is
        pass
    try:
        done = take_pieces()
        return all([other.result() for other in others]) and bool(done)
    finally:
        left.clear()
        wait(others)


_blas = ThreadpoolController()
_blas_lock = threading.Lock()
_blas_held = []  # the limit, once for every caller inside


@contextmanager
def one_blas_thread():
    """Keep BLAS from starting threads of its own while ours keep every core busy.

    The limit holds for the whole process, so overlapping callers share one, and the last of them lifts it.
    """
    with _blas_lock:
        _blas_held.append(_blas_held[0] if _blas_held else _blas.limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _blas_lock:
            limit = _blas_held.pop()
            if not _blas_held:
                limit.restore_original_limits()
