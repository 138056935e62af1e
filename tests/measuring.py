"""An experiment's table, as tests have it measured."""

import numpy as np
import pytest

from bppsa_nb.papers.progress import Progress


def measure(module, scale="quick", **constants):
    """Measure an experiment with the constants of its module that are given."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(module, name, value)
        return module.measure(scale, np.random.default_rng(0), Progress(show=False))
