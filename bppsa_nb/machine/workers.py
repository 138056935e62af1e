"""Share out compiled loops among the cores.

Plain threads that run compiled code without Python's global lock. Numba's own parallel loops would do the same, but
take more than twice as long to compile, and their threads wait by spinning: where another thread holds a core, one of
BLAS that spins after a product included, a barrier can cost a time slice. These threads sleep, and whoever is done
takes the next chunk.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, nullcontext
from queue import SimpleQueue

import scipy.linalg.cython_blas  # noqa: F401  the BLAS that compiled np.dot calls, loaded before it is looked for
from numba import config

from bppsa_nb.machine import process
from bppsa_nb.machine.memory import keep_freed_memory
from bppsa_nb.machine.process import interrupts_held

THREADS = config.NUMBA_NUM_THREADS  # one per core, or what the environment variable of that name says
CHUNKS = 4  # per thread, so that a slow one holds up no more than a part of its share

keep_freed_memory()  # that of one compiled loop serves the next

# A queue without Python code inside: Ctrl-C in the middle of it leaves no lock behind, as it does in executors.
_tasks = SimpleQueue()
_serving = []  # threads that wait for tasks


def _serve(tasks):
    while True:
        tasks.get()()


def _wake(count):
    while len(_serving) < count:
        thread = threading.Thread(target=_serve, args=(_tasks,), name="bppsa_nb", daemon=True)
        thread.start()
        _serving.append(thread)


def _forget_threads():
    # A fork has none of them, and perhaps a queue that one of them was waiting at.
    global _tasks
    _tasks = SimpleQueue()
    _serving.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


@contextmanager
def _own(task, count):
    """Have threads of our own call a function beside a block, as soon as they are free; it does not wait for them."""
    _wake(count)
    for _ in range(count):
        _tasks.put(task)
    yield


_here = threading.local()


@contextmanager
def lent(team):
    """Have loops of a block take another library's threads, by ``team(task, count)`` like `beside`, or none (None)."""
    before, _here.team = getattr(_here, "team", _own), team
    try:
        yield
    finally:
        _here.team = before


def beside(task, count=THREADS - 1):
    """Return a context: `count` other threads, at most, call a function beside its block, perhaps after its end."""
    return nullcontext() if alone() else getattr(_here, "team", _own)(task, count)


def alone():
    """Tell whether loops have the thread that calls them, and no other."""
    return THREADS == 1 or getattr(_here, "team", _own) is None


def parallel_for(function, count, *arguments, parallel=True, chunks=0):
    """Call ``function(*arguments, first, last)`` on chunks of ``range(count)``, on all cores.

    It is compiled, with ``nogil=True``. Chunks must not depend on each other. Without `parallel`, as where it does
    not pay, there is one, on this thread; `chunks` asks for at least so many, for Ctrl-C to wait for the end of one.
    Returns whether no call returned False, and raises KeyboardInterrupt once no thread is writing any more.
    """
    if not parallel or count < 2 or (alone() and not chunks):
        return function(*arguments, 0, count) is not False
    chunks = min(count, max(chunks, CHUNKS * THREADS))
    bounds = [count * i // chunks for i in range(chunks + 1)]
    left, begun, ended = list(zip(bounds[:-1], bounds[1:], strict=True)), [], []
    news = SimpleQueue()

    def take_chunks():
        done = True
        while left:
            try:
                chunk = left.pop(0)
            except IndexError:  # another thread was quicker
                break
            done &= function(*arguments, *chunk) is not False
        return done

    def help_out():
        begun.append(True)  # before anything is taken
        try:
            ended.append((take_chunks(), None))
        except BaseException as error:  # the caller raises it
            left.clear()
            ended.append((False, error))
        news.put(True)

    try:
        with beside(help_out), ExitStack() as at_end:
            at_end.callback(left.clear)  # before threads that were lent are waited for
            done = take_chunks()
            while len(ended) < len(begun):
                news.get()
    finally:
        # Whoever begins from now on finds nothing left; Ctrl-C waits for those who may be writing.
        left.clear()
        if len(ended) < len(begun):
            with interrupts_held():
                while len(ended) < len(begun):
                    news.get()
    for complete, error in ended:
        if error is not None:
            raise error
        done &= complete
    return bool(done)


def in_threads(function, items, workers=None, progress=True, **bar):
    """Call a function on every item, in threads; yield items and results as they are done.

    There are as many `workers` as cores by default. Close the generator to stop early: calls that have begun are waited
    for, the others never begin. The function should spend its time where Python's global lock is free. With `progress`
    there is a bar, with arguments of tqdm.
    """
    # BLAS on one thread even for one worker: its own threads gain nothing here, and lose much where cores are busy.
    bar["disable"] = None if progress else True  # None: no bar without a watcher
    with process.bar(**bar) as shown, one_blas_thread():
        pool = ThreadPoolExecutor(workers or THREADS)
        try:
            running = {pool.submit(function, item): item for item in items}
            for done in as_completed(running):
                yield running.pop(done), done.result()
                shown.update()
        finally:
            pool.shutdown(cancel_futures=True)


try:
    from threadpoolctl import ThreadpoolController
except ModuleNotFoundError:  # an extra's: without it, BLAS starts what threads it likes
    _blas = None
else:
    _blas = ThreadpoolController()


def one_blas_thread():
    """Return a context that keeps BLAS from starting threads of its own while ours keep every core busy.

    The limit holds for the whole process. It is the main thread's to set and to lift, since OpenBLAS does not listen
    to others; in those, nothing changes, and nowhere without threadpoolctl.
    """
    here = threading.current_thread() is threading.main_thread()
    return _blas.limit(limits=1, user_api="blas") if _blas and here else nullcontext()
