"""Clips of musical instruments as mel-frequency cepstral coefficients (Section 4.2, Table 3).

A folder is laid out as IRMAS is (Bosch et al., ISMIR 2012): one folder per instrument, in it stereo WAV files of three
seconds at 44.1 kHz. `Instruments` says how they are named.
"""

import copy
import hashlib
import os
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import PurePosixPath
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.machine import files, process
from bppsa_nb.machine.arguments import Path, Rng, Size, checked
from bppsa_nb.machine.checks import with_repr
from bppsa_nb.training.datasets import ArrayDataset

NAMES = {
    "cel": "cello", "cla": "clarinet", "flu": "flute", "gac": "acoustic guitar", "gel": "electric guitar",
    "org": "organ", "pia": "piano", "sax": "saxophone", "tru": "trumpet", "vio": "violin", "voi": "voice",
}  # fmt: skip
LABELS = tuple(NAMES)
SAMPLE_RATE = 44100  # Hz
SECONDS = 3
STAND_IN = "stand-in.json"  # a folder with this file holds synthetic clips

_LOUDEST = 1e10  # 1 is full scale; far beyond this, powers overflow in float32


class Features(NamedTuple):
    """How features are computed from a waveform: a column of Table 3.

    So many mel-frequency `coefficients` per channel, of which the first is dropped; samples of the Fourier transform's
    `window`, and `hop` from one frame to the next.
    """

    coefficients: int
    window: int
    hop: int

    @property
    def frames(self) -> int:
        """F, the frames of a clip."""
        return self.frames_of(SECONDS * SAMPLE_RATE)

    @property
    def size(self) -> int:
        """C, the features of a frame: both channels, without the first coefficients."""
        return 2 * (self.coefficients - 1)

    def frames_of(self, samples: int) -> int:
        """Count the frames of a waveform: half a window is added on either side."""
        return 1 + samples // self.hop


FEATURES = {"S": Features(20, 4096, 512), "M": Features(13, 2048, 256), "L": Features(7, 1024, 128)}
Set = Literal["S", "M", "L"]


@checked
def mfcc(waveform: Annotated[ArrayLike, "floating[2, n]"], features: Set = "S"):
    """Compute normalized mel-frequency cepstral coefficients (F, C) in float32 of a stereo waveform (2, samples).

    They are the left channel's, then the right channel's, without the first of each, which is the average power. Every
    coefficient has mean 0 and variance 1 over the frames; one that does not vary is 0.
    """
    from_librosa, how = _from_librosa(), FEATURES[features]
    peak = float(abs(waveform).max(initial=0))  # NaN if there is one
    if not peak <= _LOUDEST:
        raise ValueError(f"waveform must be finite and at most {_LOUDEST:g} (1 is full scale), its peak is {peak:g}")
    settings = {"n_mfcc": how.coefficients, "n_fft": how.window, "hop_length": how.hop}
    # One channel at a time: librosa cuts off what is 80 dB below the loudest, which both would share otherwise.
    channels = [from_librosa(y=channel, sr=SAMPLE_RATE, **settings) for channel in waveform]
    coefficients = np.stack(channels).astype(np.float64)  # (2, coefficients, F)
    rounding = 8 * np.finfo(np.float32).eps * abs(coefficients).max()
    rows = coefficients[:, 1:].reshape(how.size, -1)
    rows -= rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, keepdims=True)
    constant = deviation <= rounding  # silence, for one: a deviation that is nothing but rounding must not be blown up
    return np.where(constant, 0, rows / np.where(constant, 1, deviation)).T.astype(np.float32)


def read(path):
    """Read a stereo clip at 44.1 kHz, in a format that libsndfile knows, such as WAV: (2, samples) in float32.

    Full scale is -1 ... 1. OSError or ValueError if it cannot be opened, is no regular file, corrupt, or of another
    number of channels or another rate.
    """
    with process.explained():
        import soundfile

    files.check_regular(path)
    with open(path, "rb") as file:
        try:
            with soundfile.SoundFile(file) as sound:
                if (sound.channels, sound.samplerate) != (2, SAMPLE_RATE):
                    wanted = f"expected 2 channels, {SAMPLE_RATE} Hz"
                    raise ValueError(f"{sound.channels} channels, {sound.samplerate} Hz, {wanted}")
                return sound.read(dtype="float32").T
        except soundfile.LibsndfileError as error:
            raise ValueError(f"corrupt: {error.error_string.rstrip('.')}") from error


@with_repr("x", "features", "data")
class Instruments(ArrayDataset):
    """Instrument classification: IRMAS or its stand-in, as one of the sets S, M and L of Table 3.

    Features are computed in threads and cached in `data/downloads/features/`, until a file changes, comes or goes.

    Parameters
    ----------
    folder
        A folder in IRMAS's layout, with one folder per instrument (`LABELS`), in it files ``<recording>__<n>.wav``,
        ``.wav`` in any case. Marks in brackets, and what stands before them, are no part of the recording's name:
        ``008__[cel][nod][cla]0058__1.wav`` is a clip of recording 0058. A file without ``__<n>`` is a recording of its
        own. The folder is only read.
    features
        A set of Table 3.
    workers
        Threads that compute features; as many as there are cores by default.
    progress
        Whether to show a bar.

    Attributes
    ----------
    x : np.ndarray [shape=(F, N, C), dtype=float32]
        The features of all clips, read-only.
    y : np.ndarray [shape=(N,)]
        Their labels, indices into `LABELS`.
    files : tuple of str [length=N]
        Their files, relative to the folder.
    data : {"real", "stand-in"}
        Where the sound comes from.
    features : Features
        How the features were computed.

    Raises
    ------
    OSError, ValueError
        If the folder is not there (FileNotFoundError), lacks an instrument's folder or clips in one; if files cannot
        be used, of which all are looked at first; if features cannot be cached.
    """

    @checked
    def __init__(self, folder: Path, features: Set = "S", workers: Size | None = None, progress: bool = True):
        self.features = FEATURES[features]
        names = _clips_in(folder)
        _fill(self, _load(folder, names, features, workers, progress), names)
        self.data = "stand-in" if (folder / STAND_IN).is_file() else "real"

    @checked
    def split(self, share: Annotated[float, "> 0, < 1"] = 0.25, rng: Rng = 0) -> "tuple[Instruments, Instruments]":
        """Hold out clips for testing.

        All clips of a recording stay together, since they sound alike. Of every instrument, about the same share is
        held out.

        Parameters
        ----------
        share
            The share to hold out, between 0 and 1. The split comes as near to it as whole recordings allow, with at
            least one of every instrument on either side.
        rng
            Decides which recordings.

        Returns
        -------
        train, held_out : Instruments
            Clips in the order of `files`.
        """
        rng = np.random.default_rng(rng)
        recordings = np.array([_recording(name) for name in self.files])
        held_out = np.zeros(len(self), bool)
        for label in np.unique(self.y):
            names, counts = np.unique(recordings[self.y == label], return_counts=True)
            if len(names) < 2:
                raise ValueError(f"cannot split: {LABELS[label]} has only one recording ({names[0]})")
            order = rng.permutation(len(names))
            sizes = np.cumsum(counts[order])[:-1]
            last = abs(sizes - share * counts.sum()).argmin()
            held_out |= np.isin(recordings, names[order[: last + 1]])
        clips, parts = self.x.swapaxes(0, 1), (np.flatnonzero(~held_out), np.flatnonzero(held_out))
        return tuple(_fill(copy.copy(self), clips[part], [self.files[i] for i in part]) for part in parts)


def _fill(data, clips, names):
    """Give an `Instruments` its clips [shape=(N, F, C)] by their names, and return it."""
    clips.flags.writeable = False
    data.x, data.files = clips.swapaxes(0, 1), tuple(names)
    data.y = np.array([LABELS.index(name.split("/")[0]) for name in names], np.int64)
    return data


def _from_librosa():
    with process.explained():
        from librosa.feature import mfcc
    return mfcc


def _recording(name):
    # The marks in brackets need not be the same for all clips of a recording.
    folder, _, stem = str(PurePosixPath(name).with_suffix("")).rpartition("/")
    whole = re.sub(r"__\d+$", "", stem)
    return f"{folder}/{whole.rpartition(']')[2] or whole}"


def _clips_in(folder):
    if not folder.is_dir():
        raise FileNotFoundError(f"folder must be a folder in IRMAS's layout, there is none at {folder}")
    clips = {label: [path.name for path in folder.glob(f"{label}/[!.]*")] for label in LABELS}
    clips = {label: sorted(name for name in names if name.lower().endswith(".wav")) for label, names in clips.items()}
    if missing := [label for label in LABELS if not clips[label]]:
        wanted = f"must have .wav files in each of the folders {', '.join(LABELS)}"
        raise ValueError(f"{folder} {wanted}; there is none in {', '.join(missing)}")
    return [f"{label}/{name}" for label in LABELS for name in clips[label]]


def _load(folder, names, features, workers, progress):
    """Return features [shape=(N, F, C)]: those that were kept of the very same files, or else what is computed now."""
    how = FEATURES[features]
    kept = _kept(folder, names, how)
    try:
        return files.read_npz(kept, "bppsa_nb.Instruments")["features"]
    except FileNotFoundError:
        pass
    except files.CorruptFileError as error:
        print(f"{error}. Features are computed anew", file=sys.stderr)
    clips, bad = np.empty((len(names), how.frames, how.size), np.float32), {}

    def compute(i):
        try:
            waveform = read(folder / names[i])
            if (frames := how.frames_of(waveform.shape[1])) != how.frames:
                seconds, wrong = waveform.shape[1] / SAMPLE_RATE, "short" if frames < how.frames else "long"
                raise ValueError(f"too {wrong}: {seconds:.3f} s, expected {SECONDS} s ({how.frames} frames)")
            clips[i] = mfcc(waveform, features)
        except (ValueError, OSError) as error:
            bad[i] = f"{names[i]}: {error}"

    from bppsa_nb.machine.workers import in_threads

    _from_librosa()  # loaded before threads would do so all at once
    for _ in in_threads(compute, range(len(names)), workers, progress, total=len(names), desc="MFCC", unit="clip"):
        pass
    if bad:
        shown = [bad[i] for i in sorted(bad)[:5]] + [f"and {len(bad) - 5} more"] * (len(bad) > 5)
        raise ValueError(f"{len(bad)} of {len(names)} files cannot be used: {'; '.join(shown)}")
    with files.atomic_write(kept) as file:
        np.savez(file, features=clips)
    return clips


def _kept(folder, names, features):
    """Return where features are kept, as clips are now: to be asked before they are read, for they may change."""
    stamps = []
    for name in names:
        with suppress(OSError):  # reading it says why
            status = os.stat(folder / name)
            stamps.append((name, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    what = str(folder.resolve()), features, SAMPLE_RATE, SECONDS, metadata.version("librosa"), stamps
    key = hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()
    return files.root() / "data" / "downloads" / "features" / f"{key}.npz"
