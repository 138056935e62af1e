"""The puzzles in the order in which to solve them: what they are called, and how many points they are worth."""

SCANS = {  # they need nothing but Python: notebook 00, and a page of the book
    "totals": ("Running totals", 1),
    "reduce": ("A tree", 2),
    "before": ("What a place knows on the way down", 1),
    "down_sweep": ("The way down", 2),
    "pairs": ("Any length", 2),
    "diamond": ("Multiplication in reverse", 1),
    "affine": ("A loss at every step", 1),
    "segmented": ("Lists that begin anew", 2),
    "chunks": ("Few workers", 3),
    "exscan": ("Over machines", 2),
    "left_out": ("A scan that stops early", 2),
    "newton_step": ("A Newton step", 3),
}
ARRAYS = {  # they need NumPy, too: notebook 02b
    "rnn_jacobian": ("The Jacobian of an RNN", 1),
    "gru_jacobian": ("The Jacobian of a GRU", 3),
    "weight_gradient": ("Gradients of weights, all at once", 2),
    "sparse_product": ("A planned product of sparse matrices", 2),
}
KERNELS = {  # and a CUDA compiler
    "up_level": ("A kernel for the way up", 3),
    "down_level": ("A kernel for the way down", 3),
    "up_level_of_batch": ("A batch", 1),
    "detective": ("The detective", 2),
    "race": ("A race, on purpose", 2),
    "coalesced": ("A quarter of the sectors", 2),
    "padded": ("Bank conflicts", 2),
    "warp_sum": ("The sum of a warp", 3),
}
ALL = SCANS | ARRAYS | KERNELS
NAMES = tuple(ALL)
POINTS = {name: points for name, (_, points) in ALL.items()}


def title(name):
    """Return number and title of a puzzle: "2. A tree"."""
    return f"{NAMES.index(name) + 1}. {ALL[name][0]}"


def following(name):
    """Return the puzzle after a puzzle, or None after the last one."""
    place = NAMES.index(name) + 1
    return NAMES[place] if place < len(NAMES) else None
