"""What has which color, in every drawing: Okabe and Ito's palette, which color-blind readers can tell apart."""

# One color per role: what operands are, and how gradients, states or layers are found, or by whom.
COLORS = {"matrix": "#0072B2", "vector": "#E69F00", "identity": "#009E73", "baseline": "#555555"}
COLORS |= {"linear": "#D55E00", "blelloch": "#0072B2", "truncated": "#CC79A7", "chunked": "#56B4E9"}
COLORS |= {"newton": "#E69F00", "auto": "#009E73", "multigrid": "#009E73", "pipeline": "#E69F00"}
COLORS |= {"PyTorch": "#009E73", "JAX": "#E69F00"}
# In an order that keeps neighbors far apart.
CYCLE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")

# Of training's operations, in the order of a legend: what schedule.Timeline draws.
OPERATION_COLORS = {"F": "#56B4E9", "δO": "#E69F00", "δW": "#009E73", "S[F]": "#999999", "S[δO]": "#CC79A7"}
OPERATION_COLORS |= {"S[δW]": "#0072B2", "idle": COLORS["baseline"]}
OPERATION_NAMES = {"F": "forward F", "δO": "output gradient δO", "δW": "weight gradient δW", "S[F]": "send output"}
OPERATION_NAMES |= {"S[δO]": "send δO", "S[δW]": "send δW", "idle": "idle"}
