"""release_candidate: target, drafter, serving scripts and report, checked against the recipe's gates."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from urllib.parse import quote

import dagster as dg

from assets.ownership import LAKE_POOL, OWNERS, RELEASE
from assets.presentation import shown, table
from model_ops.speculators.registry import ARCHITECTURES
from model_ops.speculators.settings import SpeculatorSettings
from resources.artefacts.erased import APPROVAL_PAGE
from resources.artefacts.manifest import Manifest
from resources.artefacts.source_digest import source_digest
from resources.artefacts.taint import rows_erased_from
from resources.attesting.attest import attest, write_attestations
from resources.launching.run_history import LOCATION_TAG
from resources.releasing.adapter_form import adapter_base
from resources.releasing.approval_page import write_approval_page
from resources.releasing.champion import champion_to_beat
from resources.releasing.drafting_decision import decide_drafting, form_of
from resources.releasing.endpoints import Endpoint
from resources.releasing.gate_result import GateResult
from resources.releasing.gates import Compared, check_gates
from resources.releasing.model_policy import ModelPolicy
from resources.releasing.quantized_bits import served_bits
from resources.releasing.recheck import recheck_unsigned, superseded
from resources.releasing.release import ReleasePolicy, ReleaseRef, ReleaseSettings, erased_rows, read_release, write_release
from resources.releasing.release_facts import facts_of
from resources.releasing.release_signature import is_signed
from resources.releasing.summary import read_evaluation, summarise
from resources.releasing.verdict import verdict_of
from resources.reporting.dashboard import dashboard_path
from resources.signing.keys import signing_key
from resources.stages import last_model
from resources.workshop.workshop import Workshop

SOURCES = (*(f"resources/releasing/{name}.py" for name in (
    "release", "adapter_form", "gates", "champion", "summary", "drafting_decision", "approval_page")),
           *(f"resources/attesting/{name}.py" for name in ("bill_of_materials", "provenance")))


@dg.asset(
    deps=[last_model(), "speculator", "evaluation_report"], group_name=RELEASE, kinds={"json"}, owners=OWNERS,
    pool=LAKE_POOL, code_version=source_digest(*SOURCES)[:12],
)
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
    target = workshop.current("model", policy.served)
    drafter = workshop.current("model", "speculator") if policy.speculator else None
    served = [item for item in (target, drafter) if item is not None]
    base = adapter_base(workshop.lake, target) if release_settings.form == "adapter" else None
    evaluation = workshop.current("dataset", "evaluation_report")
    serving = ARCHITECTURES[speculator_settings.architecture].serving
    champion = champion_to_beat(workshop.lake, workshop.workload, target, drafter)
    bounds = release_settings.gates.for_weights_of(served_bits(workshop.directory(target)))
    k = speculator_settings.num_speculative_tokens
    report, speed = read_evaluation(workshop.directory(evaluation))
    choice = decide_drafting(release_settings.drafting, report, speed, serving.architecture if drafter else None, k)
    gates = check_gates(bounds, Compared.of(
        report, served_form=form_of(choice.drafting, k), champion=champion,
        student="student_model" in policy.stages, drafter=serving.architecture if drafter else None,
        temperature=speculator_settings.answers.measured_at,
        erased_rows=rows_erased_from(workshop.lake, served),
    ))

    def work(output):
        release = write_release(output, workshop.workload, target, drafter, k, gates, serving,
                                ReleasePolicy.of(release_settings), release_settings, workshop.directory(target), choice,
                                base)
        write_attestations(output, workshop.lake, release, [*served, *([base] if base else [])], context.run_id)
        facts = facts_of(workshop.lake, release, output.name, served, champion.release if champion else None)
        summary = summarise(workshop.lake, workshop.workload, serving, gates, output.name, facts, choice)
        write_approval_page(output, workshop.lake, summary, release, workshop.directory(evaluation),
                            champion)
        return summary.write(output) | {"gates": {gate.name: gate.model_dump(exclude={"name"}) for gate in gates}}

    manifest = workshop.build(
        "release", "release", op="release", sources=SOURCES,
        config=bounds.model_dump() | {
            "serving": asdict(serving) if drafter else None, "champion": champion.release if champion else None,
            "policy": ReleasePolicy.of(release_settings).model_dump(), "drafting": choice.drafting.model_dump(mode="json"),
            "server": release_settings.serving.on(release_settings.serve_on).model_dump(),
            "zero_retention": release_settings.zero_retention,
            **({"form": release_settings.form} if base else {})},
        inputs=[item.as_input() for item in (*served, evaluation)], work=work,
    )
    directory = workshop.directory(manifest)
    if (key := signing_key()) is not None and not is_signed(directory):
        attest(workshop.lake, directory, key)
    Endpoint(workshop.lake, workshop.workload).nominate(ReleaseRef.of(directory))
    workshop.publish_catalog()
    return shown(manifest, workshop, first={
        "verdict": f"{verdict_of(gates).sentence}.", "gates": table(_gate_rows(gates)),
        **{page: dg.MetadataValue.path(str(directory / name))
           for page, name in (("report", "report.html"), ("approval_page", APPROVAL_PAGE))},
        **{job: dg.MetadataValue.url(_form(context, job, manifest)) for job in ("approve", "reject")},
        "dashboard": dg.MetadataValue.path(str(dashboard_path(workshop.lake, workshop.workload)))})


def _gate_rows(gates: Sequence[GateResult]) -> list[dict[str, str]]:
    return [{"gate": gate.name,
             "state": "nothing to compare" if gate.nothing_to_compare else "holds" if gate.passed else "missed",
             "measured": "" if gate.measured is None else f"{gate.measured:z.4f}", "interval": gate.interval_text,
             "wanted": gate.wanted_text, "about": gate.reason or gate.compared_text} for gate in gates]


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
        passed=not problems, description="; ".join(problems) or None,
        metadata={"gates": table(_gate_rows(release.gates)), "problems": "; ".join(problems) or "none",
                  "rows_learnt_and_erased_since": erased_rows(workshop.lake, release)}
    )
