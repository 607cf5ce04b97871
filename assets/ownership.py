"""Owners, asset groups and pools."""

OWNERS = ["team:model-platform"]
TRAFFIC, DATASETS, MODELS, DRAFTER, RELEASE = "traffic", "datasets", "models", "drafter", "release"

LAKE_POOL = "lake_writer"
"""Steps that commit to the lake's tables: one at a time."""
WORKER_POOL = "worker"
"""Steps that keep a worker busy: one at a time on one machine."""
