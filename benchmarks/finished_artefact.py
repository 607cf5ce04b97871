"""Finishes an artefact with a function that fills its directory, for releases that tests and benchmarks make.

manifest = finished_artefact(registry, "model", "sft_model", {"number": 1}, [base], fill)
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resources.artefacts.registry import Registry
from resources.manifests.manifest import Kind, Manifest


def finished_artefact(
    registry: Registry,
    kind: Kind,
    name: str,
    config: dict[str, Any],
    inputs: Sequence[Manifest],
    fill: Callable[[Path], object],
) -> Manifest:
    """What is finished already is left as it is, and becomes the current version."""
    draft = registry.draft(kind, name, name, ("model_ops/jobs/job.py",), config, [item.as_input() for item in inputs])
    if draft.finished is None:
        fill(draft.directory)
    return draft.finished or registry.finish(draft, {})
