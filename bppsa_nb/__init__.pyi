from bppsa_nb.cells.cell import Cell as Cell
from bppsa_nb.cells.check_cell import check_cell as check_cell
from bppsa_nb.cells.gru import GRU as GRU
from bppsa_nb.cells.lstm import LSTM as LSTM
from bppsa_nb.cells.recurrent import Recurrent as Recurrent
from bppsa_nb.cells.rnn import RNN as RNN
from bppsa_nb.cells.unroll import unroll as unroll
from bppsa_nb.chains.backprop import backprop as backprop
from bppsa_nb.chains.chain import StructuredChain as StructuredChain
from bppsa_nb.chains.plan import explain as explain
from bppsa_nb.operands.pattern import BatchedCSR as BatchedCSR
from bppsa_nb.training.datasets import Bitstream as Bitstream
from bppsa_nb.training.datasets.audio import Instruments as Instruments
from bppsa_nb.training.datasets.images import Images as Images
from bppsa_nb.training.optimizers import SGD as SGD
from bppsa_nb.training.optimizers import Adam as Adam
from bppsa_nb.training.trainer import History as History
from bppsa_nb.training.trainer import Trainer as Trainer

__version__: str
