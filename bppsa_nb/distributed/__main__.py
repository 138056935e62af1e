"""Measure on MPI ranks: ``mpiexec -n 4 python -m bppsa_nb.distributed --steps 30000``, or ``layers --depth 1024``."""

from bppsa_nb.distributed.program import main

if __name__ == "__main__":
    main()
