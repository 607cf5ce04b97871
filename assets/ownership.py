"""Owners, asset groups and pools."""

OWNERS = ["team:model-platform"]
TRAFFIC, DATASETS, MODELS, DRAFTER, RELEASE = "traffic", "datasets", "models", "drafter", "release"

LAKE_POOL = "lake_writer"
"""Pool of steps that commit to the lake's tables: one at a time."""
WORKER_POOL = "worker"
"""Pool of steps that use a worker: one at a time on one machine."""
