from bppsa_nb.distributed.solver import Solution as Solution
from bppsa_nb.distributed.solver import solve as solve
from bppsa_nb.machine.process import partition as partition
