"""Sections of a release's report about a real server: what it loaded, said and took, and some of its answers."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
from markupsafe import Markup

from model_ops.evaluation import AS_LOGGED, REFERENCE, TARGET, WITH_DRAFTER, Measurement, find, in_a_server, measurements_of
from resources.lake import LakeLayout, attach_parquet, rows, workbench
from resources.manifests import Input, Manifest
from resources.records import visible
from resources.releases import ReportSection
from resources.releasing.charts import Bar, bars, lines
from resources.stages import stage

TITLE = "In a real server"
FORMS = {REFERENCE: "unquantized", TARGET: "served", WITH_DRAFTER: "served with its drafter"}
"""Forms that a server is started with, as the page calls them."""
RATIOS = {TARGET: "served / unquantized", WITH_DRAFTER: "with its drafter / without"}


def server_sections(report: Mapping[str, Any], speed: Mapping[str, Any]) -> list[ReportSection]:
    """The sections, from the content of a report.json and its speed.json."""
    asked, speed = report.get("in_server", {}), speed.get("in_server", {})
    if not asked:
        why = "The recipe names no server in evaluation.server."
        return [ReportSection(TITLE, ["model", "state"], [["served", "no server was asked for"]], why)]
    measured = measurements_of(report)
    rows = [_form(name, form, speed.get("forms", {}).get(name), measured) for name, form in asked["forms"].items()]
    columns = ["model", "state", "distance (nats/token)", "greedy tokens that agree", "start (s)", "memory (GB)"]
    sections = [ReportSection(TITLE, columns, rows, _note(asked, report.get("not_measured", {})))]
    if speed:
        sections.append(_speed(asked, speed))
    samples = [[sample["row_id"], visible(" ".join(sample["text"].split()))] for sample in asked["samples"]]
    if samples:
        columns = ["row", "beginning of the served model's greedy answer"]
        note = "Held-out rows by id: millrace show finds their text."
        sections.append(ReportSection("What the server answered", columns, samples, note, shows_rows=True))
    return sections


def _named(form: str) -> str:
    """`target with n-gram lookup, K = 5` as `served with n-gram lookup, K = 5`."""
    return FORMS.get(form, form.replace(TARGET, FORMS[TARGET], 1))


def _form(name: str, form: Mapping[str, Any], record: Mapping[str, Any] | None, measured: Sequence[Measurement]) -> list[str]:
    """The row of one form. record: its speed; None if it was not served."""
    distance, agreement = (find(measured, what, of=name) for what in ("served_distance", "served_agreement"))
    memory_mb = record["memory_mb"] if record else None
    return [
        _named(name),
        "loaded" if form["loaded"] else "did not load",
        _with_interval(distance, "4f"),
        _with_interval(agreement, "4f"),
        f"{record['started_s']:.0f}" if record else "",
        "" if memory_mb is None else f"{memory_mb / 1_000:.1f}",
    ]


def _note(asked: Mapping[str, Any], not_measured: Mapping[str, str]) -> str:
    started = f", started with {' '.join(asked['arguments'])}" if asked["arguments"] else ""
    said = [f"{asked['kind']} {asked['version'] or ''}".strip() + started]
    said += [f"{_named(name)}: {why}" for name in asked["forms"] if (why := not_measured.get(in_a_server(name)))]
    middle = f" (median {asked['median_distance']:.3f})" if "median_distance" in asked else ""
    return (
        f"{'. '.join(said)}. Distance: mean absolute difference of the log-probabilities of held-out answers' tokens, in the "
        f"server and by the project's own layers in float32{middle}. A greedy token of the server agrees if own layers rank it "
        f"first, or at most {asked['tie_nats']:g} nats behind. Memory: resident host memory of the server's processes."
        f"{_differences(asked.get('greedy_differences', {}))}"
    )


def _differences(differences: Mapping[str, Mapping[str, Any]]) -> str:
    """Sentences on greedy answers with a drafting that are not those without."""
    said = [
        f" Greedy answers {_named(name)}: {each['identical']} of {each['prompts']} are those without drafting, "
        f"{each['ties']} differ first where the two tokens tie in bfloat16, {len(each['others'])} elsewhere."
        for name, each in differences.items()
    ]
    return "".join(said)


def _speed(asked: Mapping[str, Any], speed: Mapping[str, Any]) -> ReportSection:
    """tokens/s of each form at each concurrency, and ratios."""
    forms = speed["forms"]
    at = list(dict.fromkeys(concurrency for form in forms.values() for concurrency in form["tokens_per_second"]))
    drafted = {name: f"{form['tau']:.2f}" if form.get("tau") else "" for name, form in asked["forms"].items()}
    rows = []
    for name, form in forms.items():
        rates = [form["tokens_per_second"][each] for each in at]
        shown = [f"{rate['median']:,.0f} ({rate['lowest']:,.0f} to {rate['highest']:,.0f})" for rate in rates]
        rows.append([_named(name), *shown, drafted[name]])
    rows += [[RATIOS[name], *(f"{ratios[each]:.2f}" for each in at), ""] for name, ratios in speed["ratios"].items()]
    return ReportSection(
        "Tokens/s in that server",
        ["model", *(f"{each} at a time" for each in at), "tau"],
        rows,
        "Median (lowest to highest) of passes with that many requests at a time, each answered greedily with "
        f"{asked['max_new_tokens']} tokens; prompts had been read before. These figures depend on the machine and on what else "
        "ran on it. tau: tokens emitted per forward pass of the target, as the server counted.",
    )


def _with_interval(measured: Measurement | None, digits: str) -> str:
    """`0.0219 (0.0200 to 0.0238)`; "" without a measurement."""
    if measured is None:
        return ""
    interval = "" if measured.low is None else f" ({measured.low:.{digits}} to {measured.high:.{digits}})"
    return f"{measured.value:.{digits}}{interval}"


LOSSES, ACCEPTANCE = "Models on held-out sessions", "Acceptance length"
"""Titles of sections with charts."""
SHAPES_SHOWN = 8


def report_charts(report: Mapping[str, Any], speed: Mapping[str, Any], losses: Mapping[str, float]) -> dict[str, list[Markup]]:
    """By the title of the section that they belong to; only those that something was measured for."""
    held_out = [Bar(name, loss) for name, loss in losses.items()]
    by_section = {
        LOSSES: [bars("Held-out loss", held_out, "nats per answer token")] if losses else [],
        TITLE: _in_a_server(speed.get("in_server", {})),
        ACCEPTANCE: _acceptance(report),
    }
    return {title: charts for title, charts in by_section.items() if charts}


def _acceptance(report: Mapping[str, Any]) -> list[Markup]:
    """Of the way of sampling that gates speak of: as logged, else the last one that was measured."""
    drafted = [each for each in report.get("acceptance", []) if each["drafter"] != "none"]
    if not drafted:
        return []
    ways = [each["sampling"] for each in drafted]
    way = AS_LOGGED if AS_LOGGED in ways else ways[-1]
    chosen = [each for each in drafted if each["sampling"] == way]
    lengths = [
        Bar(f"{each['drafter']}, K {each['num_speculative_tokens']}", each["tau"], each["tau_low"], each["tau_high"])
        for each in chosen
    ]
    positions = {each["drafter"]: list(enumerate(each["accepted_by_position"], 1)) for each in chosen}
    charts = [
        bars("Acceptance length", lengths, f"tokens per forward, {way}", 2),
        lines("Acceptance by position", f"share of forwards that accept it, {way}, by draft position", positions),
    ]
    shapes = chosen[-1].get("tau_by", {}).get("prompt_shape", {})
    if len(shapes) > 1:
        most = sorted(shapes.items(), key=lambda each: (-each[1]["prompts"], each[0]))[:SHAPES_SHOWN]
        shown = [Bar(f"{name} ({of['prompts']})", of["tau"], of["tau_low"], of["tau_high"]) for name, of in most]
        title, unit = f"Acceptance length of {chosen[-1]['drafter']} by shape of the prompt", f"tokens per forward, {way}"
        charts.append(bars(title, shown, f"{unit}; prompts in brackets", 2, whole_labels=True))
    return charts


def _in_a_server(speed: Mapping[str, Any]) -> list[Markup]:
    forms = {FORMS.get(name, name): form["tokens_per_second"] for name, form in speed.get("forms", {}).items()}
    if not forms:
        return []
    medians = {name: [(int(each), rate["median"]) for each, rate in rates.items()] for name, rates in forms.items()}
    charts = [lines("Tokens/s in a real server", "tokens/s, median, by requests at a time", medians)]
    late = {
        f"{name}, {end}": [(int(each), 1_000 * rate[f"{end}_s"]) for each, rate in rates.items()]
        for name, rates in forms.items()
        for end in ("p50", "p99")
        if all(f"{end}_s" in rate for rate in rates.values())
    }
    if late:
        charts.append(lines("Latency in a real server", "milliseconds of a whole answer, by requests at a time", late))
    return charts


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
    return ReportSection("Learning from rewards", ["held out", "before", "after"], table, note, charts=charts)


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
