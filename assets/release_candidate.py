"""release_candidate: target, drafter, serving scripts and report, checked against the recipe's gates."""

import json
from collections.abc import Sequence
from urllib.parse import quote

import dagster as dg

from assets.ownership import LAKE_POOL
from assets.presentation import shown, table
from assets.stage_asset import stage_asset
from model_ops.speculators import SpeculatorSettings
from resources.endpoints import approvals_of, recheck_unsigned, superseded
from resources.launching import LOCATION_TAG
from resources.manifests import APPROVAL_PAGE, Manifest
from resources.releases import GateResult, GateVerdict, ReleaseSettings, erased_rows, read_release
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
    <version>` approves it.
    """
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
    problems = recheck_unsigned(workshop.lake, directory) + superseded(workshop.lake, directory)
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
