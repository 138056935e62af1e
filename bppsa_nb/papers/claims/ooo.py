"""A claim about PipeDream's staleness (Appendix C)."""

from bppsa_nb.papers.bppsa import figure_12_staleness as staleness
from bppsa_nb.papers.claims.claim import PAPER, Claim, rows_of, verdict
from bppsa_nb.papers.claims.tolerance import TRAINED


def _stale(table):
    """Ask whether accuracy is lower in the end, of the longest training, at every learning rate."""
    gaps = staleness.gaps(table)
    gaps = rows_of(gaps, devices=4)
    texts = []
    for images, rows in gaps.groupby("images"):
        updates = images // staleness.BATCH * table.loc[table["images"] == images, "epoch"].max()
        points = [f"{100 * row.mean:.1f} ({100 * row.least:.1f} to {100 * row.most:.1f})" for row in rows.itertuples()]
        rates = ", ".join(f"{rate:g}" for rate in rows["lr"])
        texts.append(f"{', '.join(points)} points lower after {updates} updates with learning rates {rates}")
    longest = gaps[gaps["images"] == gaps["images"].max()]
    return "; ".join(texts), verdict((longest["mean"] > 0).all())


def claims():
    """List them, in the order of the report."""
    return [
        Claim(PAPER, "Appendix C, Figure 12", "PipeDream's stale weights cost accuracy with Adam.",
              "2.6 points top-1 (VGG-16, ImageNet, 4 devices)", "staleness", _stale, TRAINED),
    ]
