"""Which assets show as out of date after new logs: those of the job `train` that traffic reaches.

    behind_traffic("math-tutor", {key: [keys that it reads], ...})

Dagster compares an asset with those that it depends on directly, and leaves out a dependency on all partitions of a time window
(1.13, `CachingStaleStatusResolver._get_partition_dependencies`). So each of these assets also depends on `traffic_digest`,
which has no partitions and whose data version is the digest of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from resources.stages import logs_stages, stage

TRAFFIC_DIGEST = "traffic_digest"


def behind_traffic(workload: str, reads: Mapping[dg.AssetKey, Sequence[dg.AssetKey]]) -> set[dg.AssetKey]:
    """The assets outside the job `logs` that traffic reaches, directly or through others. The endpoint is not among them: it
    follows a release, and a person may let it wait."""
    of_logs = {dg.AssetKey([workload, name]) for name in logs_stages()}
    endpoint = dg.AssetKey([workload, stage("endpoint").name])
    found: set[dg.AssetKey] = set()
    more = True
    while more:
        reached = {key for key, above in reads.items() if key not in of_logs and any(one in of_logs | found for one in above)}
        more, found = reached != found, reached
    return found - {endpoint}
