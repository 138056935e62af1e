import itertools
import os
import shutil
from importlib import metadata
from pathlib import Path

import librosa
import numpy as np
import pytest
import soundfile
from damage import contents
from texts import beside, refuses

import bppsa_nb as bp
from bppsa_nb.training.datasets import ArrayDataset, audio
from bppsa_nb.training.datasets.audio import FEATURES, LABELS, Instruments, mfcc

SAMPLES, TEXTS = 3 * 44100, beside(__file__)


def noise(samples=SAMPLES, seed=0, channels=2):
    return 0.1 * np.random.default_rng(seed).standard_normal((channels, samples), np.float32)


def write(path, waveform, rate=44100, subtype="PCM_16"):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, waveform.T, rate, subtype)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two recordings of every instrument: of the first two clips, of the second one. Half of them a sample short."""
    folder = tmp_path_factory.mktemp("audio")
    for i, label in enumerate(LABELS):
        for j, name in enumerate(["0001__1", "0001__2", "0002__1"]):
            write(folder / label / f"[{label}][nod]{name}.wav", noise(SAMPLES - (i + j) % 2, seed=3 * i + j))
    return folder


@pytest.fixture
def folder(written, tmp_path, project):
    """Give a copy of the clips that a test may spoil, and an empty project."""
    return Path(shutil.copytree(written, tmp_path / "clips"))


@pytest.fixture
def watched(monkeypatch):
    """Replace `mfcc` by the mean of a clip, which is quick, and note those of clips that were computed."""
    means = []

    def mean(waveform, features):
        means.append(waveform.mean())
        return np.full((FEATURES[features].frames, FEATURES[features].size), waveform.mean())

    monkeypatch.setattr(audio, "mfcc", mean)
    return means


def load(folder, *args, **kwargs):
    return Instruments(folder, *args, **{"progress": False} | kwargs)


def check_clips(data, folder):
    """See that what `watched` made of each file is where the file's name is."""
    means = [soundfile.read(folder / name, dtype="float32")[0].T.mean() for name in data.files]
    np.testing.assert_array_equal(data.x, np.broadcast_to(np.array(means)[:, None], data.x.shape))


# Features


@pytest.mark.parametrize("samples", [SAMPLES - 1, SAMPLES])
@pytest.mark.parametrize("name", FEATURES)
def test_features_are_librosa_s_normalized(name, samples):
    """What the settings of Table 3 are stands in `test_published`."""
    features, waveform = FEATURES[name], noise(samples) * np.linspace(0.01, 1, samples, dtype=np.float32)
    waveform[1, : samples // 3] = 0
    settings = {"n_mfcc": features.coefficients, "n_fft": features.window, "hop_length": features.hop}
    plain = [librosa.feature.mfcc(y=channel, sr=44100, **settings)[1:] for channel in waveform]
    plain = np.concatenate(plain).T.astype(np.float64)
    result = mfcc(waveform, name)
    assert result.shape == (features.frames, features.size) and result.dtype == np.float32
    np.testing.assert_allclose(result, (plain - plain.mean(axis=0)) / plain.std(axis=0), atol=1e-4)


@pytest.mark.parametrize("name", FEATURES)
def test_silence_is_zero(name):
    assert not mfcc(np.zeros((2, SAMPLES), np.float32), name).any()
    # Below librosa's floor of 1e-10 in power, sound is silence.
    assert not mfcc(1e-9 * noise(), name).any()


def test_rounding_is_not_blown_up(monkeypatch):
    constant = np.full((20, 259), -11.7, np.float32)
    constant[3, ::2] = np.nextafter(constant[3, 0], np.float32(0))
    monkeypatch.setattr(librosa.feature, "mfcc", lambda **settings: constant)
    assert not mfcc(noise()).any()


def test_a_quiet_channel_is_not_cut_off_by_a_loud_one():
    waveform = noise()
    waveform[1] *= 1e-4  # 80 dB
    alone = np.stack([waveform[1], waveform[1]])
    np.testing.assert_array_equal(mfcc(waveform)[:, 19:], mfcc(alone)[:, 19:])


@pytest.mark.parametrize("call, message", TEXTS["refused"])
def test_what_is_refused_is_named(call, message):
    refuses(call, message, globals())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_loudest_sound_does_not_overflow(dtype):
    square = np.where(np.arange(SAMPLES) // 50 % 2, 1e10, -1e10) * np.linspace(0.5, 1, SAMPLES)
    assert np.isfinite(mfcc(np.stack([square, square]).astype(dtype))).all()


# Data set


def test_instruments_hold_the_features_of_every_file(written, project):
    data = load(written)
    assert bp.Instruments is Instruments
    assert len(data) == 33 and data.x.shape == (259, 33, 38) and data.x.dtype == np.float32
    assert data.files == tuple(sorted(str(path.relative_to(written).as_posix()) for path in written.rglob("*.wav")))
    assert [LABELS[y] for y in data.y] == [name[:3] for name in data.files]
    assert (data.data, data.features) == ("real", FEATURES["S"])
    for i in (0, 13, 32):
        waveform = soundfile.read(written / data.files[i], dtype="float32")[0].T
        np.testing.assert_allclose(data.x[:, i], mfcc(waveform, "S"), atol=1e-4)  # BLAS rounds as it has threads


def test_features_are_read_only_and_batches_are_a_data_set_s(folder, watched):
    data = load(folder)
    assert Instruments.batch is ArrayDataset.batch
    for part in (data, *data.split(0.5)):
        with pytest.raises(ValueError, match="read-only"):
            part.x[0, 0, 0] = 1
        part.batch([0])[0][:] = 1  # a copy


def test_clips_are_known_by_their_names_in_any_case_and_any_encoding(folder, watched):
    for other in ("README.txt", "cel/._[cel]0001__1.wav", "cel/notes.txt", "drums/[dru]0001__1.wav"):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_text("no clip")
    clips = sorted((folder / "voi").iterdir())
    os.rename(clips[0], clips[0].with_suffix(".WAV"))
    os.rename(clips[1], clips[1].with_suffix(".Wav"))
    odd = "voi/" + os.fsdecode(b"bad\xff__1.wav")
    try:
        os.rename(clips[2], folder / odd)
    except OSError:  # macOS has no such names
        odd = f"voi/{clips[2].name}"
    data = load(folder)
    assert len(data) == len(watched) == 33 and {odd, "voi/[voi][nod]0001__1.WAV"} < {*data.files}
    assert load(folder).files == data.files and len(watched) == 33
    train, held_out = data.split(0.5)
    assert ("voi/[voi][nod]0001__1.WAV" in train.files) == ("voi/[voi][nod]0001__2.Wav" in train.files)


@pytest.mark.parametrize("spoil, reason", TEXTS["bad"].values(), ids=TEXTS["bad"])
def test_a_file_that_cannot_be_used_is_named(folder, watched, project, spoil, reason):
    name = "flu/[flu][nod]0001__2.wav"
    eval(spoil, globals() | {"path": folder / name})
    with pytest.raises(ValueError, match="1 of 33 files cannot be used: ") as stop:
        load(folder)
    assert f"{name}: " in str(stop.value) and reason in str(stop.value)
    assert not cached(project)


def test_sound_that_is_not_finite_is_named(folder, project):
    write(folder / "flu/[flu][nod]0001__2.wav", noise() * np.nan, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"1 of 33 files cannot be used: flu/\[flu\]\[nod\]0001__2.wav: .*peak is nan"):
        load(folder)


def test_files_that_cannot_be_used_are_counted(folder, watched):
    for path in sorted(folder.rglob("*.wav"))[:7]:
        path.write_text("no audio")
    with pytest.raises(ValueError, match="7 of 33 files cannot be used: .*and 2 more") as stop:
        load(folder)
    assert str(stop.value).count("corrupt") == 5


def test_the_folder_must_be_laid_out_as_irmas_is(folder):
    shutil.rmtree(folder / "org")
    for path in (folder / "voi").iterdir():
        path.rename(path.with_suffix(".mp3"))
    with pytest.raises(ValueError, match="must have .wav files in each .* cel, cla, .*; there is none in org, voi$"):
        load(folder)


# What is kept


def test_a_second_load_computes_nothing_and_changes_nothing(folder, watched, project, monkeypatch):
    there = contents(folder)
    first, second = load(folder), load(folder)
    assert len(watched) == 33 and len(cached(project)) == 1 and contents(folder) == there
    np.testing.assert_array_equal(first.x, second.x)
    assert first.files == second.files
    load(folder, "M")
    monkeypatch.setattr(metadata, "version", lambda package: "0.0.1")
    load(folder)  # by another librosa
    assert len(watched) == 3 * 33


def test_files_that_change_come_and_go(folder, watched):
    load(folder)
    path = folder / "gac" / "[gac][nod]0001__1.wav"
    status = path.stat()
    write(path, noise(SAMPLES - 1, seed=99))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size  # neither date nor size tell
    check_clips(load(folder), folder)
    write(folder / "cel" / "[cel][nod]0000__1.wav", noise(seed=50))
    (folder / "voi" / "[voi][nod]0001__1.wav").unlink()
    data = load(folder)
    assert len(watched) == 3 * 33 and len(data) == 33 and data.files[0] == "cel/[cel][nod]0000__1.wav"
    check_clips(data, folder)


def cached(project):
    return sorted((project / "data" / "downloads" / "features").glob("*.npz"))


def test_damaged_features_are_computed_anew(folder, watched, project, capsys):
    before, (path,) = load(folder), cached(project)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for said in (f"{path} is not an .npz file written by bppsa_nb.Instruments", ""):
        np.testing.assert_array_equal(load(folder).x, before.x)
        assert said in (printed := capsys.readouterr().err) and bool(said) == bool(printed)
        assert len(watched) == 66


def test_features_that_cannot_be_cached_are_an_error(folder, watched, project):
    features = project / "data" / "downloads" / "features"
    features.parent.mkdir(parents=True)
    features.write_text("a file")
    with pytest.raises(OSError, match=f"{features}"):
        load(folder)


def test_of_an_interrupted_load_nothing_is_kept(folder, project, monkeypatch):
    begun = iter(range(10))

    def stop(waveform, features):
        if next(begun, None) is None:
            raise KeyboardInterrupt
        return 0

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(audio, "mfcc", stop)
        load(folder)
    assert not cached(project)


# Splitting


@pytest.fixture
def recordings(project, watched, tmp_path, monkeypatch):
    """Give a data set of 8 recordings per instrument, of 1 to 4 clips, no two alike."""
    levels = itertools.count()
    monkeypatch.setattr(audio, "read", lambda path: np.broadcast_to(np.float32(next(levels)), (2, SAMPLES)))
    for i, label in enumerate(LABELS):
        (tmp_path / "recordings" / label).mkdir(parents=True)
        for recording, clip in itertools.product(range(8), range(4)):
            if clip <= (i + recording) % 4:
                drums = "dru" if clip % 2 else "nod"
                name = f"{recording + i:03d}__[{label}][{drums}][cla]{8 * i + recording:04d}__{clip + 1}.wav"
                (tmp_path / "recordings" / label / name).touch()
    return load(tmp_path / "recordings")


def number(name):
    return name.rpartition("__")[0].rpartition("]")[2]


@pytest.mark.parametrize("share", [0.01, 0.5, *(pytest.param(s, marks=pytest.mark.outer) for s in (0.25, 0.99))])
def test_split_keeps_recordings_together_and_instruments_balanced(recordings, share):
    train, held_out = recordings.split(share, rng=1)
    assert sorted(train.files + held_out.files) == sorted(recordings.files)
    assert not {number(name) for name in train.files} & {number(name) for name in held_out.files}
    for label in range(11):
        here, there, count = (train.y == label).sum(), (held_out.y == label).sum(), (recordings.y == label).sum()
        assert here and there
        if 0.2 < share < 0.8:
            assert abs(there - share * count) <= 2  # half of the longest recording
    for part in (train, held_out):
        assert part.x.shape == (259, len(part), 38)
        rows = [recordings.files.index(name) for name in part.files]
        assert rows == sorted(rows)
        np.testing.assert_array_equal(part.x, recordings.x[:, rows])
        np.testing.assert_array_equal(part.y, recordings.y[rows])
        assert (part.data, part.features) == (recordings.data, recordings.features)


def test_split_depends_on_its_seed(recordings):
    def held_out(rng):
        return recordings.split(rng=rng)[1].files

    assert held_out(3) == held_out(3) == held_out(np.random.default_rng(3))
    assert held_out(3) != held_out(4)


def test_split_refuses(recordings, folder):
    for share in (0, 1, np.nan, "a"):
        with pytest.raises((TypeError, ValueError), match="share must be .*, got"):
            recordings.split(share)
    for path in folder.glob("pia/*0002__1.wav"):
        path.unlink()
    with pytest.raises(ValueError, match=r"cannot split: pia has only one recording \(pia/0001\)"):
        load(folder).split()


@pytest.mark.parametrize("name, recording", TEXTS["recordings"])
def test_the_recording_is_what_stands_before_the_number_of_the_clip(name, recording):
    assert audio._recording(name) == recording
