import pytest
from IPython.core.interactiveshell import InteractiveShell

from bppsa_nb.papers.stepper import stepper
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule.traced import scan_figure


def test_it_shows_the_scan_that_was_chosen():
    shown = stepper(8, "truncated", 1)
    assert shown.html == scan_figure(trace(8, "truncated", 1)) and shown.levels.layout.display is None
    shown.levels.value = 0
    assert shown.html == scan_figure(trace(8, "truncated", 0))
    shown.links.value, shown.method.value = 4, "hillis_steele"
    assert shown.html == scan_figure(trace(4, "hillis_steele")) and shown.levels.layout.display == "none"
    shown.squares.value = "letters"
    assert shown.html == scan_figure(trace(4, "hillis_steele"), "letters")
    shown.links.value = 0
    assert "nothing to do" in shown.html


@pytest.fixture
def published():
    """What a notebook is given to show, or to show in the place of something."""
    shell = InteractiveShell.instance()
    found, publish = [], shell.display_pub.publish
    shell.display_pub.publish = lambda data, metadata=None, **more: found.append((data, more))
    yield found
    shell.display_pub.publish = publish
    InteractiveShell.clear_instance()


def test_choosing_redraws_in_the_same_place_and_without_a_kernel_nothing_is_to_be_chosen(published):
    shown = stepper(7)
    shown._ipython_display_()
    (controls, _), (picture, how) = published
    assert controls["text/html"] == controls["text/plain"] == "" and len(controls) == 3  # a widget, or nothing
    assert picture["text/html"] == shown.html and "<script>" in shown.html and "http" not in shown.html
    shown.links.value = 3
    (again, where) = published[-1]
    assert again["text/html"] == scan_figure(trace(3, "blelloch"))
    assert where["update"] and where["transient"] == how["transient"]
