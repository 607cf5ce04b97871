"""The text of `millrace init`'s recipe: every value with its reason in a comment. Values from logs are shortened and on one
line.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from model_ops.operations import SftSettings
from pipelines.contract import Base
from pipelines.init.suites import suites_of
from resources.curating import FeedbackRules, guessed_bound
from resources.inspecting import Inspection, SourceProposal, Verdict
from resources.reading import fields_of, unread_text
from resources.sources import local_path

WIDTH = 100
LENGTHS = (512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072)
TINY_TOKENS = 1.4
"""Tokens of the tiny model's tokenizer per token of another tokenizer, roughly: it was trained on Python code."""
FEW_SESSIONS = 100
MOST_NAMES = 12
WORTH = ("yes", "possible")
TINY_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"steps": 300, "learning_rate": 4.0e-3, "tokens_per_step": 2_048, "max_length": 512},
    "sft": {"steps": 100, "learning_rate": 4.0e-3, "tokens_per_step": 4_096},
    "student": {"steps": 40, "learning_rate": 2.0e-3, "tokens_per_step": 4_096},
    "speculator": {
        "steps": 80,
        "learning_rate": 1.5e-3,
        "tokens_per_step": 4_096,
        "ttt_steps": 3,
        "answers": {"prompts": 400, "max_new_tokens": 64},
    },
    "evaluation": {"rows": 200, "prompts": 100, "max_new_tokens": 64},
}
"""Sizes that two CPU cores train in minutes."""


@dataclass
class Contents:
    """The input of a recipe's text."""

    workload: str
    base: Base
    sources: list[SourceProposal]
    seen: Inspection
    home: Path
    """The recipe's folder."""
    today: date
    limit: int
    """Most objects that the inspection read."""

    def of(self, *kinds: str) -> list[SourceProposal]:
        return [source for source in self.sources if source.kind in kinds]

    @property
    def trainable(self) -> int:
        """Rows that curation with its defaults would keep; an estimate if not all rows were read."""
        return round(self.seen.totals["rows"] * self.seen.usable_share)

    @property
    def saw_everything(self) -> bool:
        looks = [source.look for source in self.of("logs", "feedback")]
        return not any(look.has_more for look in looks) and sum(look.objects for look in looks) <= self.limit

    @property
    def tokens_of_longest(self) -> int:
        """Approximate 99th percentile of the tokens of a request with its answer, in the base model's tokens."""
        length = sum(self.seen.totals[name][2] or 0 for name in ("tokens_in_at", "tokens_out_at"))
        return round(length * (TINY_TOKENS if self.base.kind == "tiny" else 1))

    @property
    def max_length(self) -> int:
        least = self.tokens_of_longest if self.base.kind == "tiny" else max(self.tokens_of_longest, LENGTHS[1])
        wanted = next((length for length in LENGTHS if length >= least), LENGTHS[-1])
        return min(wanted, self.base.context or wanted)

    @property
    def has_token_ids(self) -> bool:
        return any(set(source.look.formats) == {"tokens"} for source in self.of("logs"))


class _Text:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def blank(self) -> None:
        self.lines.append("")

    def note(self, words: str, indent: int = 0) -> None:
        """A comment, wrapped."""
        head = " " * indent + "# "
        self.lines += textwrap.wrap(
            plain(words, 2_000),
            WIDTH,
            initial_indent=head,
            subsequent_indent=head,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def put(self, key: str, value: Any = None, indent: int = 0, off: bool = False) -> None:
        """Writes a key and its value. off: as a comment."""
        head = " " * indent + ("# " if off else "")
        line = f"{head}{key}:" + ("" if value is None else f" {scalar(value)}")
        if len(line) <= WIDTH or not isinstance(value, dict) or off:
            self.lines.append(line)
            return
        self.lines.append(f"{head}{key}:")
        for name, inner in value.items():
            self.put(scalar(name), inner, indent + 2)


def scalar(value: Any) -> str:
    """A value as YAML on one line, quoted if needed."""
    odd = isinstance(value, str) and not value.isprintable()
    text = yaml.safe_dump(
        value, allow_unicode=not odd, width=10**9, default_flow_style=True, sort_keys=False, default_style='"' if odd else None
    )
    return text.removesuffix("...\n").rstrip("\n").removesuffix("\n...")


def plain(words: str, most: int = 60) -> str:
    """Text for a comment: on one line, without non-printing characters, shortened."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in words).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def place(uri: str, home: Path) -> str:
    """A uri as in the recipe: relative to the recipe's folder if inside it, else absolute."""
    local = local_path(uri)
    if local is None:
        return uri
    path, home = Path(local), home.resolve()
    inside = path.relative_to(home).as_posix() if path.is_relative_to(home) else ""
    # a path that begins with ~ or looks like a URL would be misread
    return f"./{inside}" if inside.startswith("~") else inside if inside not in ("", ".") else str(path)


def recipe_text(contents: Contents) -> str:
    """The whole recipe."""
    text = _Text()
    for part in (_head, _sources, _days, _seeds_and_evals, _curation, _datasets, _training, _release):
        part(contents, text)
        text.blank()
    return "\n".join(text.lines).rstrip() + "\n"


def _asked(totals: Mapping[str, Any]) -> str:
    pairs = (totals["rows"] - totals["requests"]) // 2
    return f"{totals['requests']:,} requests" + (f" and {pairs:,} preference pairs" if pairs else "")


def _head(contents: Contents, text: _Text) -> None:
    seen, base = contents.seen, contents.base
    rows = _asked(seen.totals)
    rows += "" if contents.saw_everything else f" in {contents.limit:,} of the log objects"
    text.note(
        f"Written by `millrace init` on {contents.today} from {rows}, with a reason for each value. "
        "All other keys have defaults: `millrace schema --markdown` lists them, `millrace schema` makes a schema for editors. "
        "Paths are relative to this file."
    )
    text.blank()
    text.put("workload", contents.workload)
    text.blank()
    if base.kind == "tiny":
        text.note(
            "tiny is a toy, built by the run: it needs no download and no GPU, shows that these logs reach a release, "
            "and is useless otherwise. For a useful model, name a Hugging Face directory or id here and delete "
            "everything below that is marked (tiny)."
        )
    elif base.kind == "directory":
        size = f", about {base.parameters / 1e9:.2g} billion parameters" if base.parameters else ""
        context = f", context {base.context:,} tokens" if base.context else ""
        text.note(f"A {base.model_type} model of {base.layers or '?'} layers{size}{context}.")
    else:
        text.note("An id on the Hugging Face Hub: the first run fetches it, unless it is in the local cache.")
    if contents.has_token_ids:
        text.note("Logs of format tokens are trained on unchanged: the base model must have the tokenizer that made these ids.")
    text.put("base_model", place(base.name, contents.home) if base.kind == "directory" else base.name)


def _sources(contents: Contents, text: _Text) -> None:
    seen = contents.seen
    text.note("Read in place; the format of each file is detected.")
    text.put("sources")
    mapping = _mapping(contents)
    for source in [*contents.of("logs"), *contents.of("feedback")]:
        look = source.look
        many = f"{look.objects:,}{'+' if look.has_more else ''} object{'s' * (look.objects != 1 or look.has_more)}"
        span = " to ".join(dict.fromkeys(map(str, look.days or ())))
        days = f"; named for {span}{' and later' if look.has_more else ''}" if look.names_days else ""
        text.note(f"{many}, {' and '.join(look.formats) or 'records of no known format'}{days}", 2)
        if "edits" in look.formats or "correction" in look.proposed:
            text.note("Edits: a person's correction stands in place of the answer, and makes a preference pair with it.", 2)
        text.put(source.name, None, 2)
        text.put("uri", place(source.uri, contents.home), 4)
        _fields(source, text)
        _unread(source, contents, text)
        if mapping and source.kind == "logs":
            text.note(
                "Records of other workloads are left for their own recipes; without this line all count as "
                f"{contents.workload}.",
                4,
            )
            text.put("workloads", mapping, 4)
    own = sum(item["records"] for item in seen.feedback)
    if contents.of("feedback"):
        rated = seen.with_feedback.get("rows", 0)
        text.note(f"{own:,} records of feedback; {rated:,} of the {seen.sample_rows:,} requests looked at have some.", 2)
    elif own:
        text.note(f"Feedback comes with the records themselves ({own:,} values), so it needs no source of its own.", 2)
    else:
        text.note(
            "No feedback was found. To add thumbs or scores, name one more source with lines of "
            "{response_id, value} (docs/data.md).",
            2,
        )
    names = _names(contents)
    if len(names) > 1 and not mapping:
        shown = ", ".join(plain(name, 40) for name in names[:6])
        text.note(
            f"The records name {len(names)} workloads ({shown}{', ...' if len(names) > 6 else ''}); all count as "
            f"{contents.workload}. To separate them, map their names to recipes' workloads under a source:",
            2,
        )
        example = {plain(name, 40): _slug(name) for name in names[:3]}
        text.put("workloads", example, 2, off=True)
    models = [plain(item["name"], 40) for item in seen.models if item["name"]]
    if models:
        text.note(f"Answers were given by {', '.join(models[:6])}{', ...' if len(models) > 6 else ''}.", 2)
    for source in contents.of("unknown"):
        why = plain(source.look.problems[0][1], 160) if source.look.problems else "it holds no records"
        text.note(f"Left out: {plain(place(source.uri, contents.home), 80)}: {why}", 2)


def _fields(source: SourceProposal, text: _Text) -> None:
    if source.look.proposed:
        text.note("Where these records keep what is read: a guess from the names and shapes in the first ones. Check it.", 4)
        text.put("fields", None, 4)
        for name, path in source.look.proposed.items():
            text.put(name, path, 6)


def _unread(source: SourceProposal, contents: Contents, text: _Text) -> None:
    """Keys that nothing reads, and the `fields` that would read them, to be uncommented."""
    keys = contents.seen.unread.get(source.uri, [])
    if keys:
        text.note(plain(unread_text(keys, source.look.proposed), 600) + ".", 4)
    if (fields := fields_of(keys)) and not source.look.proposed:
        text.put("fields", fields, 4, off=True)


def _names(contents: Contents) -> list[str]:
    return [item["name"] for item in contents.seen.workloads if item["name"]]


def _mapping(contents: Contents) -> dict[str, str]:
    """Names of other workloads in the records, if some records name this recipe's workload."""
    names = _names(contents)
    others = [name for name in names if _slug(name) != contents.workload]
    if contents.workload not in map(_slug, names) or not others or len(others) > MOST_NAMES:
        return {}
    return {name: _slug(name) for name in others}


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:63].strip("-_") or "other"


def _days(contents: Contents, text: _Text) -> None:
    seen = contents.seen
    days = [item["day"] for item in seen.days]
    if seen.totals["at_midnight"] == seen.totals["rows"]:
        text.note(
            "The records have no time: their day comes from the file's name, or its modification time. first_day and "
            "last_day stay open: from the earliest day in the logs until today."
        )
        return
    if contents.saw_everything:
        looks = [source.look for source in contents.of("logs", "feedback")]
        first = min([days[0], *(look.days[0] for look in looks if look.names_days and look.days)])
        span = " to ".join(map(str, dict.fromkeys([days[0], days[-1]])))
        text.note(
            f"{_asked(seen.totals)} on {seen.totals['days']:,} day{'s' * (seen.totals['days'] != 1)}, "
            f"{span}: one partition a day. Without last_day, days continue until today."
        )
        text.put("first_day", first)
        text.put("last_day", days[-1], off=True)
    else:
        text.note(
            f"The part of the logs that was read has days from {days[0]} to {days[-1]}; first_day stays open: the "
            "earliest day in all logs."
        )


def _seeds_and_evals(contents: Contents, text: _Text) -> None:
    seeds, evals = contents.of("seeds"), contents.of("evals")
    if seeds:
        text.note("Training examples in addition to the traffic, found by their name; never used for measurements.")
        text.put("seeds")
        for source in seeds:
            fields = {"fields": source.look.proposed} if source.look.proposed else {}
            if fields:
                text.note("`fields` is a guess from the names and shapes in the first records. Check it.", 2)
            text.put(source.name, {"uri": place(source.uri, contents.home), **fields}, 2)
    if evals:
        text.note("Evaluation suites, found by their name: rows that contain one of their items are not trained on.")
        text.put("evals")
        for suite, settings in {name: suite for source in evals for name, suite in suites_of(source).items()}.items():
            text.put(suite, settings | {"uri": place(settings["uri"], contents.home)}, 2)
        text.note("A suite without a task is only kept out of training; `task: number`, `exact`, `judge`, ... has it asked.", 2)
    else:
        text.note("Name your evaluation suites here, so that no training row contains one of their items.")
        text.put("evals", {"my-suite": {"uri": "evals/suite.jsonl"}}, off=True)


def _curation(contents: Contents, text: _Text) -> None:
    seen = contents.seen
    about = "about " if seen.sampled or not contents.saw_everything else ""
    frequent = [item for item in seen.decisions if item["rule"] != "kept" and item["rows"] * 200 >= seen.sample_rows][:6]
    dropped = [
        f"{plain(item['rule'].replace('_', ' '), 40)} {item['rows'] / seen.sample_rows:z.0%}"
        for item in (frequent if seen.sample_rows else [])
    ]
    text.note(
        f"With the defaults {about}{seen.usable_share:z.0%} of the requests stay ({contents.trainable:,})"
        + (f"; the others: {', '.join(dropped)}." if dropped else ".")
    )
    text.put("curation")
    if seen.pii:
        kinds = ", ".join(f"{plain(item['kind'], 20)} {item['rows']:,}" for item in seen.pii[:5])
        text.note(f"Personal data was found in these {seen.sample_rows:,} rows ({kinds}): placeholders take its place.", 2)
    else:
        text.note("No personal data was found; in later logs it is still replaced by placeholders.", 2)
    text.put("pii", "redact", 2)
    languages = [item for item in seen.languages if item["language"] and item["share"] >= 0.01]
    if len(languages) > 1:
        shares = ", ".join(f"{item['language']} {item['share']:z.0%}" for item in languages[:6])
        text.note(f"Languages: {shares}. To keep some only:", 2)
        text.put("language", {"allow": [item["language"] for item in languages[:2]]}, 2, off=True)
    known = FeedbackRules().least
    guessed = {
        item["name"]: ("least", known[item["name"]]) if item["name"] in known else guessed_bound(item) for item in seen.feedback
    }
    rules: dict[str, dict[str, float]] = {}
    for name, bound in guessed.items():
        if bound:
            rules.setdefault(bound[0], {})[name] = bound[1]
    if rules:
        rule, bounds = next(iter(rules.items()))
        beyond = {"least": "below the least", "most": "above the highest"}[rule]
        text.note(
            f"Answers with a {plain(next(iter(bounds)), 40)} {beyond} good value are left out, like those with a thumb down; "
            "`datasets: {preference: {}}` makes preference rows of them.",
            2,
        )
        text.put("feedback", rules, 2)
    elif any(item["below_zero"] for item in seen.feedback):
        text.note("Answers with a thumb down are left out; `datasets: {preference: {}}` makes preference rows of them.", 2)
        text.put("feedback", {"drop_thumbs_down": True}, 2)


def _datasets(contents: Contents, text: _Text) -> None:
    sessions = contents.seen.sessions.get("sessions", 0) or 0
    if sessions >= FEW_SESSIONS or not contents.saw_everything:
        text.note("Whole sessions are held out: a tenth for evaluation, a twentieth for validation.")
        text.put("datasets", {"sft": {"test_share": 0.1, "validation_share": 0.05}})
    else:
        text.note(f"Only {sessions:,} sessions were found, and whole sessions are held out, so the shares are larger.")
        text.put("datasets", {"sft": {"test_share": 0.2, "validation_share": 0.1}})


def _training(contents: Contents, text: _Text) -> None:
    base, seen = contents.base, contents.seen
    cut = contents.tokens_of_longest > contents.max_length
    fitted = f"99 % of requests with their answers have at most about {contents.tokens_of_longest:,} tokens" + (
        f"; the model's context holds {contents.max_length:,}, and longer ones are cut and counted." if cut else "."
    )
    length = {"max_length": contents.max_length}
    drafter, student = _worth(seen.verdicts, "a drafter"), _worth(seen.verdicts, "a student")
    if base.kind == "tiny":
        text.note("(tiny) Sizes for two CPU cores and some minutes; no advice for a real model.")
        text.put("tiny", TINY_SIZES["tiny"])
    text.note(fitted)
    text.note(
        "To keep the base model's weights as they are, and only quantize it or train a drafter for it: `sft: {enabled: false}`."
    )
    text.put("sft", {**_sft(contents, text), **length})
    text.blank()
    text.note(f"A smaller model, distilled from the fine-tuned one: {_judgement(seen.verdicts, 'a student')}")
    sizes = {**TINY_SIZES["student"], **length} if base.kind == "tiny" else length
    text.put("student", sizes if student else {"enabled": False})
    if not base.served:
        text.blank()
        text.note(f"No record of {plain(base.model_type, 30)} models (`millrace models`): `millrace check` tries them.")
        text.put("quantize", {"enabled": False})
    text.blank()
    text.note(f"A draft model that speeds up serving: {_judgement(seen.verdicts, 'a drafter')}")
    sizes = {**TINY_SIZES["speculator"], **length} if base.kind == "tiny" else length
    text.put("speculator", sizes if drafter and base.served else {"enabled": False})
    if base.kind == "tiny":
        text.blank()
        text.note("(tiny)")
        text.put("evaluation", {**TINY_SIZES["evaluation"], **length})


def _sft(contents: Contents, text: _Text) -> dict[str, Any]:
    """Settings of fine-tuning, except its length."""
    if contents.base.kind == "tiny":
        return TINY_SIZES["sft"]
    seen = contents.seen
    settings = SftSettings(method="lora").resolved()
    each = sum(seen.totals[name][0] or 0 for name in ("tokens_in_at", "tokens_out_at"))
    tokens = max(1, round(contents.trainable * each))
    fitted = settings.fitted(tokens)
    size, steps = fitted.tokens_per_step, fitted.steps_over(tokens, fitted.tokens_per_step)
    text.note(
        f"method lora: adapters learn from few rows at {settings.learning_rate:g}, in a tenth of the memory of `full`. Steps "
        f"and passes follow the rows: these make about {steps:,} steps of {size:,} tokens, {fitted.epochs:.1f} passes. "
        "`millrace check` counts exactly, and `epochs` changes it."
    )
    return {"method": "lora"}


def _worth(verdicts: list[Verdict], question: str) -> bool:
    return any(verdict.question == question and verdict.answer in WORTH for verdict in verdicts)


def _judgement(verdicts: list[Verdict], question: str) -> str:
    verdict = next((verdict for verdict in verdicts if verdict.question == question), None)
    return f"{verdict.answer}. {verdict.sentence}" if verdict else "not looked at."


def _release(contents: Contents, text: _Text) -> None:
    text.note("A person approves with `millrace approve VERSION`; `automatic` serves every release that passes its gates.")
    text.put("release", None)
    text.put("approval", "person", 2)
    if contents.base.kind == "tiny":
        text.note(
            "(tiny) A toy's figures mean nothing, so its gates are low. Without `gates`, the defaults hold: the served "
            "model may not be worse than its base, its teacher and the champion, nor its drafter.",
            2,
        )
        text.put(
            "gates",
            {
                "gain_over_base": None,
                "recovery": 0.9,
                "recovery_long_context": 0.9,
                "accuracy_kept": 0.5,
                "accuracy_kept_each": 0.1,
                "loss_above_base": 1.0,
                "loss_above_champion": 1.0,
                "loss_above_teacher": 1.0,
                "accuracy_below_base": 1.0,
                "accuracy_below_champion": 1.0,
                "acceptance_length": 1.0,
                "acceptance_gain": -1.0,
                "acceptance_below_champion": 1.0,
            },
            2,
        )
