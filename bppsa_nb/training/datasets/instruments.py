"""A stand-in for IRMAS where it is not downloaded: melodies on eleven synthetic instruments.

A note is a periodic wave, the brighter the louder it is. Instruments differ in how a note begins and fades, in the
strength of its partials, and in what goes with it: vibrato, breath, other notes. Player and room are drawn once per
recording, melodies per clip. The clips are written as WAV files that are named as IRMAS names its own.
"""

import tomllib
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from bppsa_nb.machine import files, process
from bppsa_nb.machine.arguments import Count, checked
from bppsa_nb.training.datasets import downloads
from bppsa_nb.training.datasets.audio import LABELS, SAMPLE_RATE, SECONDS, STAND_IN

CLIPS = 440  # in all, as many of each instrument

_VERSION = 2  # changes when the sound does
_SAMPLES = SECONDS * SAMPLE_RATE
_TABLE = 1 << 14  # samples of one period
_CHORD = 0, 7, 4  # semitones


class Timbre(NamedTuple):
    """What an instrument sounds like; recordings have from `beat` to `breath` of their own, at most a quarter apart."""

    low: int  # MIDI numbers of pitches
    high: int
    beat: float  # seconds between notes
    attack: float  # seconds until a note is loud
    decay: float  # seconds in which it fades
    bright: float  # partial k has amplitude k to the power of minus this when loud,
    dark: float  # and of this when soft
    vibrato: float  # cents
    breath: float  # amplitude of noise
    even: float = 1  # amplitude of the even partials, relative
    partials: int = 60
    voices: int = 1  # notes at once, at most
    formants: tuple = ((),)  # Hz that the body amplifies: of every note one of these


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TIMBRES = {name: Timbre(**fields) for name, fields in _TABLES.items()}


def clips(count=CLIPS, seed=0, progress=True):
    """Find a folder for `bppsa_nb.Instruments`: IRMAS if it was fetched, or else the stand-in; and say which."""
    try:
        found = downloads.find("irmas")
    except FileNotFoundError:
        print("IRMAS is not here (`bppsa-nb fetch irmas` downloads it). Synthetic instruments stand in for it.")
        return stand_in(count, seed, progress)
    print(f"IRMAS, in {found}")
    return found


@checked
def stand_in(count: Annotated[int, ">= 11"] = CLIPS, seed: Count = 0, progress: bool = True):
    """Write so many clips in IRMAS's layout into a folder in `data/downloads/`, unless they are there, and return it.

    A clip depends on the seed and its own name only. There are two of every recording.
    """
    with process.explained():
        import soundfile

    from bppsa_nb.machine.workers import in_threads

    folder = files.root() / "data" / "downloads" / f"stand-in-{_VERSION}-{count}-{seed}"
    names = {}
    for i in range(count):
        number, (recording, second) = i % len(LABELS), divmod(i // len(LABELS), 2)
        label, take = LABELS[number], 1 + number + len(LABELS) * recording
        names[f"{label}/[{label}][nod]{take:04d}__{1 + second}.wav"] = label, [seed, number, recording], 1 + second
    files.write_json(folder / STAND_IN, {"count": count, "seed": seed})  # first, so that nobody takes a part for IRMAS

    def write(name):
        with files.atomic_write(folder / name) as file:
            soundfile.write(file, play(*names[name]).T, SAMPLE_RATE, "PCM_16", format="WAV")

    left = [name for name in names if not (folder / name).is_file()]
    bar = {"total": count, "initial": count - len(left), "desc": "stand-in", "unit": "clip"}
    for _ in in_threads(write, left, progress=progress, **bar):
        pass
    return folder


def play(label, seed=0, segment=1):
    """Synthesize a clip [shape=(2, 132300)]: left and right channel at 44.1 kHz, within -1 ... 1.

    `label` is one of `LABELS`. The seed, an integer or several, says which recording: player and room; the segment says
    which clip of it: the melody.
    """
    timbre, player = TIMBRES[label], np.random.default_rng(seed)
    rng = np.random.default_rng([*np.atleast_1d(seed), segment])
    beat, *own = np.multiply(timbre[2:9], player.uniform(0.8, 1.25, 7))
    shift, tuning, level = player.uniform([0.94, -0.5, -15], [1.06, 0.5, -1])
    delays, gains = player.integers(300, 4000, (2, 3)), player.uniform(0.05, 0.2, (2, 3))
    hiss = 10 ** (player.uniform(-75, -55) / 20)
    mono = np.zeros(_SAMPLES)
    start, pitch = -rng.uniform(0, beat), rng.uniform(timbre.low, timbre.high)  # the clip begins anywhere in a note
    while start < SECONDS:
        step = beat * rng.choice([0.5, 1, 1, 1.5, 2])
        for interval in _CHORD[: rng.integers(1, timbre.voices + 1)]:
            note = _note(timbre, own, 440 * 2 ** ((pitch + tuning + interval - 69) / 12), step, shift, rng)
            first = round(start * SAMPLE_RATE)
            note = note[max(-first, 0) : _SAMPLES - first]
            mono[max(first, 0) : max(first, 0) + len(note)] += note
        start += step
        pitch = np.clip(pitch + rng.choice([-4, -2, -2, 0, 2, 2, 4]), timbre.low, timbre.high)
    sound = np.stack([mono, mono])
    for channel, delay, gain in zip(sound, delays, gains, strict=True):  # echoes of its own
        for d, g in zip(delay, gain, strict=True):
            channel[d:] += g * mono[:-d]
    return 10 ** (level / 20) * (sound / abs(sound).max() + hiss * rng.uniform(-1, 1, sound.shape)) / (1 + hiss)


def _note(timbre, own, frequency, seconds, shift, rng):
    """Run through one period of a wave, between how it is when loud and when soft."""
    attack, decay, bright, dark, vibrato, breath = own
    t = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    loudness = 10 ** (rng.uniform(-12, 0) / 20)
    loudness = loudness * (1 - np.exp(-2 * t / attack)) * np.exp(-t / decay) * np.minimum((seconds - t) / 0.03, 1)
    k = np.arange(1, 1 + min(timbre.partials, max(1, int(16000 / frequency))))
    gain = np.where(k % 2, 1, timbre.even)
    for formant in shift * np.array(timbre.formants[rng.integers(len(timbre.formants))]):
        gain = gain * (1 + 2 / (1 + ((frequency * k - formant) / (0.12 * formant + 40)) ** 2))
    phases = np.exp(2j * np.pi * rng.random(len(k)))
    waves = []
    for tilt in (bright, dark):
        spectrum, amplitudes = np.zeros(_TABLE // 2 + 1, complex), gain / k**tilt
        spectrum[k] = amplitudes / np.sqrt((amplitudes**2).sum()) * phases * _TABLE / 2
        waves.append(np.fft.irfft(spectrum))
    cents = vibrato * np.sin(2 * np.pi * (5.5 * t + rng.random()))
    at = (np.cumsum(2 ** (cents / 1200)) * (frequency / SAMPLE_RATE * _TABLE)).astype(int) % _TABLE
    loud, soft = waves[0][at], waves[1][at]
    return loudness * (soft + (loud - soft) * loudness**2 + breath * rng.standard_normal(len(t)))
