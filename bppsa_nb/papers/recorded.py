"""What benchmarks recorded, collected from all machines."""

from bppsa_nb.papers import experiments

PEERS = {"torch": "PyTorch", "cudnn": "cuDNN", "jax": "JAX"}


def collect(name, command="python benchmarks/run.py"):
    """Put together what a benchmark recorded at the paper's scale, on all machines.

    Rows get a column `machine`, which names processor, peers and date. Where there is no recording, a FileNotFoundError
    says which `command` makes one.
    """
    import pandas

    devices = [device for device, scale in experiments.recordings(name) if scale == "paper"]
    if not devices:
        raise FileNotFoundError(f"no recording of {name}; `{command}` makes one")
    parts, kinds = [], set()
    for device in devices:
        part = experiments.table(name, "paper", device)
        origin = part.attrs["provenance"]
        kinds.add(origin["data"])
        processor = origin["gpu"] or f"{origin['cpu']}, {origin['cores']} cores"
        versions = [f"{title} {part.attrs[key]}" for key, title in PEERS.items() if key in part.attrs]
        machine = ", ".join([processor, *versions, origin["date"]])
        if "backend" not in part:
            part = part.assign(backend=origin["backend"] or "cpu")
        parts.append(part.assign(machine=machine))
    table = pandas.concat(parts, ignore_index=True)
    table.attrs["data"] = kinds.pop() if len(kinds) == 1 else "stand-in"
    return table
