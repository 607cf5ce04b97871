"""Charts of a release's report: losses, acceptance by position and by shape of prompts, speed and latency by concurrency."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from model_ops.evaluation import AS_LOGGED
from resources.releasing.charts import Bar, bars, lines
from resources.releasing.server_sections import FORMS
from resources.releasing.server_sections import TITLE as IN_A_SERVER

LOSSES, ACCEPTANCE = "Models on held-out sessions", "Acceptance length"
"""Titles of sections with charts."""
SHAPES_SHOWN = 8


def report_charts(report: Mapping[str, Any], speed: Mapping[str, Any], losses: Mapping[str, float]) -> dict[str, list[Markup]]:
    """By the title of the section that they belong to; only those that something was measured for."""
    by_section = {
        LOSSES: [bars("Held-out loss", [Bar(name, loss) for name, loss in losses.items()], "nats per answer token")]
        if losses
        else [],
        IN_A_SERVER: _in_a_server(speed.get("in_server", {})),
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
    charts = [
        bars(
            "Acceptance length",
            [
                Bar(f"{each['drafter']}, K {each['num_speculative_tokens']}", each["tau"], each["tau_low"], each["tau_high"])
                for each in chosen
            ],
            f"tokens per forward, {way}",
            2,
        ),
        lines(
            "Acceptance by position",
            f"share of forwards that accept it, {way}, by draft position",
            {each["drafter"]: list(enumerate(each["accepted_by_position"], 1)) for each in chosen},
        ),
    ]
    shapes = chosen[-1].get("tau_by", {}).get("prompt_shape", {})
    if len(shapes) > 1:
        most = sorted(shapes.items(), key=lambda each: (-each[1]["prompts"], each[0]))[:SHAPES_SHOWN]
        charts.append(
            bars(
                f"Acceptance length of {chosen[-1]['drafter']} by shape of the prompt",
                [Bar(f"{name} ({of['prompts']})", of["tau"], of["tau_low"], of["tau_high"]) for name, of in most],
                f"tokens per forward, {way}; prompts in brackets",
                2,
                whole_labels=True,
            )
        )
    return charts


def _in_a_server(speed: Mapping[str, Any]) -> list[Markup]:
    forms = {FORMS.get(name, name): form["tokens_per_second"] for name, form in speed.get("forms", {}).items()}
    if not forms:
        return []
    charts = [
        lines(
            "Tokens/s in a real server",
            "tokens/s, median, by requests at a time",
            {name: [(int(each), rate["median"]) for each, rate in rates.items()] for name, rates in forms.items()},
        )
    ]
    late = {
        f"{name}, {end}": [(int(each), 1_000 * rate[f"{end}_s"]) for each, rate in rates.items()]
        for name, rates in forms.items()
        for end in ("p50", "p99")
        if all(f"{end}_s" in rate for rate in rates.values())
    }
    if late:
        charts.append(lines("Latency in a real server", "milliseconds of a whole answer, by requests at a time", late))
    return charts
