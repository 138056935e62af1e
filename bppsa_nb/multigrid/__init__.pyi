from bppsa_nb.multigrid.grids import partition as partition
from bppsa_nb.multigrid.model import ResidualModel as ResidualModel
from bppsa_nb.multigrid.solver import Solution as Solution
from bppsa_nb.multigrid.solver import solve as solve
from bppsa_nb.multigrid.solver import solve_adjoint as solve_adjoint
from bppsa_nb.networks.residual import ResidualNetwork as ResidualNetwork
