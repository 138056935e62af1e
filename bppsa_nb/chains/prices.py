"""What steps, products and memory cost: prices measured on this machine, in the user's cache, and those of others.

Prices are the coefficients of a linear cost model, in seconds, whose variables `bppsa_nb.chains.counts` has.
"""

import logging
import math
from pathlib import Path

from bppsa_nb.chains import counts
from bppsa_nb.machine import files, hardware

FORMAT = 2  # another one for every change of what is counted
NAMES = tuple(counts.chunked(1, 1, 1, 1, "numpy", 1))  # all there are
DEFAULTS = Path(__file__).with_name("prices.json")

_log = logging.getLogger(__name__)


def path():
    """Name the file that holds this machine's prices."""
    return files.cache_folder() / "prices.json"


def machine(backend):
    """Name what a backend runs on: the processor and how many of its cores, or the GPU."""
    return hardware.gpu_name() if backend == "cuda" else f"{hardware.cpu_name()}, {hardware.cores()} cores"


def load(backend):
    """Read the prices of a backend on this machine: a record, or None if there are none.

    It has `machine`, `date`, `versions`, `prices`, and `points` with what was measured and predicted. Prices of another
    machine, or in a format of another version, are left alone; this is logged. Raises files.CorruptFileError, a
    ValueError, if the file is damaged, and OSError if there may be a file, but this user cannot read it.
    """
    record = stored().get(backend)
    if record is None:
        return None
    here = machine(backend)
    if record["machine"] != here:
        _log.info("%s: prices of %s are of %s, not of %s; using defaults", path(), backend, record["machine"], here)
        return None
    return record


def defaults(backend):
    """Read the prices that come with the package, for ``"numpy"`` or ``"cpu"``; a record as `load` returns it."""
    return _read(DEFAULTS)[backend]


def store(records):
    """Write prices of some backends to this machine's file; what it holds on others stays."""
    files.write_json(path(), {"format": FORMAT, "backends": stored() | records})


def store_defaults(records):
    """Make prices those that come with the package, without the points, for other machines."""
    slim = {backend: record | {"points": []} for backend, record in records.items()}
    files.write_json(DEFAULTS, {"format": FORMAT, "backends": _read(DEFAULTS) | slim})


def kinds_and_methods():
    """List the pairs that have prices."""
    return [(kind, method) for kind, methods in counts.KINDS.items() for method in methods]


def stored():
    """Read the prices of all backends in this machine's file, wherever they come from."""
    return _read(path()) or {}


def _read(where):
    """Return the records of a file by backend, checked; None if there is no file, or one of another format."""
    try:
        content = files.read_json(where)
        if content["format"] != FORMAT:
            _log.info("%s: format is %r, not %r; using defaults", where, content["format"], FORMAT)
            return None
        for record in content["backends"].values():
            if not isinstance(record["machine"], str) or not isinstance(record["date"], str):
                raise TypeError("machine and date must be text")
            for kind, method in kinds_and_methods():
                for name, price in record["prices"][kind][method].items():
                    if name not in NAMES or not math.isfinite(price) or price < 0:
                        raise ValueError(f"{kind} {method}: the price of {name} is {price!r}")
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        advice = "delete it, and `bppsa-nb calibrate` measures this machine again"
        raise files.CorruptFileError(f"{where} is damaged: {error.__cause__ or error!r}; {advice}") from error
    return content["backends"]
