"""What is said of figures: of every reference, and from the table wherever it depends on what was measured."""

import numpy as np
import pandas
import pytest

from bppsa_nb.papers import experiments
from bppsa_nb.papers.text import listed, span

# Experiments that take words from their tables, and the measured columns that these depend on.
MEASURED = {
    "against_pytorch": ["step"],
    "along_training": ["corrections", "steps"],
    "concurrent_blocks": ["seconds", "at_once"],
    "corrections_over_length": ["corrections"],
    "crossover_map": ["seconds"],
    "depth_independence": ["cycles", "factor"],
    "eighty_epochs": ["loss", "seconds", "apart"],
    "error_over_length": ["error"],
    "executed": ["measured"],
    "figure_06": ["seconds_blelloch", "loss_blelloch", "loss_disturbed", "difference_conv1.weight"],
    "figure_07": ["loss_blelloch", "seconds_linear", "difference_bias_hh_l0"],
    "figure_08": ["backward"],
    "figure_09": ["bppsa", "chunked"],
    "figure_10": ["multiply_adds"],
    "figure_13": ["gradient", "accuracy_linear", "accuracy_blelloch", "drift", "drift_reversed"],
    "forward_over_ranks": ["seconds"],
    "forward_speed": ["ratio"],
    "four_hundred_epochs": ["loss", "seconds", "accuracy"],
    "growing_steps": ["seconds", "bytes"],
    "gru_throughput": ["seconds", "relative"],
    "gru_variants": ["relative"],
    "joint_regions": ["speedup", "bound"],
    "layer_parallel_training": ["accuracy", "error_two cycles"],
    "layer_scaling": ["seconds"],
    "lyapunov_turn": ["newton", "repairs", "exponent"],
    "newton_and_chunks": ["error", "exponent"],
    "peers": ["seconds"],
    "planned_products": ["planned"],
    "predicted_gpu": ["seconds"],
    "predicted_steps": ["gain"],
    "rank_scaling": ["total", "memory", "seconds"],
    "ranks_modelled": ["seconds"],
    "reorder_gradients": ["difference"],
    "retraining": ["accuracy"],
    "roads_over_depth": ["speedup", "backward_speedup", "error"],
    "roads_to_parallel_depth": ["error"],
    "roofline": ["of_peak"],
    "small_products": ["ratio"],
    "staleness": ["accuracy"],
    "steps_over_workers": ["steps"],
    "whole_steps": ["seconds"],
}


def composed(name):
    """List which of an experiment's words are functions of the table."""
    return [what for what in ("caption", "alt") if hasattr(experiments.load(name), what)]


def test_every_reference_can_be_read_and_described():
    for name in experiments.names():
        for device, scale in experiments.recordings(name):
            table = experiments.table(name, scale, device)
            assert isinstance(table, pandas.DataFrame)
            for text in experiments.words(table).values():
                assert len(text.split()) > 5 and "nan" not in text.split(), name


def test_experiments_that_take_words_from_tables_are_known():
    assert {name for name in experiments.names() if composed(name)} == set(MEASURED)


@pytest.mark.parametrize("name", MEASURED)
def test_words_follow_the_table(name):
    table = experiments.table(name)
    said, rng = experiments.words(table), np.random.default_rng(0)
    for column in MEASURED[name]:
        changed = table.copy()
        changed[column] = changed[column] * rng.uniform(2, 5, len(table)) + (changed[column] == 0)
        now = experiments.words(changed)
        assert any(now[what] != said[what] for what in composed(name)), column
    everything = table.copy()
    for column in MEASURED[name]:
        everything[column] = table[column] * rng.uniform(2, 5, len(table)) + (table[column] == 0)
    now = experiments.words(everything)
    assert [what for what in said if now[what] != said[what]] == composed(name)


def test_numbers_in_words():
    assert span(np.array([0.812, 0.5, 1.25]), "{:.1f}") == "0.5 to 1.2"
    assert span(pandas.Series([0.51, np.nan, 0.52]), "{:.1f}") == "0.5"
    assert [listed(list(words)) for words in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
