"""The competitors: PyTorch's and JAX's ways to do what this package does, and ours in the same form.

A competitor is a list of stages for `turns.take_turns`. A training step has three: the forward pass with the loss, the
backward pass, and the update of the parameters. What is not installed here does not compete.
"""

import os
from functools import partial
from importlib import import_module

import numpy as np

import bppsa_nb as bp
from bppsa_nb.papers import provenance
from bppsa_nb.training.loss import cross_entropy

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX leaves the others their share of a GPU


def installed():
    """Find the peers.

    Returns
    -------
    dict of str to str
        Name to version, of "torch" and "jax" as far as they are installed, and of "cudnn" where PyTorch has it.
    """
    found = {}
    for name in ("torch", "jax"):
        try:
            found[name] = __import__(name).__version__
        except ImportError:
            continue
    if "torch" in found:
        import torch

        if torch.cuda.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def our_step(model, x, y, method, backend):
    """Return the stages of our training step: forward pass and loss, backward pass, Adam."""
    optimizer, saved = bp.Adam(lr=1e-5), {}

    def forward():
        saved["activations"] = model.forward(x, backend=backend)
        _, saved["grad_logits"] = cross_entropy(saved["activations"].logits, y)

    def backward():
        saved["grads"] = model.backward(saved["activations"], saved["grad_logits"], method, backend)

    def update():
        optimizer.step(model.params, saved["grads"])

    return [forward, backward, update]


def torch_step(model, x, y, device="cpu", threads=1, flush=False, wait=True, library="torch.nn"):
    """Return the stages of the same step by torch.nn's RNN, GRU or LSTM, with a copy of our model's parameters.

    Parameters
    ----------
    model : bppsa_nb.RNN, bppsa_nb.GRU or bppsa_nb.LSTM
    x : np.ndarray [shape=(T, B, I)]
    y : np.ndarray of int [shape=(B,)]
    device : {"cpu", "cuda"}
        Where the arrays are, and stay.
    threads : int
        Of PyTorch's operators on a CPU.
    flush : bool
        Whether it may count subnormal numbers as zero.
    wait : bool
        Whether a stage waits until the device is done.
    library : {"torch.nn", "bppsa_nb.torch"}
        Whose layers.

    Raises
    ------
    AssertionError
        If its loss is not ours.
    """
    import torch

    layers, fc = torch_model(model, device, library)
    optimizer = torch.optim.Adam([*layers.parameters(), *fc.parameters()], lr=1e-5)
    x_there, y_there = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
    done = torch.cuda.synchronize if device == "cuda" and wait else lambda: None
    saved = {}

    def forward():
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flush)
        optimizer.zero_grad()
        logits = fc(layers(x_there)[0][-1])
        saved["loss"] = torch.nn.functional.cross_entropy(logits, y_there)
        done()

    def backward():
        saved.pop("loss").backward()
        done()

    def update():
        optimizer.step()
        done()
        torch.set_flush_denormal(False)

    forward()
    ours, _ = cross_entropy(model.forward(x, backend="numpy").logits, y)
    theirs = saved.pop("loss").item()
    assert abs(theirs - ours) < 1e-4, f"PyTorch's loss is {theirs}, ours {ours}"
    return [forward, backward, update]


def torch_model(model, device, library="torch.nn"):
    """Make torch.nn's RNN, GRU or LSTM, or ours, and a linear layer, with a copy of our model's parameters."""
    import torch

    # 32 bits of every number, as ours have them.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    kind = getattr(import_module(library), type(model).__name__)
    layers = kind(model.input_size, model.hidden_size, model.num_layers).to(device)
    fc = torch.nn.Linear(model.hidden_size, model.num_classes).to(device)
    with torch.no_grad():
        for name, value in model.params.items():
            module = fc if name.startswith("fc.") else layers
            getattr(module, name.removeprefix("fc.")).copy_(torch.from_numpy(value))
    return layers, fc


def torch_graph(model, x, y, whole=True):
    """Return PyTorch's training step on a GPU, recorded as a CUDA graph, or as one for each of its three stages.

    Its Adam is fused and capturable.
    """
    import torch

    layers, fc = torch_model(model, "cuda")
    optimizer = torch.optim.Adam([*layers.parameters(), *fc.parameters()], lr=1e-5, fused=True, capturable=True)
    x, y, saved = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda(), {}

    def forward():
        optimizer.zero_grad(set_to_none=True)
        saved["loss"] = torch.nn.functional.cross_entropy(fc(layers(x)[0][-1]), y)

    def step():
        forward()
        saved["loss"].backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    pool, graphs = torch.cuda.graph_pool_handle(), []
    for stage in (step,) if whole else (forward, lambda: saved["loss"].backward(), optimizer.step):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=pool):
            stage()

    def replay(graph, alive):
        graph.replay()
        torch.cuda.synchronize()

    alive = layers, fc, optimizer, x, y, saved  # a graph has addresses only
    return [partial(replay, graph, alive) for graph in graphs]


def torch_steps(model, x, y, device):
    """Return PyTorch's training steps by name: on 1 thread, on all, with subnormals flushed; or on a GPU."""
    kind = f"torch.nn.{type(model).__name__}"
    if device == "cuda":
        return {
            f"{kind}, cuDNN": torch_step(model, x, y, "cuda"),
            f"{kind}, cuDNN, CUDA graph": torch_graph(model, x, y),
        }
    cores = provenance.cores()
    named = {f"{kind}, 1 thread": {}, f"{kind}, 1 thread, flush_denormal": {"flush": True}}
    if cores > 1:
        named[f"{kind}, {cores} threads"] = {"threads": cores}
    return {name: torch_step(model, x, y, **how) for name, how in named.items()}


def jax_step(model, x, y, unroll):
    """Return the same training step in JAX, jitted as a whole: `jax.lax.scan` over time, so many steps unrolled.

    Raises
    ------
    AssertionError
        If its loss is not ours.
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_default_matmul_precision", "highest")  # 32 bits on a GPU, too
    x_there, y_there, lr, (beta1, beta2), eps = jnp.asarray(x), jnp.asarray(y), 1e-5, (0.9, 0.999), 1e-8

    def rnn(states, into, weight_T, bias):
        (h,) = states
        return (jnp.tanh(into + h @ weight_T + bias),)

    def gru(states, into, weight_T, bias):
        (h,) = states
        (r, z, n), (from_r, from_z, from_n) = jnp.split(into, 3, -1), jnp.split(h @ weight_T + bias, 3, -1)
        z = jax.nn.sigmoid(z + from_z)
        return ((1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + from_r) * from_n) + z * h,)

    def lstm(states, into, weight_T, bias):
        h, c = states
        i, f, g, o = jnp.split(into + h @ weight_T + bias, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    cell = {bp.RNN: rnn, bp.GRU: gru, bp.LSTM: lstm}[type(model)]

    def layer(params, n, inputs):
        into = inputs @ params[f"weight_ih_l{n}"].T + params[f"bias_ih_l{n}"]
        weight_T, bias = params[f"weight_hh_l{n}"].T, params[f"bias_hh_l{n}"]
        last = n == model.num_layers - 1

        def one(states, into):
            states = cell(states, into, weight_T, bias)
            return states, None if last else states[0]

        start = (jnp.zeros((x.shape[1], model.hidden_size), x.dtype),) * model.cell.states
        return jax.lax.scan(one, start, into, unroll=unroll)

    def loss_of(params):
        states = x_there
        for n in range(model.num_layers):
            (h, *_), states = layer(params, n, states)
        logits = h @ params["fc.weight"].T + params["fc.bias"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y_there[:, None], 1).mean()

    @jax.jit
    def step(params, averages, squares, count):
        loss, grads = jax.value_and_grad(loss_of)(params)
        averages = {name: beta1 * averages[name] + (1 - beta1) * grad for name, grad in grads.items()}
        squares = {name: beta2 * squares[name] + (1 - beta2) * grad**2 for name, grad in grads.items()}
        first, second = 1 - beta1**count, 1 - beta2**count
        for name in params:
            params[name] -= lr / first * averages[name] / (jnp.sqrt(squares[name] / second) + eps)
        return params, averages, squares, count + 1, loss

    params = {name: jnp.asarray(value) for name, value in model.params.items()}
    zeros = {name: jnp.zeros_like(value) for name, value in params.items()}
    saved = {"state": (params, zeros, zeros, jnp.float32(1))}

    def turn():
        *saved["state"], loss = jax.block_until_ready(step(*saved["state"]))
        return loss

    theirs, (ours, _) = float(turn()), cross_entropy(model.forward(x, backend="numpy").logits, y)
    assert abs(theirs - ours) < 1e-4, f"JAX's loss is {theirs}, ours {ours}"
    return [turn]


def jax_steps(model, x, y):
    """Return JAX's training steps by name."""
    return {f"jax.lax.scan, unroll={unroll}": jax_step(model, x, y, unroll) for unroll in (1, 8)}


def jax_scans(jacobians_T, grad_output):
    """Return JAX's ways to the gradients of a dense chain, by name, on whatever device it takes.

    Parameters
    ----------
    jacobians_T : np.ndarray [shape=(T, B, H, H)]
    grad_output : np.ndarray [shape=(B, H)]

    Raises
    ------
    AssertionError
        If its gradients are not ours.
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_default_matmul_precision", "highest")  # 32 bits on a GPU, too

    @jax.jit
    def products(jacobians_T):
        return jax.lax.associative_scan(lambda a, b: b @ a, jacobians_T[::-1])

    @jax.jit
    def associative_scan(jacobians_T, grad_output):
        return jnp.einsum("tbij,bj->tbi", products(jacobians_T), grad_output)

    @jax.jit
    def scan(jacobians_T, grad_output):
        def step(gradient, jacobian_T):
            gradient = jnp.einsum("bij,bj->bi", jacobian_T, gradient)
            return gradient, gradient

        return jax.lax.scan(step, grad_output, jacobians_T, reverse=True)[1]

    there = jnp.asarray(jacobians_T), jnp.asarray(grad_output)
    ours = bp.backprop(jacobians_T, grad_output, method="linear", backend="numpy")[:-1]
    for result in (associative_scan(*there)[::-1], scan(*there)):
        np.testing.assert_allclose(result, ours, atol=1e-4)
    return {
        "jax.lax.scan": [lambda: scan(*there).block_until_ready()],
        "jax.lax.associative_scan and gradients": [lambda: associative_scan(*there).block_until_ready()],
        "jax.lax.associative_scan, products only": [lambda: products(there[0]).block_until_ready()],
    }
