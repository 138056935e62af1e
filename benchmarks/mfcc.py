"""Compare `bppsa_nb.Instruments` with a plain loop over librosa, side by side in one run.

Run ``python benchmarks/mfcc.py``. The loop reads every file and computes the coefficients of either channel, no more;
ours also checks, normalizes and keeps them. All take turns, with nothing kept from the turn before; "kept" is a second
load, and "on one core" keeps BLAS from using the others. Reported are medians and quartiles of the rounds, and the
ratio of medians to the loop's.
"""

import argparse
import tempfile
import time
from pathlib import Path
from unittest import mock

import librosa
import numpy as np
import pandas as pd
import soundfile

import bppsa_nb as bp
from bppsa_nb.machine import files
from bppsa_nb.machine.workers import one_blas_thread
from bppsa_nb.papers import experiments, provenance
from bppsa_nb.training.datasets import audio, instruments


def competitors(folder, name):
    """Name what takes turns: functions that take an empty folder, in which nothing is kept yet."""
    features = audio.FEATURES[name]
    settings = {"n_mfcc": features.coefficients, "n_fft": features.window, "hop_length": features.hop}

    def loop(empty):
        for path in sorted(folder.glob("*/*.wav")):
            waveform, rate = soundfile.read(path, dtype="float32")
            for channel in waveform.T:
                librosa.feature.mfcc(y=channel, sr=rate, **settings)

    def loop_on_one_core(empty):
        with one_blas_thread():
            loop(empty)

    def ours(workers):
        def run(empty):
            with mock.patch.object(files, "root", lambda: empty):
                bp.Instruments(folder, name, workers=workers, progress=False)

        return run

    counts = sorted({1, 2, provenance.cores()})
    loops = {"librosa in a loop": loop, "the same, on one core": loop_on_one_core}
    return loops | {f"ours, workers={count}": ours(count) for count in counts}


def main():
    """Run the comparison, print it, and record the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clips", type=int, default=110, help="of the stand-in")
    parser.add_argument("--reference", action="store_true", help="record references, which git tracks")
    arguments = parser.parse_args()
    if arguments.reference:
        provenance.check_committed()
    folder = instruments.stand_in(arguments.clips)
    rows = []
    for name in audio.FEATURES:
        seconds = {}
        for warm in [True] + [False] * arguments.rounds:
            for who, run in competitors(folder, name).items():
                with tempfile.TemporaryDirectory() as empty:
                    seconds.setdefault(who, []).append(_time(run, Path(empty)))
                    if who.startswith("ours"):
                        seconds.setdefault("ours, kept", []).append(_time(run, Path(empty)))
            if warm:
                seconds = {}
        loop = np.median(seconds["librosa in a loop"])
        print(f"set {name}: {arguments.clips} clips of 3 s, {arguments.rounds} rounds")
        for who, values in seconds.items():
            low, median, high = np.quantile(values, [0.25, 0.5, 0.75]) / arguments.clips
            ratio = median * arguments.clips / loop
            print(f"  {who:<22} {1e3 * median:7.2f} ms a clip  [{1e3 * low:.2f}, {1e3 * high:.2f}]  {ratio:5.2f}x")
            times = {"seconds": median, "seconds_low": low, "seconds_high": high, "ratio": ratio}
            rows.append({"features": name, "name": who, "clips": arguments.clips} | times)
    table = pd.DataFrame(rows)
    table.attrs = {"backend": "cpu", "data": "stand-in", "librosa": librosa.__version__}
    with experiments.references(arguments.reference):
        print("recorded in", experiments.record(table, "mfcc", "quick", seed=0))


def _time(run, folder):
    start = time.perf_counter()
    run(folder)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
