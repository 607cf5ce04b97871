"""endpoint: the alias that servers follow. It moves only to an approved release whose gates still hold."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from assets.ownership import LAKE_POOL, OWNERS, RELEASE
from assets.questions import about_endpoint, as_metadata
from resources.artefacts.source_digest import source_digest
from resources.lake import Lake
from resources.releasing.approvals import approvals_of, approve, approved_by, closed_now, is_approved, was_decided
from resources.releasing.endpoints import Aliases, Endpoint
from resources.releasing.recheck import recheck
from resources.releasing.release import ReleaseError, ReleaseSettings
from resources.releasing.signature import AUTOMATIC
from resources.releasing.subject import subject_of
from resources.reporting.dashboard import dashboard_path
from resources.workshop.workshop import Workshop


@dg.asset(
    deps=["release_candidate"], group_name=RELEASE, kinds={"json"}, owners=OWNERS, pool=LAKE_POOL,
    output_required=False,
    code_version=source_digest("resources/releasing/endpoints.py", "resources/releasing/approvals.py")[:12],
)
def endpoint(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    release_settings: dg.ResourceParam[ReleaseSettings],
) -> Iterator[dg.MaterializeResult]:
    """The release that this workload's servers load (champion), the previous champion, and the candidate.

    The candidate becomes champion once `millrace approve` or the recipe (`release.approval: automatic`) has approved it and
    its gates and digests hold again; without an approval nothing changes, and the run succeeds. Lies in
    `endpoints/<workload>.json`.
    """
    lake, candidate = workshop.lake, workshop.current("release", "release")
    directory = workshop.directory(candidate)
    if release_settings.approval == "automatic" and not was_decided(lake, directory):
        if closed := closed_now(directory):
            context.log.info(f"release {candidate.version} waits, because {closed}: the next run approves it")
            return
        approve(lake, directory, AUTOMATIC)
    if not is_approved(lake, directory):
        context.log.info(f"release {candidate.version} {_waits(lake, directory)}: millrace approve {candidate.version}")
        return
    if problems := recheck(lake, directory):  # gates and digests must hold now, not only at approval
        raise ReleaseError(f"release {candidate.version} is not served: " + "; ".join(problems))
    aliases = Endpoint(lake, workshop.workload).promote(subject_of(directory), approved_by(lake, directory))
    workshop.publish_catalog()
    page = dg.MetadataValue.path(str(dashboard_path(lake, workshop.workload)))
    shown = {**_shown(aliases), "dashboard": page, "sql": as_metadata(about_endpoint(workshop.workload))}
    yield dg.MaterializeResult(metadata=shown, data_version=dg.DataVersion(candidate.digest))


def endpoint_moved(aliases: Aliases) -> dg.AssetMaterialization:
    """Dagster's event of a decision that no run of the asset took: a person's, by a command or in the UI."""
    return dg.AssetMaterialization(asset_key=[aliases.workload, "endpoint"], metadata=_shown(aliases))


def _shown(aliases: Aliases) -> dict[str, str]:
    return {"champion": aliases.champion or "", "previous": aliases.previous or "", "by": aliases.changed_by}


def _waits(lake: Lake, directory: Path) -> str:
    approvals = approvals_of(lake, directory)
    if not approvals.counted and was_decided(lake, directory) and not approvals.refused:
        return "was withdrawn, and is served only if it is approved again"
    return "; ".join([f"waits for {approvals.needed}'s approval", *approvals.refused])
