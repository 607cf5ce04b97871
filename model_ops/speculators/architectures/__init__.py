"""The drafter architectures. To add one, add its file to this folder and its line here.

Each file holds an `Architecture`: settings, network, checks and serving of one kind of drafter. Messages and docs list the
architectures in the order of these lines.
"""

# isort: off
from model_ops.speculators.architectures.eagle3 import EAGLE3 as EAGLE3
from model_ops.speculators.architectures.eagle3 import EAGLE3_1 as EAGLE3_1
from model_ops.speculators.architectures.p_eagle import P_EAGLE as P_EAGLE
from model_ops.speculators.architectures.dflash import DFLASH as DFLASH
from model_ops.speculators.architectures.medusa import MEDUSA as MEDUSA
from model_ops.speculators.architectures.mtp import MTP as MTP
from model_ops.speculators.architectures.draft_model import DRAFT_MODEL as DRAFT_MODEL
