import numpy as np
import pytest

from bppsa_nb.papers.bppsa import error_over_length


@pytest.mark.parametrize("chain", error_over_length.CHAINS)
def test_errors_are_rounding_errors_for_every_method(chain):
    rows = error_over_length.errors({"chain": chain, "T": 33}, np.random.default_rng(0))
    assert {row["method"] for row in rows} == {"linear", "blelloch", "truncated"}
    assert {"numpy", "cpu"} <= {row["backend"] for row in rows}
    assert all(0 < row["error"] < 2e-6 for row in rows)


@pytest.mark.outer
def test_norm_preserving_chains_preserve_norms():
    jacobians_T = error_over_length.rotations(5, np.random.default_rng(0)).astype(float)
    products = jacobians_T.swapaxes(-1, -2) @ jacobians_T
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(20), products.shape), atol=1e-6)
