"""The digest of a table slice as an input of an artefact: what is in it, not how its files lie.

    slice_digest(tables, "cleaned_interactions", "math-tutor")
"""

from __future__ import annotations

import hashlib

from resources.sql_files import attach_slice, stream, workbench
from resources.tables import Tables

DIGESTS = ("interactions", "cleaned_interactions", "feedback", "judgements")
AS_SERVED = "served"


def slice_digest(tables: Tables, name: str, workload: str, as_served: bool = False) -> str:
    """sha256 over a workload's sorted (interaction_id, content_sha256): the digest of a table slice as an input.

    For cleaned_interactions each row's cleaned facts count as well, and feedback, which has no content_sha256, is
    hashed record by record. as_served: how each of the interactions was served (parameters, token ids) counts as well.
    Rewriting or compacting a table leaves it as it is. Raises ValueError for a table without such rows.
    """
    if name not in DIGESTS or (as_served and name != "interactions"):
        raise ValueError(f"table {name} has no slice digest; those that have: {', '.join(DIGESTS)}")
    digest = hashlib.sha256()
    with workbench() as connection:
        attach_slice(connection, tables, name, workload)
        for batch in stream(connection, f"digests/{AS_SERVED if as_served else name}"):
            digest.update("".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode())
    return digest.hexdigest()
