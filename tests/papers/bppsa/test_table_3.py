import numpy as np
import pytest
import soundfile
from measuring import measure

from bppsa_nb.papers.bppsa import table_3
from bppsa_nb.training.datasets import instruments
from bppsa_nb.training.datasets.audio import SAMPLE_RATE, STAND_IN, mfcc, read


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a clip, two seconds of noise and one of silence, and another that comes after it in the folder."""
    (tmp_path / table_3.LABEL).mkdir()
    waveform = np.random.default_rng(0).uniform(-0.5, 0.5, (3 * SAMPLE_RATE, 2))
    waveform[2 * SAMPLE_RATE :] = 0
    for name, samples in (("0001__1.wav", waveform), ("0001__2.wav", waveform[::-1])):
        soundfile.write(tmp_path / table_3.LABEL / name, samples, SAMPLE_RATE)
    monkeypatch.setattr(instruments, "clips", lambda progress: tmp_path)
    return tmp_path


def test_sizes_are_the_printed_ones(folder):
    (claim,), table = table_3.FIGURE.claims, measure(table_3)
    assert claim.holds(table_3.facts(table)) and not claim.holds(table_3.facts(table.assign(hop=512)))


def test_the_first_second_of_the_left_channel_is_kept(folder):
    table = measure(table_3)
    assert table.groupby("features")["frame"].max().to_dict() == {"S": 86, "M": 172, "L": 344}
    kept = table.filter(regex=r"^c\d+$")
    counts = kept.notna().sum(axis=1).groupby(table["features"]).unique()
    assert counts.map(list).to_dict() == {"S": [19], "M": [12], "L": [6]}
    whole = mfcc(read(folder / table_3.LABEL / "0001__1.wav"), "M")
    found = kept[table["features"] == "M"].dropna(axis=1)
    np.testing.assert_allclose(found, whole[:173, :12], atol=6e-4)
    left, right, *_ = table_3.plot(table).axes[0].images[0].get_extent()  # a frame is centered on its sample
    assert (left, right) == pytest.approx((-0.5 * 512 / 44100, 86.5 * 512 / 44100))


@pytest.mark.parametrize("data", ["real", "stand-in"])
def test_the_table_says_whether_the_sound_is_real(folder, data):
    if data == "stand-in":
        (folder / STAND_IN).touch()
    assert measure(table_3).attrs["data"] == data
