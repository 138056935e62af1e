"""Run any timeline on a real network: in one process, or with a process for every device."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.machine.arguments import Size, checked
from bppsa_nb.machine.checks import check_finite
from bppsa_nb.machine.interrupts import interrupts_held
from bppsa_nb.machine.reprs import with_repr
from bppsa_nb.networks.network import Network
from bppsa_nb.schedule.events import Event
from bppsa_nb.schedule.layers import Chain, split
from bppsa_nb.schedule.operations import SF, SO, SW, F, O, W
from bppsa_nb.schedule.steps import Steps
from bppsa_nb.schedule.timeline import Timeline
from bppsa_nb.training.loss import check_labels
from bppsa_nb.training.optimizers import SGD, Adam

Images = Annotated[np.ndarray, "float[batch_size, *input_shape]"]
Labels = Annotated[ArrayLike, "int[batch_size]"]


@with_repr("loss", "grads", "timeline")
@dataclass(frozen=True, eq=False)
class Result:
    """What a run gives.

    `losses` [shape=(replicas * micro_batches,)] are the mean losses of the micro-batches. `grads` are the gradients of
    the batch's mean loss under the names of the network's parameters, or None where every micro-batch updated the
    weights. `timeline` is what was measured: the same operations, with the durations and starts they had, in seconds.
    """

    losses: np.ndarray
    grads: dict[str, np.ndarray] | Any
    timeline: Timeline

    @property
    def loss(self) -> float:
        """The batch's mean loss."""
        return float(self.losses.mean())

    @property
    def events(self) -> list[Event]:
        """All operations as they ran, in seconds."""
        return self.timeline.events


@dataclass(frozen=True, eq=False)
class _Plan:
    """What is run: a timeline of layers, for batches of one size that replicas share out; `updates` as in `Steps`."""

    timeline: Timeline
    network: Network
    layers: list
    batch_size: int
    replicas: int
    optimizer: SGD | Adam | None
    updates: str | None
    processes: bool

    def steps(self, workers, replica=0):
        """Return the arguments of `Steps` for some workers of a replica."""
        ops = self.timeline.operations
        micro_batches = range(replica * ops.micro_batches, (replica + 1) * ops.micro_batches)
        size = self.batch_size // (ops.micro_batches * self.replicas)
        program = [i for i in self.timeline.sequence.tolist() if ops.worker[i] in workers]
        columns = (column[program].tolist() for column in (ops.kind, ops.layer, ops.micro_batch))
        return {
            "layers": {number: self.layers[number - 1] for number in np.unique(ops.layer[program]).tolist()},
            "last": len(self.layers), "program": list(zip(program, *columns, strict=True)),
            "parts": [slice(m * size, (m + 1) * size) for m in micro_batches],
            "share": 1 if self.updates == "each" else ops.micro_batches * self.replicas,
            "updates": self.updates, "optimizer": self.optimizer,
        }  # fmt: skip


@with_repr("timeline", "network", "batch_size", "optimizer", "processes")
class Executor:
    """Run timelines of a network's layers, in a ``with`` block.

    Every device and link runs its operations in the timeline's order, each as soon as what it needs is there. The times
    are those of this machine. BLAS has one thread per process.

    Parameters
    ----------
    timeline
        Of as many layers as `split` makes of the network.
    network
        Such as a `sparse.Network`.
    batch_size
        Samples of each run. They are shared out evenly among replicas, and then micro-batches.
    optimizer
        For timelines that update the weights themselves: every layer has a copy of it. With ``policy="1f1b"`` and
        ``flush=False`` every micro-batch makes an update, and its gradients are those for the weights that its
        forward pass had on that device (PipeDream with weight stashing). In timelines that end with the next forward
        pass, each F first updates its layer. Without an optimizer, nothing is updated, and the gradients are the
        caller's: ``optimizer.step(network.params, result.grads)``.
    processes
        Whether every device is a process; by default, if there are several. Otherwise all take turns in this one, in
        the order of the starts, which gives the same results. Two streams of one device always do.
    replicas
        For timelines of `data_parallel`: how many processes train on a share of the batch each. S[δW] adds up their
        gradients, always in the same order. With one replica it has nothing to send.

    Notes
    -----
    Gradients of micro-batches are added up layer by layer in the order in which the timeline computes them, and each
    is that of its micro-batch's share of the mean loss. With one micro-batch they are those of
    ``network.backward(method="ordinary")`` to the last bit.

    Processes are started anew, not forked: a script must start them under ``if __name__ == "__main__"``. Notebooks need
    not.

    Examples
    --------
    >>> import numpy as np
    >>> from bppsa_nb import schedule, sparse
    >>> network = sparse.LeNet5()
    >>> timeline = schedule.pipeline(schedule.Network.uniform(5), 1, 4, "fast_forward")
    >>> x, labels = np.zeros((8, 3, 32, 32), np.float32), np.arange(8)
    >>> with schedule.Executor(timeline, network, 8) as run:
    ...     result = run(x, labels)
    >>> result.grads["fc3.bias"].shape
    (10,)
    """

    @checked
    def __init__(
        self, timeline: Timeline, network: Chain, batch_size: Size, optimizer: SGD | Adam | None = None,
        processes: bool | None = None, replicas: Size = 1,
    ):  # fmt: skip
        layers, ops = split(network), timeline.operations
        L, share = len(layers), ops.micro_batches * replicas
        if ops.network.layers != L:
            raise ValueError(f"timeline must be for the network's {L} layers {layers}, got {ops.network.layers}")
        timeline.check()
        if replicas > 1 and not ops.synchronizes:
            raise ValueError(f"replicas are for timelines of data_parallel, got {replicas} with {timeline!r}")
        if batch_size % share:
            parts = f"{share} equal {'replicas' if replicas > 1 else 'micro-batches'}"
            raise ValueError(f"batch_size must be a multiple of {share}, to make {parts}, got {batch_size}")
        if processes is None:
            processes = ops.devices > 1 or replicas > 1
        if replicas > 1 and not processes:
            raise ValueError("replicas are processes, got processes=False")
        if processes and (ops.worker[ops.kind <= W] >= ops.devices).any():
            raise ValueError(f"processes must be False where a device has two streams, as {timeline!r}")
        each = timeline.policy == "1f1b" and not timeline.flush
        if optimizer is not None and optimizer.steps:
            raise ValueError(f"optimizer must be a new one, got one that has taken {optimizer.steps} steps")
        if optimizer is not None and not (each or ops.ends_forward):
            advice = "with this one, call optimizer.step(network.params, result.grads)"
            raise ValueError(f"optimizer is for timelines that update the weights, not for {timeline!r}; {advice}")
        updates = None if optimizer is None else "each" if each else "before forward"
        self.timeline, self.network, self.batch_size, self.optimizer = timeline, network, batch_size, optimizer
        self.input_shape, self.dtype, self.processes = layers[0].input_shape, network.dtype, processes
        self._plan = _Plan(timeline, network, layers, batch_size, replicas, optimizer, updates, processes)
        self._running = self._stored = None

    def __enter__(self) -> Self:
        if self._running:
            raise RuntimeError("the executor runs already")
        self._stored = None
        self._running = (_Processes if self._plan.processes else _Turns)(self._plan)
        return self

    def __exit__(self, *error):
        self.close()

    def close(self) -> None:
        """End all processes; leaving the ``with`` block does."""
        running, self._running = self._running, None
        if running:
            with interrupts_held():
                running.close()

    @checked
    def __call__(self, x: Images, labels: Labels, following: tuple[Images, Labels] | None = None) -> Result:
        """Run the timeline once.

        Parameters
        ----------
        x, labels
            A batch of images, in the network's dtype, and their classes.
        following
            For timelines that end with a forward pass: the next run's `x` and `labels`, which it is for; by default
            those of this run. Such timelines begin with gradients. The forward pass for those is the last run's, if
            it was for an equal batch and there is an optimizer, and computed beforehand otherwise; nobody else may
            change the parameters in between.

        Raises
        ------
        FloatingPointError
            If an output, or a gradient that is to update weights, leaves the range of the dtype.
        RuntimeError, KeyboardInterrupt
            Outside a ``with`` block, or if a process has died; after Ctrl-C.

        Notes
        -----
        An error in the middle of a run, and Ctrl-C, end all processes. The network's parameters are then as before the
        run, or as after it, never in between.
        """
        plan, ends_forward = self._plan, self._plan.timeline.operations.ends_forward
        if not self._running:
            raise RuntimeError("an executor runs in a with block: with schedule.Executor(...) as run")
        batch = after = self._with_classes(x, labels)
        if following is not None:
            if not ends_forward:
                only = "is for timelines that end with a forward pass"
                raise ValueError(f"following {only}, got one with {plan.timeline!r}")
            try:
                after = self._with_classes(*following)
            except ValueError as error:
                raise ValueError(f"following: {error}") from error
        again = self._stored is not None and all(map(np.array_equal, batch, self._stored))
        try:
            losses, grads, times, weights = self._running(None if again else batch, after if ends_forward else None)
            with interrupts_held():
                for name, weight in weights.items() if plan.updates else ():
                    plan.network.params[name][...] = weight
        except BaseException:
            self.close()
            raise
        if plan.updates == "before forward":
            self._stored = tuple(array.copy() for array in after)
        times -= times.min()
        planned = plan.timeline
        operations = replace(planned.operations, duration=times[:, 1] - times[:, 0])
        measured = Timeline(operations, times[:, 0].copy(), planned.policy, flush=planned.flush, k=planned.k)
        return Result(losses, grads if plan.updates != "each" else None, measured)

    def _with_classes(self, x, labels):
        check_finite(x=x)
        return x, check_labels(labels, len(x), self._plan.layers[-1].output_shape[0])


class _Turns:
    """All workers of a timeline in this process, one operation after the other."""

    def __init__(self, plan):
        self._plan, self._steps = plan, Steps(**plan.steps(range(len(plan.timeline.operations.workers))))

    def __call__(self, batch, following):
        from bppsa_nb.machine.workers import one_blas_thread

        plan, steps, params = self._plan, self._steps, self._plan.network.params
        times = np.empty((len(plan.timeline.operations), 2))
        with one_blas_thread():
            losses = steps.run(params, batch, following, times)
        grads = steps.grads
        return losses, {name: grads[name] for name in params if name in grads}, times, steps.weights

    def close(self):
        pass


class _Processes:
    """A process for every device of a timeline, or every replica."""

    def __init__(self, plan):
        from bppsa_nb.schedule.processes import SharedArrays, Workers

        self._plan, ops = plan, plan.timeline.operations
        replicas, dtype = plan.replicas, plan.network.dtype
        links = _links(plan.timeline)
        size = plan.batch_size // (ops.micro_batches * replicas)
        arrays = {"losses": ((replicas, ops.micro_batches), np.float64), "times": ((replicas, len(ops), 2), np.float64)}
        for which in ("", "next ") if ops.ends_forward else ("",):
            arrays[which + "x"] = (plan.batch_size, *plan.layers[0].input_shape), dtype
            arrays[which + "labels"] = (plan.batch_size,), np.int64
        for layer in plan.layers:
            for name, shape in layer.params.items():
                arrays["param", name] = arrays["grad", name] = shape, dtype
                if ops.synchronizes:
                    arrays["part", name] = (replicas, *shape), dtype
        for kind, number, m, _ in (message for messages in links.values() for message in messages):
            layer = plan.layers[number - 1]
            arrays[kind, number, m] = (*(layer.output_shape if kind == F else layer.input_shape), size), dtype
        self._memory = SharedArrays(arrays)
        reduces = [(SW, int(ops.layer[i]), 0, i) for i in plan.timeline.sequence.tolist() if ops.kind[i] == SW]
        pairs = [(replica, d) for replica in range(replicas) for d in range(ops.devices)]
        alike = {"reduces": reduces, "ends_forward": ops.ends_forward}
        devices = [{"steps": plan.steps([d], r), "replica": r} | alike for r, d in pairs]
        names = [ops.workers[d] + f" {replica + 1}" * (replicas > 1) for replica, d in pairs]
        self._workers = Workers(self._memory, devices, links, names)

    def __call__(self, batch, following):
        memory, params = self._memory, self._plan.network.params
        for which, each in (("", batch), ("next ", following)):
            if each:
                memory[which + "x"][...], memory[which + "labels"][...] = each
        for name, param in params.items():
            memory["param", name][...] = param
        self._workers.run(b"run" if batch else b"again")
        grads = {name: memory["grad", name].copy() for name in params}
        weights = {name: memory["param", name] for name in params}
        return memory["losses"].ravel().copy(), grads, memory["times"][0].copy(), weights

    def close(self):
        self._workers.close()


def _links(timeline):
    """List what goes from device to device, in order.

    An operation S sends when the timeline says; where sending takes no time there is none, and it is sent at once.
    """
    ops = timeline.operations
    device = ops.worker[ops.select(F)[0]]
    place, messages = np.argsort(timeline.sequence), {}
    for kind, sends in ((F, SF), (O, SO)):
        made, sent = ops.select(kind), ops.select(sends)
        for m, l in np.argwhere(made >= 0).tolist():
            to = l + 1 if kind == F else l - 1
            if 0 <= to < len(device) and device[l] != device[to]:
                i, pair = int(sent[m, l]), (int(device[l]), int(device[to]))
                when = int(place[i if i >= 0 else made[m, l]])
                messages.setdefault(pair, []).append((when, (kind, l + 1, m, i)))
    return {pair: [message for _, message in sorted(each)] for pair, each in messages.items()}
