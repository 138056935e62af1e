"""CUDA streams that launches can be recorded on, and replayed as a graph."""

from numba import cuda

from bppsa_nb.machine import backends


def new_stream():
    """Make a stream that launches can be recorded on; on the simulator, where there are none, 0."""
    if backends.simulated():
        return 0
    from cuda.core import Device

    cuda.current_context()  # Numba's context, which is the device's own
    device = Device()
    device.set_current()
    return device.create_stream()


def wait(stream):
    """Return when all that was issued to a stream is done."""
    if stream:
        stream.sync()


def follow(stream, other):
    """Let what is issued to a stream from now on wait for what another one has so far, and be part of its recording."""
    if stream is not other:
        stream.wait(other)


def record(launch, stream):
    """Record launches as a CUDA graph, ready to be launched on the stream."""
    builder = stream.create_graph_builder()
    builder.begin_building()
    launch(builder.stream)
    builder.end_building()
    graph = builder.complete()
    graph.upload(stream)
    return graph
