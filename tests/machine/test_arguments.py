import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from numpy.typing import ArrayLike
from texts import beside

from bppsa_nb.machine.arguments import Array, Comm, Count, Dtype, Path, Rng, Size, Steps, checked

KINDS = {"Annotated": Annotated, "Any": Any, "Array": Array, "ArrayLike": ArrayLike, "Callable": Callable, "np": np}
KINDS |= {"Count": Count, "Dtype": Dtype, "Literal": Literal, "Mapping": Mapping, "Path": Path, "Rng": Rng}
KINDS |= {"Sequence": Sequence, "Size": Size, "Steps": Steps}
TEXTS = beside(__file__)


def taking(kind):
    def function(x: eval(kind, KINDS)):
        return x

    return checked(function)


@pytest.mark.parametrize("kind, given, handed", TEXTS["taken"])
def test_values_are_handed_over(kind, given, handed):
    found, expected = taking(kind)(eval(given, KINDS)), eval(handed, KINDS)
    assert type(found) is type(expected)
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("kind, given, said", TEXTS["refused"])
def test_values_are_refused(kind, given, said):
    with pytest.raises((TypeError, ValueError)) as caught:
        taking(kind)(eval(given, KINDS))
    assert f"{caught.type.__name__}: {caught.value}" == said


class Model:
    dtype, size, shape = np.dtype(np.float32), 3, (2, 4)

    @checked
    def run(
        self,
        x: Annotated[np.ndarray, "float[T, B, size]"],
        y: Annotated[ArrayLike, "int[B]"] = (7,),
        *,
        images: Annotated[np.ndarray, "float[B, *shape]"] | None = None,
        more: Annotated[np.ndarray, "float[T + 1, B]"] | None = None,
        layer: Annotated[int, ">= 0, < size"] = 0,
        comm: Comm = None,
    ):
        """Say what came."""
        return x, y, images, more, layer


def arrays(dtype="f4", **shapes):
    return {name: np.zeros(shape, dtype) for name, shape in shapes.items()}


def test_arguments_fit_each_other_and_their_object():
    for given in (arrays(x=(5, 2, 3)), arrays(x=(0, 2, 3), more=(1, 2)), arrays(x=(5, 2, 3), images=(2, 2, 4))):
        assert Model().run(**given, y=[0, 1], layer=np.int64(2))[4] == 2
    assert Model().run(np.zeros((5, 2, 3), "f4"))[1] == (7,)  # a default is not looked at


@pytest.mark.parametrize("given, said", TEXTS["together"])
def test_arguments_that_do_not_fit_are_refused(given, said):
    with pytest.raises((TypeError, ValueError)) as caught:
        Model().run(**eval(f"arrays({given})" if given[0] != "{" else given, globals()))
    assert str(caught.value) == said


def test_what_python_refuses_is_left_to_it():
    for wrong in ({}, {"x": np.zeros((5, 2, 3), "f4"), "z": 1}):
        with pytest.raises(TypeError, match=r"run\(\) (missing|got an unexpected)"):
            Model().run(**wrong)
    with pytest.raises(TypeError, match=r"run\(\) takes"):
        Model().run(np.zeros((5, 2, 3), "f4"), [0, 1], None)
    assert Model.run(self=Model(), **arrays(x=(5, 2, 3), images=(2, 2, 4)))[2].shape == (2, 2, 4)


def test_errors_of_what_is_given_are_not_disguised():
    def entries():
        yield 1
        raise TypeError("of the caller's")

    with pytest.raises(TypeError, match="^of the caller's$"):
        taking("Sequence[int]")(entries())
    odd = type("Odd", (), {"__array__": lambda self, *_, **__: list(entries())})
    with pytest.raises(TypeError, match="^x must be an array, got .*: of the caller's$"):
        taking("Annotated[ArrayLike, 'int[n]']")(odd())


def test_a_checked_call_looks_like_itself():
    assert Model.run.__doc__ == "Say what came." and Model.run.__name__ == "run"
    assert [*inspect.signature(Model.run).parameters] == ["self", "x", "y", "images", "more", "layer", "comm"]


def test_keywords_are_looked_at_in_the_order_of_the_signature():
    with pytest.raises(ValueError, match=r"images must have shape \(B, 2, 4\) = \(2, 2, 4\) to fit x, got \(3, 2, 4\)"):
        Model().run(**arrays(images=(3, 2, 4), x=(5, 2, 3)))
