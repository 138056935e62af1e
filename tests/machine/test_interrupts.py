import io
import signal
import threading
from functools import partial

import pytest

from bppsa_nb.machine import extras, interrupts
from bppsa_nb.machine.interrupts import ended_once, interrupts_held

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def usual():
    """Signals as a program finds them that a shell starts in the foreground."""
    before = {number: signal.getsignal(number) for number in BOTH}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("again", BOTH)
def test_what_ends_a_program_comes_once(number, again, monkeypatch):
    times = iter([100.0, 100.1, 100.9, 101.2])
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(times))
    with ended_once() as arrived:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(again)  # which means the same
        signal.raise_signal(again)
        with pytest.raises(KeyboardInterrupt):  # and who goes on pressing comes out of what hangs
            signal.raise_signal(again)
    assert arrived == [number, *3 * [again]]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_is_ignored_or_handled_stays_so():
    heard = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background jobs
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with ended_once() as arrived:
        for number in BOTH:
            signal.raise_signal(number)
    assert arrived == [] and heard == [signal.SIGTERM]


@pytest.mark.parametrize("number", BOTH)
def test_what_ends_a_program_waits_for_what_must_not_be_cut(number):
    done = []
    with ended_once(), pytest.raises(KeyboardInterrupt):
        with interrupts_held() as waiting:
            signal.raise_signal(number)
            assert waiting == [number]
            done.append(True)
        done.append(False)
    assert done == [True]


def test_where_sigterm_simply_ends_the_process_it_is_not_held():
    with interrupts_held():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupted_bar_lets_those_of_other_threads_go_on(monkeypatch):
    pytest.importorskip("tqdm")
    presses, lock, new = [], threading.RLock(), partial(extras.bar, total=2, file=io.StringIO())

    class Lock:
        """As tqdm's, which is two: Ctrl-C may come between them."""

        def acquire(self):
            lock.acquire()
            presses and signal.raise_signal(presses.pop())

        __enter__, __exit__, release = acquire, lambda self, *error: lock.release(), lambda self: lock.release()

    monkeypatch.setattr(extras._bars(), "_lock", Lock(), raising=False)
    for act in (lambda bar: new(), lambda bar: bar.refresh(), lambda bar: bar.close()):
        bar = new()
        presses.append(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            act(bar)
    other = threading.Thread(target=lock.acquire, daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()
