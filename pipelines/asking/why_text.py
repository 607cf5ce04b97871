"""Prints the history of a request or log line for `millrace why`."""

from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from model_ops.jobs import counted
from pipelines.terminal import print_rows, print_table
from resources.catalog import RecordHistory
from resources.records import visible

MOST_INTERACTIONS = 10
"""Interactions that are shown; of a longer session, --format json prints all."""

STAGES = {
    "ingest": "ingest",
    "interactions": "read",
    "clean": "cleaned",
    "judge": "judged",
    "curate": "curated",
    "dataset": "sampled",
    "dataset row": "dataset",
    "context": "context",
    "model": "weights",
    "release": "release",
    "endpoint": "endpoint",
    "quarantine": "quarantine",
    "feedback": "feedback",
    "object": "object",
    "retired": "removed",
}

WORDS = {
    "near_duplicate": "nearly the same as {kept}, which stayed",
    "exact_duplicate": "the same as {kept}, which stayed",
    "subsumed_by_later_turn": "carried by a later turn that repeats it, {kept}",
    "repeated_record": "a copy was dropped",
    "repeated_id": "another record of the same id was dropped",
    "sampled_out": "not drawn: the source had more rows than its share",
    "source_not_in_mix": "its source is not in the recipe's mix",
    "shares_turns_with_held_out": "begins like {kept}, which is held out",
    "near_copy_of_held_out": "nearly the same as {kept}, which is held out",
    "rated_chat": "rated in `millrace chat`: no traffic to be measured on",
    "thumbs_down": "its feedback is bad: a thumb down, or beyond the last good value",
    "corrected_answer": "a person corrected this answer in a copy of the row",
    "contaminated": "holds an evaluation item",
    "erased": "erased on request",
}
"""Sentences for rules; other rules are shown by name."""


def print_history(history: RecordHistory, format: str, console: Console, width: int | None = None) -> None:
    """Prints a history: one sentence a step, or its steps as JSON or CSV."""
    if format != "table":
        print_rows(history.steps, format, console)
        return
    steps = history.steps.to_pylist()
    for step in steps:
        if step["interaction_id"] is None and not history.what.startswith("log object "):
            print_table(_steps_table([step], history.what), console, width)
    if history.what.startswith("log object "):
        _say(Text(visible(history.what), style="bold"), console)
        print_table(_steps_table(steps, ""), console, width)
    ids = list(dict.fromkeys(step["interaction_id"] for step in steps if step["interaction_id"]))
    if len(ids) > 1:
        by_id = not history.what.startswith("line ") and history.asked not in history.what
        heading = f"{history.what} {history.asked} is" if by_id else f"{history.what}:"
        _say(Text(visible(f"{heading} {len(ids):,} interactions"), style="bold"), console)
    for interaction, own in groupby((step for step in steps if step["interaction_id"]), lambda step: step["interaction_id"]):
        if interaction in ids[:MOST_INTERACTIONS]:
            _print_interaction(list(own), history.subjects.get(interaction, {}), console, width)
    if len(ids) > MOST_INTERACTIONS:
        _say(Text(f"{MOST_INTERACTIONS} of {len(ids):,} interactions are shown; --format json prints all"), console)


def _say(text: Text, console: Console) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def _print_interaction(steps: list[dict[str, Any]], subject: dict[str, Any], console: Console, width: int | None) -> None:
    heading = Text("interaction ", style="bold").append(steps[0]["interaction_id"], style="bold cyan")
    parts = [
        f"request {subject['request_id']}" if subject.get("request_id") else None,
        f"session {subject['session_id']}" if subject.get("session_id") else None,
        f"{subject['ts']:%Y-%m-%d %H:%M:%S} UTC" if subject.get("ts") else None,
        subject.get("workload"),
    ]
    heading.append(visible("".join(f"  ·  {part}" for part in parts if part)), style="not bold dim")
    console.print()
    _say(heading, console)
    shown = [step for step in steps if step["current"]]
    print_table(_steps_table(shown, "", subject), console, width)
    _say(Text("  → ").append(visible(_ending(steps)), style="bold"), console)
    earlier = len(steps) - len(shown)
    if earlier:
        are = "is" if earlier == 1 else "are"
        said = f"    {counted(earlier, 'step')} of earlier versions {are} not shown; --format json shows all"
        _say(Text(said, style="dim"), console)


def _steps_table(steps: list[dict[str, Any]], what: str, subject: dict[str, Any] | None = None) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for step in steps:
        mark = (
            Text(" ·", style="dim")
            if step["stage"] in ("ingest", "context", "judge", "feedback")
            else (Text(" ✓", style="green") if step["kept"] else Text(" ✗", style="red"))
        )
        stage = Text(visible(STAGES.get(step["stage"], step["stage"])), style="bold")
        known = None if subject is None else _readable(subject)
        table.add_row(mark, stage, _sentence(_readable(step), visible(what), known))
    return table


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: visible(value) if isinstance(value, str) else value for name, value in row.items()}


def _sentence(step: dict[str, Any], what: str, subject: dict[str, Any] | None) -> Text:
    """One step as a sentence. `subject`: None for a whole log object. Unknown values are left out."""
    stage, rule, detail = step["stage"], step["rule"] or "", step["detail"] or ""
    artefact = _joined("@", step["name"], step["version"])
    if not what and subject is None:
        return Text(detail if stage in ("object", "interactions") else _joined(": ", WORDS.get(rule, rule), detail))
    subject = subject or {}
    if stage == "interactions":
        tokens = [
            counted(subject[name], f"{word} token")
            for name, word in (("prompt_tokens", "prompt"), ("completion_tokens", "answer"))
            if subject.get(name) is not None
        ]
        facts = [subject.get("source"), subject.get("source_format"), subject.get("model"), *tokens]
        return Text(f"{detail}  ").append(_joined(", ", *facts), style="dim")
    if stage == "retired":
        return Text(detail)
    if stage == "quarantine":
        return Text(_joined(": ", what, rule, detail))
    if stage == "feedback":
        return Text(_joined(": ", what, _joined(", ", rule, detail)))
    if stage == "judge":
        return Text(_joined(", ", _joined(" ", step["name"], detail), step["version"] and f"says {step['version']}"))
    if stage == "dataset row":
        side = "in training" if rule == "train" else f"held out{rule and f' ({rule})'}: nothing is trained on it"
        return Text(_joined(": ", artefact, _joined(", ", side, detail and f"row {detail}")))
    if stage == "context":
        where = _joined(" ", detail or "later rows of its session", rule and f"({rule})")
        return Text(_joined(": ", artefact, f"its text may be part of the history of {where}, which do not train on it"))
    if stage in ("model", "release"):
        return Text(f"{artefact or 'an artefact'} holds it")
    if stage == "endpoint":
        return Text(_joined(": ", step["name"], f"{_joined(' ', 'release', step['version'])} is the {rule or 'one served'}"))
    words = WORDS.get(rule, rule).format(kept=step["kept_id"] or "another row")
    return Text(words + (f" ({detail})" if detail else "")).append(f"  {artefact}" if artefact else "", style="dim")


def _joined(separator: str, *parts: str | None) -> str:
    return separator.join(part for part in parts if part)


def _ending(steps: list[dict[str, Any]]) -> str:
    now = [step for step in steps if step["current"]]
    stages = {step["stage"]: step for step in now}
    served = [step for step in now if step["stage"] == "endpoint"]
    weights = [step["name"].split("/")[-1] for step in now if step["stage"] == "model"]
    rows = [step for step in now if step["stage"] == "dataset row"]
    if weights:
        where = f"in the weights of {', '.join(weights)}"
        return where + "".join(f"; {step['rule']} of endpoint {step['name']}" for step in served)
    if any(step["stage"] == "model" for step in steps):
        return "in no current weights; earlier versions hold it"
    if any(row["rule"] == "train" for row in rows):
        return "in training rows that no weights were made from yet"
    if rows:
        return f"held out ({', '.join(sorted({row['rule'] for row in rows}))}): no weights hold it"
    if "retired" in stages:
        return "removed by retention; no dataset and no weights hold it"
    if "interactions" not in stages:
        return "erased: only this decision is left" if any(step["rule"] == "erased" for step in now) else "not in the table"
    left = [step for step in now if step["stage"] in ("clean", "curate", "dataset") and not step["kept"]]
    if left:
        return f"left at {left[0]['stage']} by the rule {left[0]['rule']}: no dataset and no weights hold its answer"
    for stage, following in (("dataset", "an sft_dataset"), ("curate", "an sft_dataset"), ("clean", "curated_interactions")):
        if stage in stages:
            return f"kept so far; waits for {following} to be made"
    return "read; waits to be cleaned"
