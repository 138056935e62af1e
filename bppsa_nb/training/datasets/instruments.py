"""A stand-in for IRMAS where it is not downloaded: eleven synthetic instruments.

Simple models of what tells instruments apart. Strings that are plucked or struck are sums of decaying partials; what is
bowed, blown or sung is a periodic wave whose brightness follows its loudness. Player, room and tuning are drawn once
per recording, melodies per clip. The clips are written as WAV files that are named as IRMAS names its own.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bppsa_nb.machine import extras, files
from bppsa_nb.machine.checks import check_choice, check_count, generator
from bppsa_nb.training.datasets import downloads
from bppsa_nb.training.datasets.audio import LABELS, SAMPLE_RATE, SECONDS, STAND_IN

SAMPLES = SECONDS * SAMPLE_RATE
CLIPS = 440  # in all, as many of each instrument
CLIPS_PER_RECORDING = 2

_FORMAT = 1  # changes when the sound does
_TABLE = 1 << 14  # samples of one period
_BLOCK = 1 << 8  # samples per row of the products that make decaying partials
_FADE = 0.03  # seconds in which a note ends
_MAJOR = np.array([0, 2, 4, 5, 7, 9, 11])

# Formants in Hz of sung a, e, i, o, u.
_VOWELS = ((800, 1150, 2900), (400, 1600, 2700), (300, 2200, 2950), (450, 800, 2830), (325, 700, 2700))


@dataclass(frozen=True)
class Instrument:
    """What an instrument sounds like. Pairs are the least and the most of what is drawn at random."""

    pitches: tuple  # MIDI numbers
    beat: tuple  # seconds between notes
    attack: tuple  # seconds until a note is loud; sets apart what speaks at once and what swells
    tilt: tuple  # partial k has amplitude k to the power of minus this; the first when loud, the second when soft
    decay: tuple = (0, 0)  # seconds until a plucked or struck note has faded; (0, 0) for one that is held
    held: tuple = (0.8, 1.1)  # share of the time between notes that a note is held
    voices: tuple = (1, 1)  # notes that sound at once
    vibrato: tuple = (0, 0)  # cents of the pitch
    vibrato_rate: tuple = (5, 6)  # Hz
    tremolo: float = 0  # share of the loudness that goes with the vibrato
    slide: tuple = (0, 0)  # cents that a note starts too low
    even: float = 1  # amplitude of the even partials, relative
    stretch: float = 0  # inharmonicity: partial k is at k sqrt(1 + stretch k²) times the pitch
    breath: tuple = (0, 0.002)  # amplitude of noise while a note sounds
    click: float = 0  # amplitude of the noise at its beginning
    formants: tuple | str = ()  # Hz that the body amplifies; "sung" for vowels that change from note to note
    partials: tuple = ()  # the partials there are; all of them if empty
    drive: tuple = (0, 0)  # gain into an amplifier that saturates; (0, 0) for none
    rotor: bool = False  # whether the loudspeaker turns


INSTRUMENTS = {
    "cel": Instrument(
        pitches=(36, 60), beat=(0.7, 1.2), attack=(0.15, 0.3), tilt=(0.9, 1.6), held=(0.95, 1.2), vibrato=(15, 30),
        vibrato_rate=(4.5, 5.5), tremolo=0.15, slide=(0, 30), breath=(0.005, 0.02), formants=(250, 600, 1500)),
    "cla": Instrument(
        pitches=(50, 82), beat=(0.25, 0.5), attack=(0.03, 0.06), tilt=(0.9, 2), held=(0.9, 1.02), even=0.05,
        breath=(0.001, 0.004), formants=(1500,)),
    "flu": Instrument(
        pitches=(64, 93), beat=(0.3, 0.7), attack=(0.05, 0.1), tilt=(1.8, 3), held=(0.85, 1), vibrato=(4, 12),
        vibrato_rate=(4.5, 6), tremolo=0.35, breath=(0.06, 0.15), click=0.05),
    "gac": Instrument(
        pitches=(40, 72), beat=(0.15, 0.25), attack=(0.001, 0.003), tilt=(0.7, 1.2), decay=(0.5, 1), held=(1, 2.5),
        voices=(1, 2), stretch=5e-5, click=0.12, formants=(110, 220, 420)),
    "gel": Instrument(
        pitches=(40, 68), beat=(0.3, 0.7), attack=(0.002, 0.005), tilt=(0.6, 1), decay=(1.5, 4), held=(0.5, 1),
        voices=(1, 2), stretch=5e-5, click=0.04, formants=(900, 2500), drive=(4, 12)),
    "org": Instrument(
        pitches=(48, 84), beat=(0.6, 1.2), attack=(0.003, 0.01), tilt=(0.3, 0.3), held=(0.9, 1), voices=(2, 3),
        click=0.06, partials=(1, 2, 3, 4, 6, 8), rotor=True),
    "pia": Instrument(
        pitches=(40, 84), beat=(0.3, 0.6), attack=(0.002, 0.006), tilt=(0.8, 1.8), decay=(1.2, 2.5), held=(0.95, 1.5),
        voices=(1, 3), stretch=4e-4, click=0.05),
    "sax": Instrument(
        pitches=(46, 78), beat=(0.3, 0.7), attack=(0.02, 0.05), tilt=(0.5, 1.5), held=(0.7, 1), vibrato=(15, 35),
        vibrato_rate=(4, 5), tremolo=0.2, slide=(60, 150), breath=(0.02, 0.05), formants=(700, 1200, 2500)),
    "tru": Instrument(
        pitches=(54, 82), beat=(0.2, 0.45), attack=(0.03, 0.06), tilt=(0.4, 2.6), held=(0.4, 0.8), vibrato=(0, 8),
        slide=(0, 20), breath=(0.002, 0.006), click=0.02, formants=(1200, 2400)),
    "vio": Instrument(
        pitches=(58, 93), beat=(0.4, 0.9), attack=(0.05, 0.12), tilt=(0.8, 1.2), held=(0.95, 1.15), vibrato=(25, 45),
        vibrato_rate=(6, 7), tremolo=0.25, slide=(0, 40), breath=(0.01, 0.03), formants=(480, 1000, 3000)),
    "voi": Instrument(
        pitches=(48, 74), beat=(0.3, 0.8), attack=(0.05, 0.12), tilt=(0.8, 1.5), held=(0.85, 1.05), vibrato=(30, 80),
        vibrato_rate=(5, 6), tremolo=0.1, slide=(60, 200), breath=(0.01, 0.03), click=0.15, formants="sung"),
}  # fmt: skip


def clips(count=CLIPS, seed=0, progress=True):
    """Find a folder for `bppsa_nb.Instruments`: IRMAS if it was fetched, or else the stand-in; and say which."""
    try:
        found = downloads.find("irmas")
    except FileNotFoundError:
        print("IRMAS is not here (`bppsa-nb fetch irmas` downloads it). Synthetic instruments stand in for it.")
        return stand_in(count, seed, progress)
    print(f"IRMAS, in {found}")
    return found


def stand_in(count=CLIPS, seed=0, progress=True):
    """Return the stand-in's folder in `data/downloads/`, one for each count and seed, after `write_stand_in` to it."""
    folder = files.root() / "data" / "downloads" / f"stand-in-{_FORMAT}-{count}-{seed}"
    write_stand_in(folder, count, seed, progress)
    return folder


def write_stand_in(folder, count=CLIPS, seed=0, progress=True):
    """Write so many synthetic clips in IRMAS's layout; each depends on the seed and its own name only.

    Clips that are there are left as they are, so that a call that was interrupted can be repeated. A file
    `stand-in.json`, which is written first, says what the folder holds; FileExistsError if that is something else.
    """
    with extras.explained():
        import soundfile

    check_count("count", count, len(LABELS))
    check_count("seed", seed)
    folder = Path(folder)
    marker, note = folder / STAND_IN, {"format": _FORMAT, "count": int(count), "seed": int(seed)}
    if not folder.exists() or not any(folder.iterdir()):
        files.write_json(marker, note)
    holds = files.read_json(marker) if marker.is_file() else "something else"
    if holds != note:
        raise FileExistsError(f"{folder} holds {holds}, expected the stand-in {note}")

    def write(clip):
        label, recording, segment = clip
        with files.atomic_write(folder / _name(clip)) as file:
            waveform = play(LABELS[label], [seed, label, recording], segment)
            soundfile.write(file, waveform.T, SAMPLE_RATE, "PCM_16", format="WAV")

    left = [clip for clip in _numbers(count) if not (folder / _name(clip)).is_file()]
    if left:
        from bppsa_nb.machine.workers import in_threads

        bar = {"total": count, "initial": count - len(left), "desc": "stand-in", "unit": "clip"}
        for _ in in_threads(write, left, progress=progress, **bar):
            pass


def play(label, seed=0, segment=1):
    """Synthesize a clip [shape=(2, 132300), dtype=float32]: left and right channel at 44.1 kHz, within -1 ... 1.

    `label` is one of `LABELS`. The seed, an integer or several, says which recording: player, room and tuning; the
    segment says which clip of it: the melody.
    """
    check_choice("label", label, LABELS)
    instrument = INSTRUMENTS[label]
    recording = _Recording(instrument, generator(seed, "seed"))
    rng = np.random.default_rng([*np.atleast_1d(seed), segment])
    sound = np.zeros((2, SAMPLES), np.float32)
    noise = recording.color(rng.standard_normal(SAMPLES, np.float32))
    for start, length, pitches in recording.melody(rng):
        loudness = 10 ** (rng.uniform(-12, 0) / 20)
        for pitch in pitches:
            note = recording.note(pitch, length, loudness, noise, rng)
            place = rng.uniform(-1, 1) * recording.width + recording.place
            first, last = max(start, 0), min(start + len(note), SAMPLES)
            angle = np.pi / 4 * (1 + np.clip(place, -1, 1))
            for channel, gain in zip(sound, (np.cos(angle), np.sin(angle)), strict=True):
                channel[first:last] += np.float32(gain) * note[first - start : last - start]
    return recording.room(sound, rng)


class _Recording:
    """One player of an instrument in one room."""

    def __init__(self, instrument, rng):
        self.instrument = instrument
        self.beat = rng.uniform(*instrument.beat)
        self.attack = rng.uniform(*instrument.attack)
        self.tilt = np.array(instrument.tilt) + rng.uniform(-0.1, 0.1)
        self.decay = rng.uniform(*instrument.decay)
        self.vibrato = rng.uniform(*instrument.vibrato)
        self.vibrato_rate = rng.uniform(*instrument.vibrato_rate)
        self.breath = rng.uniform(*instrument.breath)
        self.drive = rng.uniform(*instrument.drive)
        self.rotor = rng.choice([rng.uniform(0.7, 1.2), rng.uniform(5.5, 7)])  # Hz: slow or fast
        self.tuning = rng.uniform(0, 12)  # the key, in semitones and fractions of one
        self.formant_shift = rng.uniform(0.94, 1.06)
        self.place, self.width = rng.uniform(-0.6, 0.6), rng.uniform(0, 0.3)
        self.echoes = [(int(d), g) for d, g in zip(rng.integers(300, 4000, 6), rng.uniform(0.05, 0.2, 6), strict=True)]
        self.hiss = 10 ** (rng.uniform(-75, -55) / 20)
        self.peak = 10 ** (rng.uniform(-15, -1) / 20)
        self.noise_center = rng.uniform(2000, 3000)

    def melody(self, rng):
        """Draw notes: the sample where each begins, its length in samples, and its pitches."""
        low, high = self.instrument.pitches
        grade = rng.uniform(low + 3, high - 3)
        time = -rng.uniform(0, self.beat)  # the clip begins anywhere in a note
        while time < SECONDS:
            step = self.beat * rng.choice([0.5, 1, 1, 1.5, 2])
            length = step * rng.uniform(*self.instrument.held)
            count = rng.integers(self.instrument.voices[0], self.instrument.voices[1] + 1)
            chord = grade + np.array([0, 7, 4, 12])[:count] if count > 1 else [grade]
            if rng.random() > 0.2 and time + length > 0:  # or a rest
                length = min(length, SECONDS - time + _FADE)
                yield int(time * SAMPLE_RATE), int(length * SAMPLE_RATE) + 1, [self.in_key(p) for p in chord]
            grade = np.clip(grade + rng.choice([-4, -2, -2, 0, 2, 2, 4]), low, high)
            time += step

    def in_key(self, pitch):
        """Move a pitch to the nearest note below in the recording's key."""
        octave, semitones = divmod(pitch - self.tuning, 12)
        return self.tuning + 12 * octave + _MAJOR[_MAJOR <= semitones][-1]

    def note(self, pitch, length, loudness, noise, rng):
        """Synthesize one note [shape=(samples,)]."""
        frequency = 440 * 2 ** ((pitch - 69) / 12)
        if self.decay:
            note = self.struck(frequency, length, loudness, rng)
        else:
            note = self.held(frequency, length, loudness, noise, rng)
        if self.instrument.click:
            size = min(int(0.03 * SAMPLE_RATE), len(note))
            burst = noise[:size] * np.exp(-_seconds(size) / np.float32(0.008))
            note[:size] += np.float32(self.instrument.click * loudness * rng.uniform(0.3, 1)) * burst
        fade = min(int(_FADE * SAMPLE_RATE), len(note))
        note[len(note) - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
        return note

    def struck(self, frequency, length, loudness, rng):
        """Add up decaying partials, the higher the sooner gone."""
        k = np.arange(1, 1 + min(24, int(16000 / frequency)))
        frequencies = frequency * k * np.sqrt(1 + self.instrument.stretch * k**2)
        tilt = self.tilt[0] + (1 - loudness) * np.ptp(self.tilt)
        amplitudes = self.amplitudes(frequencies, k, tilt, self.formants(rng))
        amplitudes = amplitudes * abs(np.sin(np.pi * k * rng.uniform(0.1, 0.25)))  # where the string is struck
        rates = (3 + 0.5 * (k - 1)) / (self.decay * (220 / frequency) ** 0.3)
        exponents = (2j * np.pi * frequencies - rates) / SAMPLE_RATE
        phases = amplitudes * np.exp(2j * np.pi * rng.random(len(k)))
        # exp(s (a + b)) = exp(s a) exp(s b): all samples of all partials as one product of matrices
        rows = np.exp(np.outer(np.arange(0, length, _BLOCK), exponents)) * phases
        columns = np.exp(np.outer(exponents, np.arange(_BLOCK)))
        note = (rows.astype(np.complex64) @ columns.astype(np.complex64)).real.ravel()[:length]
        rise = min(int(self.attack * SAMPLE_RATE) + 1, length)
        note[:rise] *= np.linspace(0, 1, rise, dtype=np.float32)
        return note * np.float32(loudness)

    def held(self, frequency, length, loudness, noise, rng):
        """Run through a periodic wave, brighter where it is louder."""
        t = _seconds(length)
        swing = np.sin(2 * np.pi * self.vibrato_rate * rng.uniform(0.95, 1.05) * t + rng.uniform(0, 6))
        swing *= np.minimum(t / np.float32(0.4), 1)  # a vibrato starts late
        cents = self.vibrato * swing - rng.uniform(*self.instrument.slide) * np.exp(-t / np.float32(0.06))
        phase = np.cumsum(np.exp2(cents / 1200), dtype=np.float64) * (frequency / SAMPLE_RATE * _TABLE)
        index = phase.astype(np.int32) & (_TABLE - 1)
        shape = 1 - np.exp(-t / np.float32(self.attack / 2))
        shape *= 1 + np.float32(rng.uniform(-0.5, 0.3)) * t / t[-1] if length > 1 else 1  # dies away or swells
        shape *= 1 + np.float32(self.instrument.tremolo) * swing
        bright, dark = self.tables(frequency, rng)
        share = (np.float32(loudness) * shape) ** 2
        wave = dark[index] + (bright[index] - dark[index]) * np.minimum(share, 1)
        return np.float32(loudness) * shape * (wave + np.float32(self.breath) * noise[:length])

    def tables(self, frequency, rng):
        """Make one period of the wave, as it is when loud and when soft, with equal phases."""
        k = np.arange(1, 1 + max(1, int(16000 / frequency)))
        partials = self.instrument.partials
        k = k[np.isin(k, partials)] if partials else k[:60]
        phases = np.exp(2j * np.pi * rng.random(len(k)))
        formants = self.formants(rng)
        for tilt in self.tilt:
            spectrum = np.zeros(_TABLE // 2 + 1, np.complex64)
            spectrum[k] = self.amplitudes(frequency * k, k, tilt, formants) * phases * (_TABLE / 2)
            yield np.fft.irfft(spectrum).astype(np.float32)

    def formants(self, rng):
        """Choose what is amplified, in Hz: the formants of the body, or those of a vowel."""
        chosen = self.instrument.formants
        return np.array(_VOWELS[rng.integers(len(_VOWELS))] if chosen == "sung" else chosen) * self.formant_shift

    def amplitudes(self, frequencies, k, tilt, formants):
        """Weigh partials, with unit power in all."""
        sung = self.instrument.formants == "sung"
        gain = np.full(len(k), 0.1 if sung else 1.0)
        for formant in formants:
            gain += (3 if sung else 2) / (1 + ((frequencies - formant) / (0.12 * formant + 40)) ** 2)
        amplitudes = gain * np.where(k % 2 == 0, self.instrument.even, 1.0) / k ** max(tilt, 0)
        return amplitudes / np.sqrt((amplitudes**2).sum())

    def color(self, noise):
        """Filter white noise: breath is loudest around some frequency."""
        spectrum = np.fft.rfft(noise)
        frequencies = np.arange(len(spectrum), dtype=np.float32) * (SAMPLE_RATE / len(noise))
        spectrum *= 1 / (1 + ((frequencies - np.float32(self.noise_center)) / 1500) ** 2)
        colored = np.fft.irfft(spectrum, len(noise)).astype(np.float32)
        return colored / colored.std()

    def room(self, sound, rng):
        """Add amplifier, loudspeaker, echoes, hiss and level."""
        if self.drive:
            sound = np.tanh(np.float32(self.drive) * sound)
            sound[:, 8:] = (sound[:, 8:] + sound[:, 4:-4] + sound[:, :-8]) / 3  # a loudspeaker is dull
        if self.instrument.rotor:
            turn = 2 * np.pi * self.rotor * _seconds(SAMPLES) + rng.uniform(0, 6)
            sound *= 1 + np.float32(0.35) * np.stack([np.sin(turn), np.sin(turn + 2)])
        wet = sound.copy()
        for i, (delay, gain) in enumerate(self.echoes):
            wet[i % 2, delay:] += np.float32(gain) * sound[(i // 2) % 2, :-delay]
        wet *= np.float32(self.peak / max(abs(wet).max(), 1e-6))
        return wet + np.float32(self.hiss * self.peak) * rng.uniform(-1, 1, wet.shape).astype(np.float32)


def _seconds(length):
    return np.arange(length, dtype=np.float32) / np.float32(SAMPLE_RATE)


def _numbers(count):
    for label in range(len(LABELS)):
        for i in range(count // len(LABELS) + (label < count % len(LABELS))):
            yield label, i // CLIPS_PER_RECORDING, 1 + i % CLIPS_PER_RECORDING


def _name(clip):
    label, recording, segment = clip
    return f"{LABELS[label]}/[{LABELS[label]}][nod]{1 + label + len(LABELS) * recording:04d}__{segment}.wav"
