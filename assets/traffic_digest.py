"""traffic_digest: one digest of all days that training reads, so that the graph shows what is out of date after new logs."""

import hashlib

import dagster as dg

from assets.ownership import LAKE_POOL
from assets.stage_asset import stage_asset
from resources.digests import AS_SERVED, slice_digest
from resources.workshop import Workshop

READ = ("interactions", "feedback", "cleaned_interactions")
"""Tables that training reads and that the job `logs` makes."""


@stage_asset(*READ, sources=("resources/digests/slices.py",), kinds={"deltalake"}, pool=LAKE_POOL)
def traffic_digest(workshop: dg.ResourceParam[Workshop]) -> dg.MaterializeResult:
    """The digest of all rows that training reads. Its data version changes when any row does, and only then.

    Dagster compares an asset with no partitions of another one when it depends on all of its days, so without this asset the
    training side would stay green after new logs. Made from `interactions`, `feedback` and `cleaned_interactions`: only days
    that were written to are read. Lies in no file; the digests of the days are remembered in `.remembered/`.
    """
    tables, workload = workshop.tables, workshop.workload
    digests = {name: slice_digest(tables, name, workload) for name in READ}
    digests[AS_SERVED] = slice_digest(tables, "interactions", workload, as_served=True)
    rows = tables.rows_by_day("cleaned_interactions", workload)
    whole = hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(digests.items())).encode()).hexdigest()
    return dg.MaterializeResult(
        metadata={
            "days": len(rows),
            "first_day": min(rows).isoformat() if rows else "none",
            "last_day": max(rows).isoformat() if rows else "none",
            "dagster/row_count": sum(rows.values()),
            **{f"digest_of/{name}": digest[:12] for name, digest in digests.items()},
        },
        data_version=dg.DataVersion(whole),
    )
