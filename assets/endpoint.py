"""endpoint: the alias that servers follow. It moves only to an approved release whose gates still hold."""

from collections.abc import Iterator

import dagster as dg

from assets.ownership import LAKE_POOL, OWNERS, RELEASE
from resources.releasing.endpoints import Endpoint
from resources.releasing.release import ReleaseError, ReleaseSettings, approve, approved_by, is_approved, recheck, was_decided
from resources.source_digest import source_digest
from resources.workshop import Workshop


@dg.asset(
    deps=["release_candidate"], group_name=RELEASE, kinds={"json"}, owners=OWNERS, pool=LAKE_POOL,
    output_required=False,
    code_version=source_digest("resources/releasing/endpoints.py", "resources/releasing/release.py")[:12],
)
def endpoint(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    release_settings: dg.ResourceParam[ReleaseSettings],
) -> Iterator[dg.MaterializeResult]:
    """Champion, previous and candidate of this workload. Without an approval nothing moves, and that is no failure."""
    lake, candidate = workshop.lake, workshop.current("release", "release")
    directory = workshop.directory(candidate)
    if release_settings.approval == "automatic" and not was_decided(lake, directory):
        approve(lake, directory, by="recipe: approval automatic")
    if not is_approved(lake, directory):
        context.log.info(f"release {candidate.version} waits for approval: millrace approve {candidate.version}")
        return
    if problems := recheck(lake, directory):  # gates and digests hold now, not only when it was approved
        raise ReleaseError(f"release {candidate.version} is not served: " + "; ".join(problems))
    aliases = Endpoint(lake, workshop.workload).promote(candidate.version, by=approved_by(lake, directory))
    yield dg.MaterializeResult(
        metadata={"champion": aliases.champion or "", "previous": aliases.previous or "", "by": aliases.changed_by},
        data_version=dg.DataVersion(candidate.digest),
    )
