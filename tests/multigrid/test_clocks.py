import numpy as np
import pytest

from bppsa_nb.multigrid.clocks import Costs, simulate

UNIT = Costs(forward=1, adjoint=1, gradient=0)


def test_two_ranks_by_hand():
    """Eight layers in blocks of two, two levels: a rank has 4 fine steps and 2 coarse ones."""
    message, latency, k = 0.25, 0.125, 3
    costs = Costs(1, 2, 3, message, latency)
    inference, training = simulate(8, 2, costs, cycles=k, coarsening=2, levels=2)
    # A cycle: a message, 4 steps, 2 coarse steps of restriction; 2 and 2 from rank to rank after another message that
    # comes later than the first; 4 steps. All then meet for the norm, as they do for their arguments before.
    forward = 4 + k * (4 + 2 + 2 + message + 2 + 4 + latency) + latency
    np.testing.assert_allclose(inference, [[forward] * 2, [4 + k * 12] * 2])
    backward = 2 * 4 + k * (2 * (4 + 2 + 2 + 2 + 4) + message + latency) + latency
    whole = forward + message + backward + 4 * 3
    np.testing.assert_allclose(training, [[whole] * 2, [4 + k * 12 + 2 * (4 + k * 12) + 4 * 3] * 2])


def test_the_second_of_two_ranks_has_more_to_do():
    """Ten layers, two levels: 4 fine steps and 2 coarse ones, then 6 and 3; who has more is last, or first."""
    message = 0.25
    inference, training = simulate(10, 2, Costs(1, 1, 0, message), cycles=3, coarsening=2, levels=2)
    # The second rank is never waiting but for the first message of a cycle, which it needs none of in the first cycle.
    forward = 6 + 6 + 3 + 3 + 6 + 2 * (message + 6 + 3 + 3 + 6)
    np.testing.assert_allclose(inference[0], forward)
    # Backward it goes first; the other one waits for it on the coarsest level.
    backward = 6 + 3 * (6 + 3 + 3 + message + 2 + 4)
    np.testing.assert_allclose(training[0], forward + message + backward)
    np.testing.assert_allclose(training[1], [2 * (4 + 3 * 12), 2 * (6 + 3 * 18)])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_serial_propagation_goes_from_rank_to_rank(ranks):
    costs = Costs(1, 2, 3, message=0.25)
    inference, training = simulate(10, ranks, costs, levels=1)
    np.testing.assert_allclose(inference[0], 10 + 0.25 * (ranks - 1))
    assert inference[1].sum() == 10
    assert training[1].sum() == 10 * (1 + 2 + 3)
    if ranks == 5:
        told = 0.25 * np.ceil(np.log2(5))  # the gradient of the loss
        assert training[0].max() == inference[0].max() + told + 20 + 0.25 * 4 + 2 * 3


@pytest.mark.parametrize("relaxation", ["F", "FC", "FCF"])
@pytest.mark.parametrize("cycle", ["V", "F"])
@pytest.mark.parametrize("depth", [64, 61])
def test_ranks_share_the_work_of_one(relaxation, cycle, depth):
    how = {"cycles": 2, "coarsening": 2, "levels": 4, "relaxation": relaxation, "cycle": cycle}
    (now, alone), _ = simulate(depth, 1, UNIT, **how)
    assert now == alone
    seconds = []
    for ranks in 2, 3, 8:
        (now, computed), _ = simulate(depth, ranks, UNIT, **how)
        assert computed.sum() == alone and (now >= computed).all()
        seconds.append(now.max())
    assert alone > seconds[0] > seconds[1] > seconds[2] > alone / 8


def test_messages_only_delay():
    quick, slow = (simulate(64, 4, Costs(1, 1, 1, m, m / 2), levels=3) for m in (0.0, 0.5))
    for (now, computed), (later, same) in zip(quick, slow, strict=True):
        assert (later > now).all() and (computed == same).all()


def test_what_cannot_be_run_cannot_be_simulated():
    with pytest.raises(ValueError, match="ranks must be at most the 4 steps"):
        simulate(64, 5, UNIT, levels=3)
    with pytest.raises(ValueError, match="relaxation must be one of"):
        simulate(64, 2, UNIT, relaxation="C")
