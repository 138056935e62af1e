import numpy as np
import pytest
from comparing import assert_gradients
from texts import beside, refuses

from bppsa_nb import SGD, Adam, Trainer, sparse
from bppsa_nb.multigrid import ResidualModel
from bppsa_nb.training.loss import cross_entropy

DENSE, IMAGES = "dense", "images"
each_kind = pytest.mark.parametrize("kind", [DENSE, IMAGES])


def build(kind, depth=10, dtype=np.float64, rng=0, **settings):
    if kind == DENSE:
        shape, opening = (6,), [sparse.Linear("opening", 6, 5), sparse.Tanh("tanh")]
        closing = [sparse.Linear("closing", 5, 3)]
    else:
        shape, opening = (2, 6, 5), [sparse.Conv2d("opening", 2, 3, 3, padding=1), sparse.ReLU("relu")]
        closing = [sparse.AvgPool2d("pool", 2), sparse.Flatten("flatten"), sparse.Linear("closing", 18, 3)]
    return ResidualModel(shape, opening, depth, closing, rng=rng, dtype=dtype, **settings)


def samples(model, batch=4, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((batch, *model.input_shape)).astype(model.dtype), rng.integers(3, size=batch)


def differentiate(model, method="auto", levels=None):
    x, y = samples(model)
    activations = model.forward(x, backend="numpy")
    loss, grad_logits = cross_entropy(activations.logits, y)
    return loss, model.backward(activations, grad_logits, method, "numpy", levels)


def test_parameters_have_pytorchs_names_and_layout():
    shapes = {name: param.shape for name, param in build(IMAGES, kernel_size=5, dtype=np.float32).params.items()}
    assert shapes == {
        "opening.weight": (3, 2, 3, 3), "opening.bias": (3,), "residual.weight": (10, 3, 3, 5, 5),
        "residual.bias": (10, 3), "closing.weight": (3, 18), "closing.bias": (3,),
    }


def test_initial_parameters_are_uniform_up_to_the_root_of_the_fan_in():
    model = ResidualModel((64,), [], 50, [sparse.Linear("closing", 64, 10)], rng=3)
    again = ResidualModel((64,), [], 50, [sparse.Linear("closing", 64, 10)], rng=np.random.default_rng(3))
    for name, param in model.params.items():
        assert (param == again.params[name]).all() and param.dtype == np.float32
        assert abs(param).max() <= 1 / 8
    assert abs(model.params["residual.weight"].std() - 1 / 8 / np.sqrt(3)) < 1e-3


@each_kind
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gradients_are_central_differences(kind, activation):
    model = build(kind, activation=activation, h=0.3, solver={"tol": 1e-12})
    x, y = samples(model)
    _, grads = differentiate(model)
    rng, step = np.random.default_rng(2), 1e-6
    for name, param in model.params.items():
        direction, kept = rng.standard_normal(param.shape), param.copy()
        losses = []
        for sign in (1, -1):
            param[...] = kept + sign * step * direction
            losses.append(cross_entropy(model.forward(x, "numpy").logits, y)[0])
        param[...] = kept
        slope = (losses[0] - losses[1]) / (2 * step)
        assert abs(slope - (grads[name] * direction).sum()) < 1e-7, name


@pytest.mark.peers
@each_kind
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_logits_and_gradients_are_pytorchs(kind, activation):
    import torch

    model = build(kind, activation=activation)
    x, y = samples(model)
    params = {name: torch.tensor(param, requires_grad=True) for name, param in model.params.items()}
    act = getattr(torch, activation)
    u = torch.tensor(x)
    if kind == DENSE:
        apply = torch.nn.functional.linear
        u = torch.tanh(apply(u, params["opening.weight"], params["opening.bias"]))
    else:

        def apply(u, weight, bias):
            return torch.nn.functional.conv2d(u, weight, bias, padding=1)

        u = torch.relu(apply(u, params["opening.weight"], params["opening.bias"]))
    for weight, bias in zip(params["residual.weight"], params["residual.bias"], strict=True):
        u = u + model.h * act(apply(u, weight, bias))
    if kind == IMAGES:
        u = torch.nn.functional.avg_pool2d(u, 2).flatten(1)
    logits = torch.nn.functional.linear(u, params["closing.weight"], params["closing.bias"])
    torch.nn.functional.cross_entropy(logits, torch.tensor(y)).backward()
    np.testing.assert_allclose(model.forward(x, "numpy").logits, logits.detach().numpy(), rtol=1e-12, atol=1e-14)
    assert_gradients(differentiate(model)[1], {name: p.grad.numpy() for name, p in params.items()}, 1e-12)


@each_kind
@pytest.mark.parametrize("options", [{}, {"relaxation": "F"}, {"levels": 2}, {"cycle": "F", "nested_iteration": True}])
def test_many_cycles_give_what_serial_propagation_gives(kind, options):
    model = build(kind, depth=20, h=0.1)
    loss, serial = differentiate(model)
    model.solver = options | {"coarsening": 3, "tol": 1e-13}
    for method in ("auto", "multigrid", "ordinary"):
        found, grads = differentiate(model, method)
        assert abs(found - loss) < 1e-12
        assert_gradients(grads, serial, 1e-10)


def test_errors_shrink_with_cycles_forward_and_backward():
    model, name = build(DENSE, depth=32, h=0.1), "residual.weight"
    _, serial = differentiate(model)
    errors, backward = [], []
    for cycles in (1, 2, 3):
        model.solver = {"cycles": cycles, "coarsening": 2}
        (_, both), (_, forward_only) = (differentiate(model, method) for method in ("auto", "ordinary"))
        errors.append(np.abs(both[name] - serial[name]).max())
        backward.append(np.abs(both[name] - forward_only[name]).max())
    for each in (errors, backward):
        assert each[0] > 4 * each[1] > 16 * each[2] > 0


@each_kind
def test_as_many_cycles_as_the_network_needs(kind):
    counts = []
    for h in (0.01, 0.1):
        model = build(kind, depth=40, h=h)
        _, serial = differentiate(model)
        assert model.cycles == {"forward": 1, "backward": 1}
        model.solver = {"error": 1e-3}
        _, grads = differentiate(model)
        difference, size = (
            np.sqrt(sum((g**2).sum() for g in each))
            for each in ([grads[name] - serial[name] for name in grads], serial.values())
        )
        assert 1e-7 < difference / size < 5e-3
        counts.append(dict(model.cycles))
        for method, count in ("ordinary", 1), ("auto", counts[-1]["backward"]):
            differentiate(model, method)
            assert model.cycles["backward"] == count
    assert all(counts[0][name] < counts[1][name] for name in ("forward", "backward"))


@pytest.mark.parametrize("method, levels", [("linear", None), ("blelloch", None), ("truncated", 2), ("chunked", None)])
def test_scans_are_exact(method, levels):
    model = build(DENSE)
    _, serial = differentiate(model)
    assert_gradients(differentiate(model, method, levels)[1], serial, 1e-12)


def test_without_opening_the_input_is_the_first_state():
    model = ResidualModel((5,), [], 6, [sparse.Linear("closing", 5, 3)], dtype=np.float64, solver={"cycles": 9})
    x, _ = samples(model)
    assert (model.forward(x, "numpy").states[0] == x).all()
    assert list(differentiate(model)[1]) == ["residual.weight", "residual.bias", "closing.weight", "closing.bias"]


@each_kind
def test_trainer_stops_and_goes_on(kind, tmp_path):
    def trainer(rng):
        model = build(kind, depth=12, dtype=np.float32, rng=rng, solver={"cycles": 2, "coarsening": 2})
        return Trainer(model, Adam(lr=0.01), backend="numpy")

    class Data:
        def __len__(self):
            return 10

        def batch(self, indices):
            x, y = samples(build(kind, dtype=np.float32), batch=10)
            return x[indices], y[indices]

    whole, first, second = trainer(0), trainer(0), trainer(5)
    losses = whole.fit(Data(), 6, 4, progress=False).loss
    first.fit(Data(), 2, 4, progress=False)
    first.save(tmp_path / "half.npz")
    second.load(tmp_path / "half.npz")
    assert (second.fit(Data(), 6, 4, progress=False).loss == losses).all()
    assert all((second.model.params[name] == param).all() for name, param in whole.model.params.items())
    assert losses[-3:].mean() < losses[:3].mean()
    loss, accuracy = second.evaluate(Data(), 5)
    assert loss > 0 and 0 <= accuracy <= 1


def test_solver_may_change_and_is_not_shared():
    given = {"cycles": 2}
    model = build(DENSE, solver=given)
    given["cycles"] = 5
    model.solver["cycles"] = 7
    assert model.solver == {"cycles": 2}
    model.solver = None
    assert model.solver is None
    assert model.h == 1 / 10 and build(DENSE, h=0.5).h == 0.5  # times the depth, one by default


@each_kind
@pytest.mark.parametrize("name, value, said, settings", beside(__file__)["unsolved"])
def test_what_cannot_be_solved_is_an_error_that_says_why(kind, name, value, said, settings):
    model = build(kind, dtype=np.float32, activation="relu", **settings)
    model.params[name][(3, 2) if value == np.inf else ...] = value
    refuses("model.forward(np.abs(samples(model)[0]), 'numpy')", said, globals() | locals())


def test_no_scan_of_images_is_to_be_had():
    model, said = build(IMAGES), "method='blelloch' scans Jacobians of dense layers"
    activations = model.forward(samples(model)[0], "numpy")
    with pytest.raises(ValueError, match=said):
        model.backward(activations, np.ones((4, 3)), "blelloch", "numpy")
    with pytest.raises(ValueError, match=said):
        Trainer(model, SGD(lr=0.1), "blelloch", "numpy")


@pytest.mark.parametrize("other", [build(IMAGES), build(DENSE, depth=9), build(DENSE, dtype=np.float32)])
def test_activations_of_other_models_are_refused(other):
    found, model = other.forward(samples(other)[0], "numpy"), build(DENSE)
    with pytest.raises(ValueError, match=r"activations must be what forward of ResidualModel.* without comm returned"):
        model.backward(found, np.ones((4, 3)), backend="numpy")


def test_gradients_that_leave_the_range_are_an_error():
    model = build(DENSE, dtype=np.float32)
    activations = model.forward(samples(model)[0], "numpy")
    model.params["closing.weight"][...] = 3e38
    with pytest.raises(FloatingPointError, match="the gradient of .* overflows float32"):
        model.backward(activations, np.full((4, 3), 3e38, np.float32), backend="numpy")


def test_a_parameter_of_a_subclass_is_its_own_to_derive():
    class Scaled(ResidualModel):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.params["scale"] = np.ones(1, np.float32)

    made = Scaled((4,), [sparse.Linear("o", 4, 3)], 4, [sparse.Linear("c", 3, 2)])
    grads = made.backward(made.forward(np.ones((2, 4), np.float32)), np.ones((2, 2), np.float32))
    assert grads.keys() == made.params.keys() - {"scale"}
