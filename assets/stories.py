"""What a person needs to know first of an artefact, as a few sentences that its page in the UI begins with.

    in_short(manifest, directory)      # {"in_short": a Markdown list}; {} for an artefact without a story
    listed(["No test alarms on 2026-07-03."])

Numbers come from the manifest and, of an evaluation, from its report; nothing that a user said."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import dagster as dg

from model_ops.evaluation import measurements_of
from model_ops.jobs import counted
from resources.curating import RecordCounts
from resources.manifests import Manifest
from resources.releasing import quality_sentences, read_evaluation

MOST_RULES = 4
LEFT_OUT = {
    "cut_rows": "cut at max_length",
    "rows_cut": "cut at max_length",
    "too_long_rows": "left out for their length",
    "unrenderable_rows": "refused by the chat template",
    "dropped_rows": "without a token to learn",
    "rows_left_out": "without a token to learn",
    "skipped_steps": "skipped for a loss or gradient that is no number",
}
"""What is named if there is any, by the metric that counts it."""


def listed(sentences: Iterable[str]) -> dict[str, dg.MetadataValue]:
    """The sentences as metadata; {} without any."""
    text = "\n".join(f"- {sentence}" for sentence in sentences)
    return {"in_short": dg.MetadataValue.md(text)} if text else {}


def in_short(manifest: Manifest, directory: Path) -> dict[str, dg.MetadataValue]:
    """Of a curation, an evaluation or a trained model; {} for an evaluation whose report is gone."""
    if "records" in manifest.metrics:
        return listed(_curation(RecordCounts.of(manifest)))
    if manifest.name.endswith("/evaluation_report"):
        if not (directory / "report.json").exists():
            return {}
        report, _ = read_evaluation(directory)
        return listed(f"{name}: {text}" if name else text for name, text in quality_sentences(measurements_of(report)))
    return listed(_training(manifest)) if manifest.kind == "model" and "steps" in manifest.metrics else {}


def _curation(counts: RecordCounts) -> Iterator[str]:
    dropped, quarantined = sum(counts.dropped.values()), sum(counts.quarantined.values())
    share = f" ({counts.rows / counts.read:z.0%})" if counts.read else ""
    left = f"{counts.rows:,} kept{share}"
    yield f"{counted(counts.read, 'record')} read: {left}, {dropped:,} dropped, {quarantined:,} in quarantine"
    if rules := counts.as_rows()[:MOST_RULES]:
        yield "most often for " + ", ".join(f"{row['stage and rule'].partition(': ')[2]} {row['records']:,}" for row in rules)


def _training(manifest: Manifest) -> Iterator[str]:
    metrics = manifest.metrics
    rows = f" of {counted(metrics['rows'], 'row')}" if "rows" in metrics else ""
    method = manifest.config.get("architecture") or manifest.config.get("method") or "training"
    yield (
        f"{method}: {counted(metrics['steps'], 'step')} over {metrics['tokens']:,} tokens{rows}, "
        f"{metrics['tokens_per_second']:,.0f} tokens/s"
    )
    if "validation_loss" in metrics:
        times = (("before_", "before"), ("", "after"), ("saved_", "as saved"))
        held_out = ", ".join(
            f"{metrics[f'{time}validation_loss']:z.4f} {said}" for time, said in times if f"{time}validation_loss" in metrics
        )
        yield f"loss (nats per token) {metrics['loss']:z.4f} in training; on validation rows {held_out}"
    if "first_grade" in metrics:
        yield (
            f"grade of its own answers {metrics['first_grade']:.2f} in the first round, {metrics['last_grade']:.2f} in the "
            f"last; {metrics.get('cut_rollouts', metrics.get('cut_answers', 0)):,} answers cut, "
            f"{metrics['failed_grades']:,} not graded"
        )
    if "before_validation_pass_rate" in metrics:
        before, after = metrics["before_validation_pass_rate"], metrics["validation_pass_rate"]
        yield f"held-out prompts passed: {before:z.1%} of answers before, {after:z.1%} after"
    if "validation_expected_tau" in metrics:
        tau = f"{metrics['validation_expected_tau']:.2f} tokens per forward pass"
        yield f"{tau} expected on validation rows; evaluation_report measures it"
    if "closed_answers" in metrics:
        yield f"reasoning closed at the budget in {metrics['closed_answers']:,} of {metrics['reasoning_answers']:,} answers"
    for name, what in LEFT_OUT.items():
        if metrics.get(name):
            yield f"{counted(metrics[name], 'step' if name == 'skipped_steps' else 'row')} {what}"
