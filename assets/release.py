"""The release, checked against the recipe's gates, and the endpoint: the alias that servers follow."""

import json
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import dagster as dg

from assets.ownership import LAKE_POOL
from assets.presentation import shown, table
from assets.questions import about_endpoint, as_metadata
from assets.stage_asset import stage_asset
from model_ops.speculators import SpeculatorSettings
from resources.endpoints import (
    AUTOMATIC,
    Aliases,
    Approvals,
    Endpoint,
    approvals_of,
    approved_by,
    recheck,
    recheck_unsigned,
    record_approval,
    stale_parts,
)
from resources.launching import LOCATION_TAG
from resources.manifests import APPROVAL_PAGE, Manifest
from resources.releases import GateResult, GateVerdict, ReleaseError, ReleaseRef, ReleaseSettings, erased_rows, read_release
from resources.reporting import dashboard_path
from resources.stages import ModelPolicy, last_model
from resources.workshop import RELEASE_SOURCES, Workshop, make_release


@stage_asset(last_model(), "speculator", "evaluation_report", sources=RELEASE_SOURCES, kinds={"json"}, pool=LAKE_POOL)
def release_candidate(
    context: dg.AssetExecutionContext,
    workshop: dg.ResourceParam[Workshop],
    policy: dg.ResourceParam[ModelPolicy],
    release_settings: dg.ResourceParam[ReleaseSettings],
    speculator_settings: dg.ResourceParam[SpeculatorSettings],
) -> dg.MaterializeResult:
    """Target model and drafter together, with serve scripts and a report, checked against the recipe's gates; not served yet.

    Names models by path and digest instead of copying them; with `form: adapter` the adapter is copied into the release. Made
    from the served model, the drafter and the evaluation report. Lies in `releases/<workload>/<version>/`; `millrace approve
    <version>` approves it."""
    manifest, gates = make_release(workshop, policy, release_settings, speculator_settings)
    directory = workshop.directory(manifest)
    is_offered = GateVerdict.of(gates).holds and not approvals_of(workshop.lake, directory).withdrawn
    return shown(
        manifest,
        workshop,
        first={
            "verdict": f"{read_release(directory).worth} {GateVerdict.of(gates).sentence}.",
            "gates": table(_gate_rows(gates)),
            **{
                page: dg.MetadataValue.path(str(directory / name))
                for page, name in (("report", "report.html"), ("approval_page", APPROVAL_PAGE))
            },
            **{job: dg.MetadataValue.url(_form(context, job, manifest)) for job in ("approve", "reject") if is_offered},
            "dashboard": dg.MetadataValue.path(str(dashboard_path(workshop.lake, workshop.workload))),
        },
    )


def _gate_rows(gates: Sequence[GateResult]) -> list[dict[str, str]]:
    return [
        {
            "gate": gate.name,
            "state": gate.state,
            "measured": "" if gate.measured is None else f"{gate.measured:z.4f}",
            "interval": gate.interval_text,
            "wanted": gate.wanted_text,
            "about": gate.reason or gate.compared_text,
        }
        for gate in gates
    ]


def _form(context: dg.AssetExecutionContext, job: str, release: Manifest) -> str:
    """The Launchpad of a decision's job with this release filled in; the page that lists the jobs where the run has no code
    location."""
    location = context.run.tags.get(LOCATION_TAG)
    if location is None:
        return "/jobs"
    filled = {"release": release.version, "digest": release.digest, "name": "", "reason": ""}
    form = quote(json.dumps({"ops": {f"{job}_release": {"config": filled}}}, indent=2))
    return f"/locations/{quote(location)}/jobs/{job}/playground/setup?config={form}"


@dg.asset_check(asset="release_candidate", blocking=True)
def gates_hold(workshop: dg.ResourceParam[Workshop]) -> dg.AssetCheckResult:
    """Every gate of the recipe is met, every file still has the digest it was measured with, and all parts belong together.
    Blocks the next steps."""
    directory = workshop.directory(workshop.current("release", "release"))
    problems = recheck_unsigned(workshop.lake, directory) + stale_parts(workshop.lake, directory)
    release = read_release(directory)
    return dg.AssetCheckResult(
        passed=not problems,
        description="; ".join(problems) or None,
        metadata={
            "gates": table(_gate_rows(release.gates)),
            "problems": "; ".join(problems) or "none",
            "rows_learnt_and_erased_since": erased_rows(workshop.lake, release),
        },
    )


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
    `endpoints/<workload>.json`."""
    lake, candidate = workshop.lake, workshop.current("release", "release")
    directory = workshop.directory(candidate)
    if release_settings.approval == "automatic" and not approvals_of(lake, directory).decided:
        if closed := read_release(directory).policy.closed_now():
            context.log.info(f"release {candidate.version} waits, because {closed}: the next run approves it")
            return
        if few := [gate.name for gate in read_release(directory).gates if gate.state == "too few to tell"]:
            context.log.info(f"release {candidate.version} waits for a person: too few items to tell ({', '.join(few)})")
            return
        record_approval(lake, directory, AUTOMATIC)
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
