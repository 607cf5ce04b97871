"""endpoint: the alias that servers follow. It moves only to an approved release whose gates still hold."""

from collections.abc import Iterator

import dagster as dg

from assets.ownership import LAKE_POOL
from assets.questions import about_endpoint, as_metadata
from assets.stage_asset import stage_asset
from resources.endpoints import AUTOMATIC, Aliases, Approvals, Endpoint, approvals_of, approve, approved_by, recheck
from resources.releases import ReleaseError, ReleaseRef, ReleaseSettings, read_release
from resources.reporting import dashboard_path
from resources.workshop import Workshop


@stage_asset(
    "release_candidate",
    sources=("resources/endpoints/endpoints.py", "resources/endpoints/approvals.py"),
    kinds={"json"},
    pool=LAKE_POOL,
    output_required=False,
)
def endpoint(
    context: dg.AssetExecutionContext, workshop: dg.ResourceParam[Workshop], release_settings: dg.ResourceParam[ReleaseSettings]
) -> Iterator[dg.MaterializeResult]:
    """The release that this workload's servers load (champion), the previous champion, and the candidate.

    The candidate becomes champion once `millrace approve` or the recipe (`release.approval: automatic`) has approved it and
    its gates and digests hold again; without an approval nothing changes, and the run succeeds. Lies in
    `endpoints/<workload>.json`.
    """
    lake, candidate = workshop.lake, workshop.current("release", "release")
    directory = workshop.directory(candidate)
    if release_settings.approval == "automatic" and not approvals_of(lake, directory).decided:
        if closed := read_release(directory).policy.closed_now():
            context.log.info(f"release {candidate.version} waits, because {closed}: the next run approves it")
            return
        if few := [gate.name for gate in read_release(directory).gates if gate.state == "too few to tell"]:
            context.log.info(f"release {candidate.version} waits for a person: too few items to tell ({', '.join(few)})")
            return
        approve(lake, directory, AUTOMATIC)
    approvals = approvals_of(lake, directory)
    if approvals.missing:
        context.log.info(f"release {candidate.version} {_waits(approvals, candidate.version)}")
        return
    if problems := recheck(lake, directory):  # gates and digests must hold now, not only at approval
        raise ReleaseError(f"release {candidate.version} is not served: " + "; ".join(problems))
    aliases = Endpoint(lake, workshop.workload).promote(ReleaseRef.of(directory), approved_by(lake, directory))
    workshop.publish_catalog()
    page = dg.MetadataValue.path(str(dashboard_path(lake, workshop.workload)))
    shown = {**_shown(aliases), "dashboard": page, "sql": as_metadata(about_endpoint(workshop.workload))}
    yield dg.MaterializeResult(metadata=shown, data_version=dg.DataVersion(candidate.digest))


def endpoint_moved(aliases: Aliases) -> dg.AssetMaterialization:
    """Dagster's event of a decision that no run of the asset took: a person's, by a command or in the UI."""
    return dg.AssetMaterialization(asset_key=[aliases.workload, "endpoint"], metadata=_shown(aliases))


def _shown(aliases: Aliases) -> dict[str, str]:
    return {"champion": aliases.champion or "", "previous": aliases.previous or "", "by": aliases.changed_by}


def _waits(approvals: Approvals, version: str) -> str:
    if approvals.withdrawn:
        return "was withdrawn, so it is not served"
    return "; ".join([f"waits for {approvals.needed}'s approval: millrace approve {version}", *approvals.refused])
