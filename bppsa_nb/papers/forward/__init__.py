"""The forward pass in parallel: chunks that are repaired, beside Newton's method (DEER and those after it)."""
