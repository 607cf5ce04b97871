"""Operation `speculator`: trains a drafter for the served target (model_ops/speculators/operation.py)."""

from model_ops.speculators import run as run
