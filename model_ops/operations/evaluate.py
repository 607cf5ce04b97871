"""Operation `evaluate`: losses, acceptance and scores of the models of a release (model_ops/evaluation/report.py)."""

from model_ops.evaluation import run as run
