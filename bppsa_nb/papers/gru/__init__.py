"""Differentiable graphs and four variants of the GRU: the article's figures, counted and timed."""
