"""The drafter architectures. To add one, add its folder beside this one and its line here.

Each `architecture.py` holds an `Architecture`: settings, network, checks and serving of one kind of drafter. Messages and docs
list the architectures in the order of these lines.
"""

# isort: off
from model_ops.speculators.eagle3.architecture import EAGLE3 as EAGLE3
from model_ops.speculators.eagle3.architecture import EAGLE3_1 as EAGLE3_1
from model_ops.speculators.dflash.architecture import DFLASH as DFLASH
from model_ops.speculators.mtp.architecture import MTP as MTP
from model_ops.speculators.standalone.architecture import DRAFT_MODEL as DRAFT_MODEL
