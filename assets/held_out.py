"""The check that no held-out row was learnt, over every dataset in an artefact's ancestry."""

import dagster as dg

from resources.composing import held_out_in_training
from resources.manifests import Kind
from resources.workshop import Workshop


def nothing_held_out_is_learnt(workshop: Workshop, kind: Kind, name: str) -> dg.AssetCheckResult:
    """The result of the check for the current version of an artefact."""
    leaks = held_out_in_training(workshop.lake, workshop.current(kind, name))
    return dg.AssetCheckResult(
        passed=not leaks,
        description="; ".join(map(str, leaks)) or None,
        metadata={"held_out_rows_in_training": sum(leak.rows for leak in leaks)},
    )
