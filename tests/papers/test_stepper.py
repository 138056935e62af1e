import io

import numpy as np
import pytest
from PIL import Image

from bppsa_nb.papers.stepper import describe, stepper
from bppsa_nb.scan.trace import trace


def parts(box):
    (links, choice, k), slider, sentence, image = box.children[0].children, *box.children[1:]
    return links, choice, k, slider, sentence, image


def test_sentences():
    run = trace(3, "blelloch")
    assert [describe(run, level) for level in range(4)] == [
        "The array before the first level: the gradient at x_3 and 3 transposed Jacobians.",
        "Level 1 of 3 (up-sweep, d = 0) computes 2 products: (0) ⋄ (1), (2) ⋄ (3). "
        "So far 1 matrix-matrix and 1 matrix-vector products, of 1 and 3 in all.",
        "Level 2 of 3 (down-sweep, d = 1) computes 1 product: (0:1) ⋄ (2:3), and moves 1 operand. "
        "So far 1 matrix-matrix and 2 matrix-vector products, of 1 and 3 in all.",
        "Level 3 of 3 (down-sweep, d = 0) computes 1 product: (0:1) ⋄ (2), and moves 3 operands. "
        "So far 1 matrix-matrix and 3 matrix-vector products, of 1 and 3 in all.",
    ]
    assert describe(trace(0, "linear"), 0).endswith("the gradient at x_0, and nothing to do.")
    assert "Level 2 of 5 (linear) computes 1 product: (0:1) ⋄ (2)." in describe(trace(5, "linear"), 2)
    assert "(6) ⋄ (7), …." in describe(trace(20, "blelloch"), 1)


def test_stepping_through():
    links, choice, k, slider, sentence, image = parts(stepper(5))
    assert (links.value, choice.value, slider.value, slider.max) == (5, "blelloch", 0, 5)
    assert k.layout.display == "none"
    pictures = []
    for level in range(6):
        slider.value = level
        assert sentence.value == describe(trace(5, "blelloch"), level)
        pictures.append(np.asarray(Image.open(io.BytesIO(image.value))))
    assert all((a != b).any() for a, b in zip(pictures, pictures[1:], strict=False))


def test_changing_the_scan():
    links, choice, k, slider, sentence, _ = parts(stepper(8, "truncated", 1))
    slider.value = 3
    assert k.layout.display is None
    k.value = 0
    assert (slider.value, slider.max) == (0, 8)
    links.value = 4
    assert slider.max == 4
    choice.value = "hillis_steele"
    assert slider.max == 3
    assert k.layout.display == "none"
    links.value = 0
    assert slider.max == 0
    assert "nothing to do" in sentence.value


@pytest.mark.parametrize(
    "arguments, message",
    [((64,), "n must be from 0 to 63, got 64"), ((3, "tree"), "got 'tree'"), ((3, "truncated", -1), "levels must be")],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        stepper(*arguments)
