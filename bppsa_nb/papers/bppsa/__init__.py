"""Back-propagation as a parallel scan (BPPSA): its figures and tables, and what we measured beside them."""

HEADING = "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm"
THESIS = "The thesis version, where its settings differ"
