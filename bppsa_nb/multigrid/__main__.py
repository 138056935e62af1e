"""The program ``python -m bppsa_nb.distributed layers``: ``mpiexec -n 4 python -m bppsa_nb.multigrid --depth 1024``."""

import sys

from bppsa_nb.distributed.program import main

if __name__ == "__main__":
    main(["layers", *sys.argv[1:]])
