"""Which steps each rank holds."""

from bppsa_nb.checks import check_count


def partition(steps, ranks):
    """Share out the steps of a chain or sequence among ranks: consecutive parts, as even as can be.

    Parameters
    ----------
    steps : int
        At least 0.
    ranks : int
        At least 1. Where there are more of them than steps, some parts are empty.

    Returns
    -------
    list of slice [length=ranks]

    Raises
    ------
    TypeError, ValueError
        If one of them is no such number.

    Examples
    --------
    >>> partition(10, 4)
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    steps, ranks = check_count("steps", steps), check_count("ranks", ranks, 1)
    bounds = [steps * rank // ranks for rank in range(ranks + 1)]
    return [slice(start, stop) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]
