"""Operation `evaluate`: held-out loss of each model, recovery of the quantized one, acceptance of drafters, scores on items.

    {"operation": "evaluate", "inputs": {"dataset": SFT_DATASET, "base": .., "sft": .., "student": .., "quantized": ..,
     "target": SERVED, "reference": ITS_UNQUANTIZED_FORM, "champion": SERVED_NOW, "speculator": HEAD,
     "champion_speculator": HEAD_SERVED_NOW, "draft_model": SMALL_MODEL, "answers": .., "served": .., "tasks": EVAL_SUITE,
     "preferences": PREFERENCE_DATASET}, "output": DIR, "settings": {...}}

Only dataset and target are required. A job gives two settings that a run fills from its recipe: `compared`, pairs of roles such
as [["sft", "base"]], and `parents`, the role that a training started from, such as {"preferences": "sft"}. Writes report.json,
speed.json (what depends on the machine), one file of rows for each part, and finished parts under output/.work."""

import json
from dataclasses import asdict
from typing import Any

from model_ops.evaluation.acceptances import Acceptances, acceptances
from model_ops.evaluation.against_reference import AgainstReference, against_reference
from model_ops.evaluation.in_server import InServer, in_server, refuse_missing_server
from model_ops.evaluation.in_server import headline as headline_of_server
from model_ops.evaluation.likelihoods import Likelihoods, likelihoods
from model_ops.evaluation.measurement import AS_LOGGED, CHAMPION, HELD_OUT, Findings, Measurement
from model_ops.evaluation.preference_change import preference_change
from model_ops.evaluation.reward_change import RewardChange, reward_change
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.evaluation.side_by_side import SideBySideSummary, side_by_side
from model_ops.evaluation.task_scores import TaskScores, task_scores
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer
from model_ops.speculators import load_draft_model


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Measures, writes the report, and returns its main numbers as a flat dict."""
    settings = job.settings_as(EvaluateSettings)
    if "dataset" not in job.inputs or "target" not in job.inputs:
        raise ModelError("evaluate needs the inputs dataset and target; add them to the job")
    refuse_drafters_that_do_not_fit(job, settings)
    refuse_missing_server(settings)
    job.output.mkdir(parents=True, exist_ok=True)
    losses = likelihoods(job, settings, progress)
    changed = against_reference(job, settings, progress)
    drafts = acceptances(job, settings, progress)
    scores = task_scores(job, settings, progress)
    beside = side_by_side(job, settings, losses.same_directory, progress)
    preferred, rewarded = preference_change(job, settings, progress), reward_change(job, settings, progress)
    lengths = {name: each.num_speculative_tokens for name, each in drafts.lookups.items()}
    served = in_server(job, settings, progress, lengths)
    report = _report(settings, losses, changed, drafts, scores, served, beside, preferred, rewarded)
    for name, why in report["not_measured"].items():
        progress.event("note", message=f"evaluate: {name} was not measured: {why}")
    (job.output / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    speed = {"tokens_per_second": drafts.tokens_per_second, **({"in_server": served.speed} if served.speed else {})}
    (job.output / "speed.json").write_text(json.dumps(speed, indent=2) + "\n")
    without = {
        f"tokens_per_second_{name}": value for name, value in drafts.tokens_per_second.items() if name.startswith("none_")
    }
    return headline(report) | without | headline_of_server(report.get("in_server", {}), served.speed)


def refuse_drafters_that_do_not_fit(job: Job, settings: EvaluateSettings) -> None:
    """Raises ModelError for a speculator that drafts fewer tokens than requested, and for a model with another tokenizer."""
    if "speculator" in job.inputs:
        longest = load_draft_model(job.inputs["speculator"]).longest_chain
        if longest is not None and longest < settings.num_speculative_tokens:
            raise ModelError(
                f"{job.inputs['speculator']} drafts {longest} tokens and num_speculative_tokens is "
                f"{settings.num_speculative_tokens}: set it to {longest}, or train for more"
            )
    if "draft_model" in job.inputs:
        small = job.inputs["draft_model"]
        if load_tokenizer(small).get_vocab() != load_tokenizer(job.inputs["target"]).get_vocab():
            raise ModelError(f"{small} has another tokenizer than the target; give a model of the target's own family")


def _report(
    settings: EvaluateSettings,
    losses: Likelihoods,
    changed: AgainstReference,
    drafts: Acceptances,
    scores: TaskScores,
    served: InServer,
    beside: SideBySideSummary,
    preferred: Findings,
    rewarded: RewardChange,
) -> dict[str, Any]:
    """The content of report.json."""
    parts: list[Findings] = [losses, changed, drafts, scores, served, beside, preferred, rewarded]
    return {
        "settings": settings.model_dump(mode="json"),
        "measurements": [each.model_dump() for part in parts for each in part.measurements],
        "not_measured": {name: why for part in parts for name, why in part.not_measured.items()},
        "models": losses.models,
        "same_directory": losses.same_directory,
        "test_rows": losses.test_rows,
        "against_reference": changed.summary,
        "acceptance": drafts.summaries,
        "greedy_identical_share": drafts.identical,
        **drafts.counts,
        "lookups": {name: asdict(each) for name, each in drafts.lookups.items()},
        "parameters_left_out": drafts.left_out,
        "tasks": scores.suites,
        **({"in_server": served.summary} if served.summary else {}),
        **({"passed_answers": rewarded.summary} if rewarded.summary else {}),
        **({"side_by_side": beside.summary} if beside.summary else {}),
    }


def headline(report: dict[str, Any]) -> dict[str, Any]:
    """Numbers for tables and curves of Dagster and trackers, which plot flat names; gates read the measurements instead."""
    numbers: dict[str, Any] = {}
    for measurement in map(Measurement.model_validate, report["measurements"]):
        if measurement.what == "loss":
            numbers[f"loss_{measurement.of}"] = measurement.value
        elif measurement.what == "loss_increase" and measurement.against != "reference":
            name = f"loss_increase_{measurement.of}_{measurement.against}"
            numbers.update({name: measurement.value, **_ends(name, measurement)})
        elif measurement.what == "recovery":
            name = "recovery" if measurement.on == HELD_OUT else "recovery_long_context"
            numbers.update({name: measurement.value, **_ends(name, measurement)})
        elif measurement.what in ("served_distance", "served_agreement"):
            name = f"{measurement.what}_{measurement.of.replace(' ', '_')}"
            numbers.update({name: measurement.value, **_ends(name, measurement)})
        elif measurement.what in ("preference_accuracy", "win_rate", "length_ratio", "divergence_from_parent", "rft_gain"):
            numbers.update({measurement.what: measurement.value, **_ends(measurement.what, measurement)})
        elif measurement.what in ("divergence", "agreement"):
            numbers[f"{measurement.what}_{measurement.of}_{measurement.against}"] = measurement.value
        elif measurement.what == "acceptance_gain" and measurement.against == CHAMPION and measurement.sampling == AS_LOGGED:
            numbers[f"acceptance_gain_{measurement.of}_{CHAMPION}"] = measurement.value
        elif measurement.what in ("accuracy", "accuracy_gain"):
            against = f"_over_{measurement.against}" if measurement.against else ""
            numbers[f"{measurement.what}_{measurement.on}_{measurement.of}{against}_{measurement.sampling}"] = measurement.value
    for summary in report["acceptance"]:
        key = "as_logged" if summary["sampling"] == "as logged" else f"t{summary['temperature']:g}"
        name = f"{summary['drafter']}_{key}"
        if summary["drafter"] == "none":
            numbers[f"looping_share_{key}"] = summary["looping_share"]
        else:
            numbers.update(
                {f"tau_{name}": summary["tau"], f"tau_{name}_low": summary["tau_low"], f"tau_{name}_high": summary["tau_high"]}
            )
    for name, share in report["greedy_identical_share"].items():
        numbers[f"greedy_identical_{name}"] = share
    return {**numbers, "prompts": report["prompts"], "test_rows": report["test_rows"]}


def _ends(name: str, measurement: Measurement) -> dict[str, float]:
    ends = {f"{name}_low": measurement.low, f"{name}_high": measurement.high}
    return {key: end for key, end in ends.items() if end is not None}
