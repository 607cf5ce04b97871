"""Checks sources, seeds and evaluation suites: whether they exist, can be read, and have the expected format."""

import os
import tempfile
from collections import Counter
from datetime import date
from pathlib import Path

from model_ops.jobs import counted
from pipelines.checks.finding import CheckFinding, ok, problem, warning
from pipelines.contract import BaseModelError, Recipe, look_at_base
from resources.composing import EvalSettings, EvalSuiteError, build_eval_suite
from resources.digests import USER_HASH_KEY
from resources.inspecting import REMEDY, FirstLook, far_days, first_look
from resources.reading import mixed_workloads, yaml_line
from resources.records import BY_NAME
from resources.sources import SourceError, SourceSettings, list_objects

SUITE_BYTES = 50_000_000
"""Suites up to this size, in bytes, are read completely."""


def check_source(kind: str, name: str, source: SourceSettings, looks: dict[str, FirstLook]) -> list[CheckFinding]:
    """Checks one source or seed. Its description is added to `looks`, for the checks that compare sources."""
    check = f"{kind} {name}"
    try:
        look = first_look(name, source)
    except SourceError as error:
        return [problem(check, str(error).removeprefix(f"source {name}: "), "check the uri, and the access to it")]
    if not look.objects:
        return [problem(check, f"nothing lies under {source.uri}", "give a uri that holds at least one file")]
    looks[name] = look
    many = f"{look.objects:,}{' or more' if look.has_more else ''} object{'s' * (look.objects != 1 or look.has_more)}"
    if not look.formats:
        uri, said = look.problems[0] if look.problems else (look.first_uri, "holds no records")
        other = (
            f"; leave format: {source.format} out, and each file is looked at"
            if source.format != "auto"
            else f"; or try fields: {yaml_line(look.proposed)}"
            if look.proposed
            else ""
        )
        none = f"none of {look.opened} opened object{'s' * (look.opened != 1)} can be used; {uri}{_said(said)}"
        return [problem(check, none, f"name the right files, or convert them to a format of docs/data.md{other}")]
    days = f", {' to '.join(dict.fromkeys(map(str, look.days)))}" if look.names_days and look.days else ""
    findings = [ok(check, f"{many}{days}; first records are {' and '.join(look.formats)}")]
    for uri, said in look.problems[:3]:
        findings.append(warning(check, f"{uri}{_said(said)}", "its lines go to quarantine; leave it out of the uri, or fix it"))
    if look.malformed:
        of = f"{counted(look.malformed, 'line')} of the first {len(look.characters):,}"
        said = f"{of} are no JSON object; the first is {look.first_malformed}"
        findings.append(warning(check, said, "they go to quarantine; correct them, or leave them out"))
    if look.unknown_records:
        of = f"{look.unknown_records:,} of {sum(look.formats.values()) + look.unknown_records:,} first records are"
        which = "of no known format" if source.format == "auto" else f"not of the format {source.format}"
        fields = f"; or try fields: {yaml_line(look.proposed)}" if look.proposed else ""
        remedy = f"they go to quarantine; docs/data.md lists the formats{fields}"
        findings.append(warning(check, f"{of} {which}; keys of one: {look.unknown_keys}", remedy))
    return findings


def _said(sentence: str) -> str:
    return f" {sentence}" if sentence.startswith(("is ", "its ", "cannot ", "holds ")) else f": {sentence}"


def check_suite(kind: str, name: str, settings: EvalSettings) -> list[CheckFinding]:
    """Checks one evaluation suite, or file of tasks; small ones are read completely, as in a run. kind: eval or tasks."""
    check = f"{kind} {name}"
    try:
        size = sum(item.bytes for item in list_objects(name, SourceSettings(uri=settings.uri), limit=1_000))
        if size > SUITE_BYTES:
            return [ok(check, f"{size / 1e6:,.0f} MB; not read now")]
        with tempfile.TemporaryDirectory(prefix="millrace-check-") as folder:
            items = build_eval_suite({name: settings}, Path(folder), keep_keys=kind == "tasks")[name]
    except SourceError as error:
        return [problem(check, str(error), "name a file or a pattern of JSON lines, one item each (docs/data.md)")]
    except EvalSuiteError as error:
        return [problem(check, str(error), "correct the items, as docs/evaluation.md describes each task")]
    return [ok(check, f"{items:,} items")]


def check_together(recipe: Recipe, looks: dict[str, FirstLook]) -> list[CheckFinding]:
    """Checks all sources together: logs, days, feedback, objects named twice, users."""
    seen = {name: looks[name] for name in recipe.sources if name in looks}  # in the recipe's order, whichever answered first
    if not seen:
        return []
    return [
        *_logs(seen),
        *_days(recipe, seen),
        *_named_days(recipe, seen),
        *_feedback(recipe, seen),
        *_twice(seen),
        *_users(recipe, seen),
        *_workloads(recipe, seen),
        *_token_ids(recipe, seen),
        *_beyond_vocabulary(recipe, looks),
    ]


def _logs(seen: dict[str, FirstLook]) -> list[CheckFinding]:
    if any(look.holds_logs for look in seen.values()) or not any(look.formats for look in seen.values()):
        return []  # of a source of no known format, its own line says so
    return [problem("sources", "no source holds requests with answers, only feedback", "add the logs that the feedback is of")]


def _days(recipe: Recipe, seen: dict[str, FirstLook]) -> list[CheckFinding]:
    days: Counter[date] = sum((look.record_days for look in seen.values()), Counter())
    far = far_days({day: count for day, count in days.items() if (recipe.first_day or day) <= day <= (recipe.last_day or day)})
    findings = [warning("days", f"among the first records, {far}", REMEDY)] if far else []
    if recipe.first_day is None and recipe.last_day is None:
        return findings or [ok("days", "first_day and last_day are open: every day in the logs, until today")]
    first, last = str(recipe.first_day or "open"), str(recipe.last_day or "open")
    for name, look in seen.items():
        if not look.names_days or look.days is None:
            continue
        low, high = look.days
        said = f"source {name} has {low} to {high}, the recipe {first} to {last}"
        if (recipe.last_day and low > recipe.last_day) or (recipe.first_day and high < recipe.first_day and not look.has_more):
            findings.append(problem("days", f"{said}: nothing would be read", "change first_day or last_day"))
        elif (recipe.first_day and low < recipe.first_day) or (recipe.last_day and high > recipe.last_day):
            remedy = "widen first_day or last_day if they should be"
            findings.append(warning("days", f"{said}: the days outside are not read", remedy))
    return findings or [ok("days", f"first_day {first}, last_day {last}")]


def _named_days(recipe: Recipe, seen: dict[str, FirstLook]) -> list[CheckFinding]:
    """Named datasets whose days lie outside those of the recipe, or of the logs where every key names its day."""
    logs = [look for look in seen.values() if look.holds_logs]
    is_whole = all(look.names_days and not look.has_more for look in logs)
    days = [day for look in logs for day in look.days or ()] if is_whole else []
    firsts = [day for day in (recipe.first_day, min(days, default=None)) if day]
    lasts = [day for day in (recipe.last_day, max(days, default=None)) if day]
    findings = []
    for name, named in recipe.datasets.named.items():
        early = named.last_day and firsts and named.last_day < max(firsts)
        late = named.first_day and lasts and named.first_day > min(lasts)
        for key, said in (
            ("last_day", early and f"{named.last_day} is before the first day of the traffic, {max(firsts)}"),
            ("first_day", late and f"{named.first_day} is after the last day of the traffic, {min(lasts)}"),
        ):
            if said:
                own = f"datasets.named.{name}.{key}"
                findings.append(warning("days", f"{own} {said}: no row of traffic is trained on", f"change {own}"))
    return findings


def _feedback(recipe: Recipe, seen: dict[str, FirstLook]) -> list[CheckFinding]:
    names = [name for name, look in seen.items() if any("feedback" in BY_NAME[form].fills for form in look.formats)]
    if names:
        return [ok("feedback", f"may come from {', '.join(names)}")]
    rules = recipe.curation.feedback
    if "keep_thumbs_up" in rules.model_fields_set and rules.keep_thumbs_up:
        said = "curation.feedback asks for keep_thumbs_up, and no source seems to hold feedback"
        return [warning("feedback", said, "add a source of feedback, or leave the setting out")]
    return [ok("feedback", "no files of feedback seen; what records carry themselves is read with them")]


def _twice(seen: dict[str, FirstLook]) -> list[CheckFinding]:
    names = list(seen)
    return [
        problem(
            "sources",
            f"{first} and {second} both hold {min(seen[first].uris & seen[second].uris)}",
            "give each source a uri of its own: a run refuses an object in two sources",
        )
        for place, first in enumerate(names)
        for second in names[place + 1 :]
        if seen[first].uris & seen[second].uris
    ]


def _users(recipe: Recipe, seen: dict[str, FirstLook]) -> list[CheckFinding]:
    fields = {name: recipe.sources[name].fields for name in seen}
    names = [name for name, look in seen.items() if look.has_users or ((named := fields[name]) and named.user)]
    if not names or os.environ.get(USER_HASH_KEY):
        return []
    said = f"{', '.join(names)} may hold user ids, and without a key their hashes can be guessed"
    return [warning("user ids", said, f"set {USER_HASH_KEY} before the lake's first ingest, and keep it")]


def _workloads(recipe: Recipe, seen: dict[str, FirstLook]) -> list[CheckFinding]:
    mixed = (mixed_workloads(name, recipe.sources[name], look.workloads, recipe.workload) for name, look in seen.items())
    return [warning("workloads", f"among the first records, {each.what}", each.remedy) for each in mixed if each]


def _beyond_vocabulary(recipe: Recipe, looks: dict[str, FirstLook]) -> list[CheckFinding]:
    """Pre-tokenized records with an id that the base model has no embedding of, which ends a training."""
    try:
        config = look_at_base(recipe.base_model).config
    except BaseModelError:
        return []  # reported with the base model
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if not isinstance(size, int):
        return []
    strange = {
        name: next(number for number in look.token_ids if not 0 <= number < size)
        for name, look in looks.items()
        if look.token_ids and not 0 <= look.token_ids[0] <= look.token_ids[1] < size
    }
    return [
        problem(
            "token ids",
            f"{name} holds the token id {number}, and the base model's ids are 0 to {size - 1:,} (vocab_size {size:,})",
            "make these records with the base model's tokenizer, or leave them out",
        )
        for name, number in strange.items()
    ]


def _token_ids(recipe: Recipe, seen: dict[str, FirstLook]) -> list[CheckFinding]:
    names = [name for name, look in seen.items() if "tokens" in look.formats]
    if not names:
        return []
    if recipe.base_model == "tiny":
        message = f"{', '.join(names)} holds token ids, and the run makes the tokenizer of tiny: its ids mean other tokens"
        return [problem("token ids", message, "name the base model with the tokenizer that made them")]
    said = f"{', '.join(names)} holds token ids, which are trained on as they stand"
    return [warning("token ids", said, "make sure that base_model has the very tokenizer that made them")]
