"""Differentiable graphs and four variants of the GRU: the article's figures, counted and timed."""

HEADING = "Optimizing RNNs with differentiable graphs (Baidu SVAIL, Part II)"
PARTS = "principles", "variants", "timings", "takeaways", "appendix"  # it has no numbered sections
