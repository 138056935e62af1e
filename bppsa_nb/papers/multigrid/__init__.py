"""Layer-parallel training by nonlinear multigrid: the figures, and the other ways to train in parallel beside it."""

HEADING = "Layer-parallel training of deep residual networks via nonlinear multigrid"
