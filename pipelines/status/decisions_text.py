"""`millrace decisions`: what was decided about retraining, what it was expected to cost and gain, and what came of it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from model_ops.jobs import duration
from pipelines.terminal import print_table, text_table
from resources.deciding import SPELLED, Decision, Option, RetrainingRequest

COLUMNS = ("when (UTC)", "cause", "action", "outcome", "predicted", "took", "gain predicted", "gain", "decision_id")
OF_A_DRAFTER = ("drafter_continued", "drafter_new")


def print_decisions(decisions: Sequence[Decision], console: Console, count: int) -> None:
    """The newest decisions as a table, and the last one in full."""
    shown = list(decisions)[-count:]
    if not shown:
        console.print(
            "Nothing was decided yet. The sensor `decide` decides once there is a cause, such as new logs, while the "
            "Dagster daemon runs and the recipe says `automation: {decide: {enabled: true}}`.",
            soft_wrap=True,
            highlight=False,
        )
        return
    print_table(text_table(COLUMNS, [_row(each) for each in shown], frozenset({4, 5, 6, 7})), console)
    last = shown[-1]
    console.print(Text.assemble(("\nThe last one: ", "bold"), f"{last.cause_text}.\n{_sentence(last.why)}"), soft_wrap=True)
    if last.options:
        print_table(
            text_table(
                ("option", "costs", "gains", "pays back", "from requests a day", "why not"),
                [_option(each) for each in last.options],
                frozenset({1, 2, 3, 4}),
            ),
            console,
        )
        if said := _stages(last.chosen if last.action != "nothing" else _cheapest(last)):
            console.print(said, soft_wrap=True, highlight=False, markup=False)
    for sentence in last.evidence.get("drafting", ()):
        console.print(_sentence(sentence), soft_wrap=True, highlight=False, markup=False)


def print_requests(requests: Sequence[RetrainingRequest], console: Console) -> None:
    """What people asked for and the sensor has not decided yet."""
    for each in requests:
        said = f"Not decided yet, request {each.request_id} of {each.ts:%Y-%m-%d %H:%M} UTC: {each.cause_text}."
        console.print(said, soft_wrap=True, highlight=False, markup=False)


def decisions_json(decisions: Sequence[Decision]) -> str:
    """Every decision, oldest first."""
    return json.dumps([asdict(each) for each in decisions], default=str, ensure_ascii=False)


def _row(decision: Decision) -> list[str]:
    chosen = decision.chosen
    cost = duration(chosen.predicted_cost_s) if chosen and chosen.predicted_cost_s and decision.action != "nothing" else ""
    predicted = _gain(decision.action, chosen.predicted_gain) if chosen and decision.action != "nothing" else ""
    return [
        f"{decision.ts:%Y-%m-%d %H:%M}",
        decision.cause,
        decision.action,
        "dry run" if decision.dry_run and decision.action != "nothing" else decision.outcome,
        cost,
        duration(decision.cost_s) if decision.cost_s is not None else "",
        predicted,
        _gain(decision.action, decision.gain),
        decision.decision_id,
    ]


def _option(option: Option) -> list[str]:
    days, requests = option.payback_days, option.break_even_requests
    return [
        option.action,
        duration(option.predicted_cost_s) if option.predicted_cost_s else "",
        _gain(option.action, option.predicted_gain),
        duration(days * 86_400) if days is not None else "",
        f"{requests:z,.0f}" if requests is not None else "",
        option.why_not,
    ]


def _cheapest(decision: Decision) -> Option | None:
    known = [each for each in decision.options if each.action != "nothing" and each.predicted_cost_s is not None]
    return min(known, key=lambda each: each.predicted_cost_s or 0.0, default=None)


def _stages(option: Option | None) -> str:
    """What an option costs by stage, the dearest first; stages of less than a second are left out."""
    costs = sorted(option.stage_costs_s.items(), key=lambda each: -each[1]) if option else []
    by_stage = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in costs if seconds >= 1)
    if option is None or not by_stage:
        return ""
    return f"{_sentence(SPELLED[option.action])[:-1]} would cost: {by_stage}."


def _gain(action: str, gain: Any) -> str:
    """Of drafters the relative rise of the acceptance length, else the fall of the held-out loss."""
    if gain is None or action == "nothing":
        return ""
    return f"{gain:+z.1%}" if action in OF_A_DRAFTER else f"{gain:+z.4f} nats"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
