"""Parameters by name: views of one flat array."""

import copy
import pickle

import numpy as np
import pytest
from texts import beside

import bppsa_nb as bp
from bppsa_nb import multigrid, sparse

MODELS = {
    "recurrent": lambda: bp.GRU(2, 3, 4, num_layers=2),
    "network": lambda: sparse.Network((4,), [sparse.Linear("fc1", 4, 3), sparse.Linear("fc2", 3, 2)]),
    "residual": lambda: multigrid.ResidualModel((4,), [], 3, [sparse.Linear("fc", 4, 2)]),
}
each_model = pytest.mark.parametrize("model", MODELS)


@each_model
def test_they_are_views_of_one_array_one_after_the_other(model):
    params = MODELS[model]().params
    np.testing.assert_array_equal(np.concatenate([param.reshape(-1) for param in params.values()]), params.flat)
    for number, (name, param) in enumerate(params.items()):
        param[...] = number
        params[name] += 1
        assert (params[name] == number + 1).all() and param.shape == params.shapes[name]
    assert len(np.unique(params.flat)) == len(params) and list(params) == list(params.shapes)


@each_model
def test_assignment_copies(model):
    model = MODELS[model]()
    names = list(model.params)
    given = np.full_like(model.params[names[0]], 7)
    model.params[names[0]] = given
    given[...] = 8
    assert (model.params[names[0]] == 7).all()
    model.params[names[-1]] = model.params[names[-1]]  # of the same memory
    doubled = {name: 2 * param for name, param in model.params.items()}
    for assign in (lambda: setattr(model, "params", doubled), lambda: model.params.update(doubled)):
        model.params.flat[...] = 0
        params, views = model.params, dict(model.params)
        assign()
        assert model.params is params and all((view == doubled[name]).all() for name, view in views.items())
        assert not any(np.shares_memory(params[name], array) for name, array in doubled.items())


@pytest.mark.parametrize(("change", "message"), beside(__file__)["wrong"])
def test_what_is_wrong_is_named_and_changes_nothing(change, message):
    model = bp.RNN(1, 3, 2)
    bp.Trainer(model, bp.SGD(0.1), backend="numpy")
    before, names = model.params.flat.copy(), list(model.params)
    with pytest.raises((TypeError, ValueError, AttributeError), match=message) as caught:
        exec(change, {"np": np, "bp": bp, "model": model, "params": model.params, "Foreign": type("Foreign", (), {})})
    assert "bias_ih_l0" in str(caught.value) or "params" in str(caught.value) or "replaced" in message
    assert (model.params.flat == before).all() and list(model.params) == names


class Widened(bp.RNN):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.params["gain"] = np.ones(2, np.float32)
        self.params = dict(self.params) | {"shift": np.zeros(1, np.float32)}


@pytest.mark.parametrize("settle", [
    lambda model: model.forward(np.ones((2, 1, 1), np.float32), backend="numpy"),
    lambda model: bp.Trainer(model, bp.SGD(0.1), backend="numpy"),
])  # fmt: skip
def test_a_subclass_adds_names_until_a_forward_pass_or_a_trainer(settle):
    model, usual = Widened(1, 3, 2), bp.RNN(1, 3, 2)
    assert list(model.params) == [*usual.params, "gain", "shift"]
    np.testing.assert_array_equal(model.params.flat, [*usual.params.flat, 1, 1, 0])
    settle(model)
    with pytest.raises(ValueError, match=r"params\['more'\] is none of the parameters, weight_.*, gain, shift; a"):
        model.params["more"] = np.ones(2, np.float32)
    model.params["gain"] = np.zeros(2, np.float32)
    assert not model.params.flat[-3:].any()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_keep_the_layout(again):
    params = bp.GRU(1, 3, 2).params
    other = again(params)
    assert other.shapes == params.shapes and (other.flat == params.flat).all()
    other["fc.bias"] = np.full(2, 9, np.float32)
    assert (other.flat[-2:] == 9).all()
    assert np.shares_memory(other.flat, params.flat) == (params["fc.bias"] == 9).all() == (again is copy.copy)
    assert repr(other).startswith("Parameters(weight_ih_l0 (9, 1), weight_hh_l0 (9, 3), ")
