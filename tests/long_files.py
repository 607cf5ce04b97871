"""A plugin of pytest: the files that take longest are run first, so that all processes of a run end at about the same time."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONG_FILES = (
    "pipelines/test_whole_graph.py",
    "pipelines/demo/test_quick_demo.py",
    "resources/reading/test_ingest.py",
    "model_ops/parallel/test_layouts.py",
    "model_ops/parallel/test_drafter_layouts.py",
    "resources/records/test_openai_batch.py",
    "resources/records/test_normalised.py",
    "model_ops/models/test_architectures.py",
    "model_ops/test_speculator.py",
    "model_ops/training/test_killed_processes.py",
    "model_ops/test_failing_processes.py",
    "pipelines/checks/test_worth.py",
    "resources/records/test_formats.py",
    "resources/records/test_example_prompts.py",
    "resources/curating/test_clean.py",
    "resources/records/test_example_formats.py",
    "model_ops/test_rollout_engines.py",
    "resources/catalog/test_catalog.py",
    "resources/composing/test_preferences.py",
    "model_ops/test_rft.py",
    "pipelines/init/test_init_is_worth_it.py",
)
"""Files of which a process that meets them last would end long after the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: with `--dist loadfile` each process takes the next file when it has done one."""
    places = {TESTS / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
