"""Removes everything that people and models said in some sources, once weights have learnt it: only counts stay.

Rows go as `forget` erases them, with three differences: no tombstone is written, for nothing forbids these records; ids go to
the table `retired`, so that lineage still names objects and lines and a later erasure finds them; and a dataset keeps the
digest that it was made with, so what learnt the rows is neither stale nor tainted.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from resources.artefacts import current_manifests
from resources.digests import key_check
from resources.erasing.erasure import ErasurePlan, erase_sources
from resources.erasing.journal import PendingErasure
from resources.lake import PARTITIONS, SCHEMAS, LakeLayout, Tables, attach_files, rows, workbench

_NOT_TRAINED = {"tiny_base", "import_base"}
"""Operations of models that learn no row of traffic, or are only where training begins."""


def is_learnt(lake: LakeLayout, workload: str) -> bool:
    """Whether a model was trained after the last rows were read."""
    newest = Tables(lake).written_at("interactions", workload)
    if newest is None:
        return False
    return any(
        manifest.kind == "model" and manifest.op not in _NOT_TRAINED and manifest.created_at > newest
        for manifest in current_manifests(lake, workload).values()
    )


def rows_with_text(lake: LakeLayout, workload: str, sources: Sequence[str]) -> dict[str, int]:
    """Rows of these sources in the tables that hold text, by table."""
    tables = Tables(lake)
    with workbench() as connection:
        for name in ("interactions", "feedback", "quarantine", "objects"):
            attach_files(connection, name, SCHEMAS[name], tables.files(name), PARTITIONS[name])
        counts = rows(connection, "erasing/retention/rows_with_text", workload=workload, sources=list(sources)).to_pylist()
    return {row["table_name"]: row["rows"] for row in counts if row["rows"]}


def keep_counts_only(lake: LakeLayout, workload: str, sources: Sequence[str]) -> ErasurePlan:
    """Removes them. What was removed before a kill stays removed; the next run completes it. Raises LakeInUse while a run is at
    work."""
    return erase_sources(
        lake,
        PendingErasure(
            erasure=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
            kind="source",
            hashes=[],
            key_check=key_check(),
            who="retention",
            reason="counts_only",
            vacuum=True,
            workload=workload,
            sources=list(sources),
        ),
    )
