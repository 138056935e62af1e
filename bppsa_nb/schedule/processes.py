"""Devices as processes of this machine: shared memory, links between them, and one who watches them all."""

import builtins
import json
import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from multiprocessing import connection, get_context, parent_process
from queue import SimpleQueue

import numpy as np

from bppsa_nb.schedule.operations import SW, F, O, W
from bppsa_nb.schedule.steps import Steps


class SharedArrays:
    """Arrays that several processes see, by names of which `arrays` says the shape and the dtype."""

    def __init__(self, arrays):
        self._places, size = {}, 0
        for name, (shape, dtype) in arrays.items():
            self._places[name] = size, shape, np.dtype(dtype)
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64
        # Unlike SharedMemory, it has no name that someone must remove: it is gone with the last process.
        self._bytes = get_context("spawn").RawArray("b", max(size, 1))

    def __getitem__(self, name):
        offset, shape, dtype = self._places[name]
        return np.frombuffer(self._bytes, dtype, int(np.prod(shape)), offset).reshape(shape)


class Workers:
    """Processes, one for each device, that wait for runs.

    `devices` are what `_Worker` needs for each: arguments of `Steps`, and what else is said there. For every pair of
    devices, from and to, `links` says what one sends the other, in this order: kind, layer, micro-batch, and the number
    of the operation that sends it, or -1. Errors call the devices by `names`.
    """

    def __init__(self, memory, devices, links, names):
        context, self._names = get_context("spawn"), names
        pipes = {pair: context.Pipe(duplex=False) for pair in links}
        barrier = context.Barrier(len(devices))
        self._processes, self._controls = [], []
        try:
            for d, device in enumerate(devices):
                ours, theirs = context.Pipe()
                incoming = [(pipes[a, b][0], links[a, b]) for a, b in links if b == d]
                outgoing = [(pipes[a, b][1], links[a, b]) for a, b in links if a == d]
                arguments = memory, device, theirs, incoming, outgoing, barrier
                process = context.Process(target=_serve, args=arguments, name=names[d], daemon=True)
                self._controls.append(ours)
                try:
                    process.start()
                finally:
                    theirs.close()
                self._processes.append(process)
            # Whoever waits for a process that has died must find nobody at the other end.
            for ends in pipes.values():
                for end in ends:
                    end.close()
            self._wait("; a script that starts processes must do so under if __name__ == '__main__'")
        except BaseException:
            self.close()
            raise

    def run(self, command):
        """Have all devices do something, and wait; raise what the first to fail raised, RuntimeError if it died."""
        for control in self._controls:
            with suppress(BrokenPipeError, ConnectionResetError):  # whoever has died is found below
                control.send_bytes(command)
        self._wait()

    def _wait(self, hint=""):
        missing = set(range(len(self._controls)))
        while missing:
            ready = connection.wait([self._controls[d] for d in missing])
            for d in sorted(missing):
                if self._controls[d] in ready:
                    try:
                        answer = self._controls[d].recv_bytes()
                    except (EOFError, ConnectionResetError):
                        answer = None
                    if answer:
                        _raise(self._names[d], json.loads(answer))
                    if answer is None:
                        self._processes[d].join()
                        code = self._processes[d].exitcode
                        raise RuntimeError(f"the process of {self._names[d]} ended with exit code {code}{hint}")
                    missing.discard(d)

    def close(self):
        """End all processes."""
        for process in self._processes:
            process.kill()  # there is nothing to clean up, and one that is stopped would not hear of less
        for process in self._processes:
            process.join()
            process.close()
        for control in self._controls:
            control.close()
        self._processes, self._controls = [], []


def _raise(name, report):
    kind = getattr(builtins, report["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, (ArithmeticError, ValueError, TypeError, MemoryError))):
        kind = RuntimeError
    error = kind(f"{name}: {report['message']}")
    error.add_note(report["traceback"])
    raise error


def _serve(memory, device, control, incoming, outgoing, barrier):
    """Live as a device: wait for runs, until the other end of `control` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    with suppress(ModuleNotFoundError):  # an extra's
        from threadpoolctl import threadpool_limits

        threadpool_limits(1, user_api="blas")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError):  # the parent is gone, or about to end this process
        try:
            worker = _Worker(memory, device, incoming, outgoing, barrier, control)
            control.send_bytes(b"")
            while True:
                worker.run(again=control.recv_bytes() == b"again")
                control.send_bytes(b"")
        except _NeighborGone:  # the parent hears from that one
            control.recv_bytes()
        except Exception as error:
            if isinstance(error, (EOFError, BrokenPipeError)):
                raise
            _report(control, error)
            control.recv_bytes()


def _end_with_parent():
    parent_process().join()
    os._exit(1)


def _report(control, error):
    report = {"kind": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
    control.send_bytes(json.dumps(report).encode())


class _NeighborGone(Exception):
    """A link has nobody at its other end."""


class _Link:
    """What a device sends another one, in the order of the timeline, beside its own work."""

    def __init__(self, messages, carry):
        self.messages, self._carry, self._made = messages, carry, SimpleQueue()

    def put(self, key, arrays):
        """Hand over what is to be sent."""
        self._made.put((key, arrays))

    def serve(self, times):
        """Send everything."""
        made = {}
        for kind, layer, m, i in self.messages:
            while (kind, layer, m) not in made:
                key, arrays = self._made.get()
                made[key] = arrays
            start = time.perf_counter()
            notify = self._carry((kind, layer, m), made.pop((kind, layer, m)))
            if i >= 0:
                times[i] = start, time.perf_counter()
            notify()


class _Worker:
    """A device in its own process; `device` is one of those that `Workers` was given."""

    def __init__(self, memory, device, incoming, outgoing, barrier, control):
        self._memory, self._device, self._barrier, self._control = memory, device, barrier, control
        self._steps = Steps(**device["steps"])
        self._sources = {message[:3]: end for end, messages in incoming for message in messages}
        self._orders = {end: [message[:3] for message in messages] for end, messages in incoming}
        self._links = [_Link(messages, partial(self._send, end)) for end, messages in outgoing]
        if device["reduces"]:
            self._links.append(_Link(device["reduces"], self._reduce))
        self._link_of = {message[:3]: link for link in self._links for message in link.messages}

    def run(self, again):
        """Run the device's part of an iteration."""
        memory, steps, device = self._memory, self._steps, self._device
        self._reduced, self._summed = set(), SimpleQueue()
        self._expected = {end: iter(order) for end, order in self._orders.items()}
        params = {name: memory["param", name] for layer in steps.layers.values() for name in layer.params}
        times = memory["times"][device["replica"]]
        threads = [threading.Thread(target=self._serve, args=(link, times), daemon=True) for link in self._links]
        for thread in threads:
            thread.start()
        batch = None if again else (memory["x"], memory["labels"])
        following = (memory["next x"], memory["next labels"]) if device["ends_forward"] else None
        losses = steps.run(params, batch, following, times, self._receive, self._hand_on)
        for thread in threads:
            thread.join()
        if losses is not None:
            memory["losses"][device["replica"]] = losses
        if device["replica"] == 0:
            for name, weight in steps.weights.items() if device["steps"]["updates"] else ():
                params[name][...] = weight
            for name, grad in steps.grads.items():
                memory["grad", name][...] = grad

    def _serve(self, link, times):
        try:
            link.serve(times)
        except BrokenPipeError:  # the parent hears from whoever is not there any more
            pass
        except Exception as error:
            _report(self._control, error)

    def _receive(self, kind, layer, m):
        if kind == F and self._device["reduces"]:
            while layer not in self._reduced:
                self._reduced.add(self._summed.get())
        key = (F, layer - 1, m) if kind == F else (O, layer + 1, m)
        if key in self._sources:
            end = self._sources[key]
            while key not in self._steps.products:
                try:
                    end.recv_bytes()
                except EOFError:
                    raise _NeighborGone from None
                came = next(self._expected[end])
                self._steps.products[came] = np.moveaxis(self._memory[came], -1, 0)

    def _hand_on(self, kind, layer, m):
        if kind == W and self._device["reduces"]:
            self._link_of[SW, layer, m].put((SW, layer, m), self._steps.sums[layer])
        elif (kind, layer, m) in self._link_of:
            self._link_of[kind, layer, m].put((kind, layer, m), self._steps.products.pop((kind, layer, m)))

    def _send(self, end, key, array):
        self._memory[key][...] = np.moveaxis(array, 0, -1)  # operators' outputs have samples last in memory
        return partial(end.send_bytes, b"")

    def _reduce(self, key, totals):
        """Add up a layer's gradients of all replicas, in the same order everywhere."""
        layer, replica = key[1], self._device["replica"]
        names = list(self._steps.layers[layer].params)
        for name, total in zip(names, totals, strict=True):
            self._memory["part", name][replica] = total
        self._barrier.wait()
        for name, total in zip(names, totals, strict=True):
            parts = self._memory["part", name]
            total[...] = parts[0]
            for part in parts[1:]:
                total += part
        return partial(self._summed.put, layer)
