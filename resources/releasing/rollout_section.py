"""What reinforcement fine-tuning did, for people: curves by step, held-out answers before and after, worst and best answers."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

from resources.lake import LakeLayout, attach_parquet, rows, workbench
from resources.manifests import Input, Manifest
from resources.records import visible
from resources.releases import ReportSection
from resources.releasing.charts import lines
from resources.stages import stage

Points = list[tuple[float, float]]
MOST_POINTS = 8
"""Of a line in a page; steps between are averaged."""
SHOWN = {
    "pass rate": "validation_pass_rate",
    "reward": "validation_reward",
    "tokens of an answer": "validation_answer_tokens",
    "cut answers": "validation_cut",
}
"""Held-out numbers of the section's table."""
TITLE = "Learning from rewards"
PASSED = "Passed answers that say least about their prompts"


def rollout_series(directory: Path, passing: float) -> dict[str, dict[str, Points]]:
    """Title of a plot -> its lines by step. directory: of the model. passing: grade from which an answer passed."""
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]

    def of(name: str) -> Points:
        return [(step["step"], step[name]) for step in steps if step.get(name) is not None]

    parts = sorted({name for step in steps for name in step if name.startswith("reward_")})
    bands: dict[str, Points] = {}
    with workbench() as connection:
        attach_parquet(connection, "rollouts", directory / ROLLOUTS)
        for each in rows(connection, "reporting/pass_rate_by_difficulty", passing=passing).to_pylist():
            bands.setdefault(each["difficulty"], []).append((each["step"], each["pass_rate"]))
    return {
        "Reward by part": {"all": of("reward"), **{name.removeprefix("reward_"): of(name) for name in parts}},
        "Pass rate by difficulty": bands,
        "Tokens of an answer": {"mean": of("answer_tokens")},
        "Entropy, nats by token": {"mean": of("entropy")},
        "Gap to the sampler, nats by token": {"mean": of("gap"), "largest after a sync": of("canary_gap")},
    }


ROLLOUTS = "rollouts.parquet"


def keeps_rollouts(name: str) -> bool:
    """Whether a stage's model keeps the rollouts that it was trained on."""
    return stage(name).own_answers == ROLLOUTS


def rollout_section(lake: LakeLayout, manifest: Manifest) -> ReportSection:
    """manifest: of an rft_model."""
    directory, numbers = _directory(lake, manifest), manifest.metrics
    plots = rollout_series(directory, manifest.config["passing_grade"])
    last = max(step for series in plots.values() for points in series.values() for step, _ in points)
    charts = [
        lines(title, "mean by step", {name: _thinned(points, last) for name, points in series.items() if points})
        for title, series in plots.items()
        if any(series.values())
    ]
    table = [
        [name, *(f"{numbers[key]:z.4g}" for key in (f"before_{metric}", metric))]
        for name, metric in SHOWN.items()
        if metric in numbers and f"before_{metric}" in numbers
    ]
    note = (
        "Held-out prompts, before the first step and after the last one. A reward that rises while these stay is a model that "
        "pleases its grader. Difficulty is the pass rate of a prompt when it was first asked."
    )
    return ReportSection(TITLE, ["held out", "before", "after"], table, note, charts=charts)


def passed_section(report: Mapping[str, Any]) -> list[ReportSection]:
    """report: report.json of the evaluation."""
    answers = report.get("passed_answers")
    if not answers:
        return []
    note = (
        f"{answers['scored']:,} of {answers['passed']:,} held-out answers that passed were scored: by how many nats per token "
        "the answer makes its prompt likelier than other passed answers do, for the base model. Around 0 and below it would "
        "fit any prompt: read these on the approval page."
    )
    if answers["is_trained_on"]:
        note += (
            " The training was rewarded by the same verifier, so rft_gain cannot see an answer that only pleases it: add a "
            "suite (evals) or another part of rft.grader."
        )
    rows = [[row_id, f"{gain:+z.3f}"] for row_id, gain in answers["least"]]
    return [ReportSection(PASSED, ["row", "gain of the prompt (nats/token)"], rows, note, shows_rows=True)]


def rollout_samples(lake: LakeLayout, manifest: Manifest) -> list[dict[str, Any]]:
    """Five answers with the lowest and five with the highest grade of the last quarter of the steps, of different prompts each.
    Prompts that were erased, and their answers, are left out."""
    asked = next(item for item in manifest.inputs if item.name.endswith("/rl_prompts"))
    path = _directory(lake, asked) / "train.parquet"
    with workbench() as connection:
        attach_parquet(connection, "rollouts", _directory(lake, manifest) / ROLLOUTS)
        samples = rows(connection, "reporting/worst_and_best_rollouts").to_pylist()
    wanted = [("row_id", "in", [row["row_id"] for row in samples])]
    table = pq.read_table(path, columns=["row_id", "messages"], filters=wanted) if samples and path.exists() else None
    prompts = {row["row_id"]: json.loads(row["messages"]) for row in table.to_pylist()} if table is not None else {}
    return [
        {
            **row,
            "text": _shown(row["text"]),
            "prompt": [{"role": str(said.get("role")), "text": _shown(said.get("content"))} for said in prompts[row["row_id"]]],
        }
        for row in samples
        if row["row_id"] in prompts
    ]


def _shown(content: Any) -> str:
    return visible(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), lines=True)


def _directory(lake: LakeLayout, manifest: Manifest | Input) -> Path:
    directory = lake.artefacts(manifest.kind) / manifest.name / manifest.version
    lake.mirror.fetch(directory)
    return directory


def _thinned(points: Points, last: float) -> Points:
    """Means over equal numbers of steps, at most MOST_POINTS of them, at the last step of each. last: step of the training."""
    width = math.ceil(last / MOST_POINTS)
    by_step: dict[float, list[float]] = {}
    for step, value in points:
        by_step.setdefault(min(last, math.ceil(step / width) * width), []).append(value)
    return [(step, fmean(values)) for step, values in by_step.items()]
