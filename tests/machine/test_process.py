import signal

import pytest

from bppsa_nb.machine import process
from bppsa_nb.machine.process import interrupts_held

pytestmark = pytest.mark.usefixtures("handlers")
BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_what_ends_a_program_waits_for_what_must_not_be_cut(number):
    done = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        with interrupts_held():
            signal.raise_signal(number)
            done.append(True)
        done.append(False)
    assert done == [True]
    assert {signal.getsignal(each) for each in BOTH} == {signal.default_int_handler}


def test_what_is_ignored_or_simply_ends_the_process_is_not_held():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background jobs
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_hidden_bar_has_no_lock_that_ctrl_c_could_leave_to_other_threads():
    bar = process.bar(["item"], "name", 1, disable=True)
    bar.set_postfix({"n": 1})
    with bar as shown:
        shown.set_postfix_str("loss", refresh=False)
        shown.update()
    assert [*bar] == ["item"] and bar.n == 1 and not type(bar).__module__.startswith("tqdm")
