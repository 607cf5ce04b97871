"""The drafter architectures, in the order of messages and docs. To add one, add its folder beside this one and its line
here."""

# isort: off
from model_ops.speculators.eagle3.architecture import EAGLE3 as EAGLE3
from model_ops.speculators.eagle3.architecture import EAGLE3_1 as EAGLE3_1
from model_ops.speculators.dflash.architecture import DFLASH as DFLASH
from model_ops.speculators.mtp.architecture import MTP as MTP
from model_ops.speculators.standalone.architecture import DRAFT_MODEL as DRAFT_MODEL
