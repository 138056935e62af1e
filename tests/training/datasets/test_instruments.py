from collections import Counter

import numpy as np
import pytest
import soundfile
from damage import contents
from texts import beside, refuses

from bppsa_nb.training.datasets import audio, downloads, instruments
from bppsa_nb.training.datasets.audio import LABELS
from bppsa_nb.training.datasets.instruments import play, stand_in

TEXTS = beside(__file__)


@pytest.fixture
def quick(monkeypatch):
    """Replace the synthesis by a constant that depends on its arguments; count the calls."""
    calls = []

    def constant(label, seed, segment):
        calls.append((label, tuple(seed), segment))
        value = (hash(calls[-1][1:]) + LABELS.index(label)) % 1000 / 2000
        return np.full((2, 132300), value)

    monkeypatch.setattr(instruments, "play", constant)
    return calls


@pytest.mark.parametrize("label", LABELS)
def test_an_instrument_plays(label):
    sound = play(label, [0, 1], 1)
    assert sound.shape == (2, 132300) and np.isfinite(sound).all() and 0.1 < abs(sound).max() <= 1
    assert (sound.std(axis=1) > 1e-3).all() and not np.array_equal(*sound)
    np.testing.assert_array_equal(sound, play(label, [0, 1], 1))
    for other in (play(label, [1, 1], 1), play(label, [0, 2], 1), play(label, [0, 1], 2)):
        assert abs(np.corrcoef(sound[0], other[0])[0, 1]) < 0.5


@pytest.mark.parametrize("label", TEXTS["sounds"])
def test_sounds_never_change(label):
    """Recorded results name a seed; the same seed must give the same clips until `_VERSION` changes."""
    left, right = play(label, [0, 1], 1)
    found = [*left.reshape(4, -1).std(axis=1), np.diff(right).std()]
    np.testing.assert_allclose(found, TEXTS["sounds"][label], rtol=2e-3)


def test_stand_in_is_laid_out_as_irmas_is(project):
    folder = stand_in(36, seed=5, progress=False)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.wav"))
    assert len(names) == 36 and tuple(instruments.TIMBRES) == LABELS
    assert Counter(name[:3] for name in names) == Counter({label: 4 if label in LABELS[:3] else 3 for label in LABELS})
    assert len({audio._recording(name) for name in names}) == 22
    assert len({audio._recording(name).split("/")[1] for name in names}) == 22
    assert "cel/[cel][nod]0001__1.wav" in names and "cel/[cel][nod]0012__2.wav" in names
    for name in names:
        info = soundfile.info(folder / name)
        assert (info.samplerate, info.channels, info.frames, info.subtype) == (44100, 2, 132300, "PCM_16")
    data = audio.Instruments(folder, progress=False)
    assert data.x.shape == (259, 36, 38) and np.isfinite(data.x).all()
    assert [part.data for part in (data, *data.split())] == 3 * ["stand-in"]
    sound = soundfile.read(folder / names[0], dtype="float32")[0].T
    np.testing.assert_allclose(sound, play("cel", [5, 0, 0], 1), atol=1e-4)
    assert len({(folder / name).read_bytes() for name in names}) == 36


def test_an_interrupted_stand_in_goes_on_where_it_was_and_is_the_same(project, quick, monkeypatch):
    play, left = instruments.play, iter(range(7))

    def stop(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return play(*args)

    with monkeypatch.context() as patch:
        patch.setattr(instruments, "play", stop)
        with pytest.raises(KeyboardInterrupt):
            stand_in(22, progress=False)
    (folder,) = (project / "data" / "downloads").iterdir()
    part = contents(folder)
    assert audio.STAND_IN in part and 1 < len(part) < 23
    with pytest.raises(ValueError, match="there is none in"):
        audio.Instruments(folder, progress=False)
    quick.clear()
    assert stand_in(22, progress=False) == folder
    assert len(quick) == 23 - len(part) == len(set(quick)) and part.items() <= contents(folder).items()
    assert len(contents(folder)) == 23


def test_counts_and_seeds_have_folders_of_their_own(project, quick):
    folders = [stand_in(count, seed, progress=False) for count, seed in ((11, 0), (11, 1), (12, 0))]
    assert len(set(folders)) == 3
    assert contents(folders[0])["cel/[cel][nod]0001__1.wav"] == contents(folders[2])["cel/[cel][nod]0001__1.wav"]
    assert {call[1][0] for call in quick} == {0, 1}


@pytest.mark.parametrize("call, message", TEXTS["refused"])
def test_what_is_refused_is_named(project, call, message):
    refuses(call, message, globals())
    assert not list(project.iterdir())


def test_clips_are_irmas_where_it_is_and_say_which(project, quick, capsys):
    found = instruments.clips(11, progress=False)
    assert found == stand_in(11, progress=False)
    assert "Synthetic instruments stand in for it" in capsys.readouterr().out
    (project / "data" / "downloads" / "IRMAS-TrainingData").mkdir()
    assert instruments.clips(11) == downloads.find("irmas") == project / "data" / "downloads" / "IRMAS-TrainingData"
    assert capsys.readouterr().out == f"IRMAS, in {downloads.find('irmas')}\n"
