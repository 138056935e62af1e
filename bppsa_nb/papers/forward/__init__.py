"""The forward pass in parallel: chunks that are repaired, beside Newton's method (DEER and those after it)."""

HEADING = "The forward pass in parallel: DEER, quasi-DEER, ParaRNN, and when Newton's method works"
