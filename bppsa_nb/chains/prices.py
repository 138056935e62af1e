"""What a start, a step and a multiply-add cost, by backend and kind of product, in seconds.

The package's own prices are in `prices.json`. Those of ``"numpy"`` and ``"cpu"`` were measured, as ``bppsa-nb
calibrate`` measures them on other machines; it stores them in the user's cache folder. Those of ``"cuda"`` follow from
the machine code of the hot kernels for H = 20 (`bppsa_nb.papers.bppsa.machine_code`), at 1.98 GHz, and 4 µs from one
launch to the next: they need only tell methods apart that differ by a factor.
"""

import logging
import math
from pathlib import Path

from bppsa_nb.chains.counts import KINDS
from bppsa_nb.machine import backends, files

FORMAT = 3  # another one for every change of what is counted
DEFAULTS = Path(__file__).with_name("prices.json")

_log = logging.getLogger(__name__)


def path():
    """Name the file that holds this machine's prices."""
    return files.cache_folder() / "prices.json"


def machine():
    """Name what prices are of: the processor, and how many of its cores."""
    return f"{backends.cpu_name()}, {backends.cores()} cores"


def load(backend):
    """Read the prices of a backend on this machine: a record of `machine`, `date` and `prices`, or None.

    Prices of another machine, or in a format of another version, are left alone; this is logged. Raises
    files.CorruptFileError, a ValueError, if the file is damaged, and OSError if this user cannot read it.
    """
    record = _read(path()).get(backend)
    if record is not None and record["machine"] != machine():
        _log.info("%s: prices of %s are of %s, not of %s", path(), backend, record["machine"], machine())
        return None
    return record


def defaults(backend):
    """Read the prices that come with the package; a record as `load` returns it."""
    return _read(DEFAULTS)[backend]


def store(records):
    """Write prices of some backends to this machine's file; what it holds on others stays."""
    files.write_json(path(), {"format": FORMAT, "backends": _read(path()) | records})


def _read(where):
    """Return the records of a file by backend, checked; none if there is no file, or one of another format."""
    try:
        content = files.read_json(where)
        if content["format"] != FORMAT:
            _log.info("%s: format is %r, not %r; using defaults", where, content["format"], FORMAT)
            return {}
        for backend, record in content["backends"].items():
            if not isinstance(record["machine"], str) or not isinstance(record["date"], str):
                raise TypeError(f"machine and date of {backend} must be text")
            for kind in KINDS:
                start, step, multiply_add = record["prices"][kind]
                if not all(math.isfinite(price) and price >= 0 for price in (start, step, multiply_add)):
                    raise ValueError(f"prices of {kind} are {record['prices'][kind]!r}")
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        advice = "delete it, and `bppsa-nb calibrate` measures this machine again"
        why = repr(error.__cause__ or error)[:200]  # of a binary file, the error has all bytes
        raise files.CorruptFileError(f"{where} is damaged: {why}; {advice}") from error
    return content["backends"]
