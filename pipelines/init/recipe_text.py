"""The text of `millrace init`'s recipe: every value with its reason in a comment. Values from logs are shortened and on one
line."""

import json
import re
import textwrap
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from model_ops.jobs import counted, filled
from model_ops.operations import SftSettings
from pipelines.contract import Base
from resources.composing import EvalSettings, EvalSuiteError, build_eval_suite
from resources.curating import FeedbackRules, guessed_bound
from resources.inspecting import Inspection, SourceProposal, name_of
from resources.reading import fields_of, unread_text
from resources.sources import SourceError, local_path

FITTING = ("auto", "ifeval", "unit_tests", "json_schema", "regex", "number", "exact")
"""Tasks that need no judge and no choice by a person, the most particular first."""
SHORT = 40
"""Most characters of an answer that a model can be expected to say word for word."""
MOST_FILES = 12


def suites_of(source: SourceProposal) -> dict[str, dict[str, str]]:
    """The suites of one source. A folder that is not on this machine is one pattern, without a task."""
    uri, local = source.uri, local_path(source.uri)
    if source.look.first_uri == uri or "*" in uri or (local is not None and Path(local).is_file()):
        return {source.name: _suite(uri, local is not None and Path(local).is_file())}
    listed = Path(local).iterdir() if local is not None and Path(local).is_dir() else ()
    files = sorted(path for path in listed if path.is_file() and path.name[0] != ".")
    if not 0 < len(files) <= MOST_FILES:
        return {source.name: {"uri": f"{uri.rstrip('/')}/*"}}
    named: dict[str, dict[str, str]] = {}
    for path in files:
        name = name_of(path.name)
        named[name if name not in named else f"{name}-{len(named)}"] = _suite(str(path), True)
    return named


def _suite(uri: str, is_local: bool) -> dict[str, str]:
    task = next((task for task in FITTING if _fits(uri, task)), None) if is_local else None
    return {"uri": uri} if task in (None, "auto") else {"uri": uri, "task": task}


def _fits(uri: str, task: str) -> bool:
    with TemporaryDirectory(prefix="millrace-init-") as folder:
        try:
            items = build_eval_suite({"suite": EvalSettings(uri=uri, task=task)}, Path(folder))["suite"]
        except (EvalSuiteError, SourceError):
            return False
        asked = [json.loads(line) for line in (Path(folder) / "tasks.jsonl").read_text(encoding="utf-8").splitlines()]
    return len(asked) == items > 0 and (task != "exact" or all(len(str(item["answer"])) <= SHORT for item in asked))


TEMPLATES = Path(__file__).with_name("templates")
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
    "gates": {
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
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, autoescape=False, undefined=StrictUndefined)
    environment.filters |= {"n": "{:,}".format, "pct": "{:z.0%}".format}
    environment.globals |= {
        "note": note,
        "put": put,
        "plain": plain,
        "counted": counted,
        "fields_of": fields_of,
        "unread_text": unread_text,
        "place": lambda uri: place(uri, contents.home),
    }
    text = environment.get_template("recipe.yaml.j2").render(
        contents=contents, seen=contents.seen, base=contents.base, tiny=TINY_SIZES, **_facts(contents)
    )
    return text.rstrip() + "\n"


def note(words: str, indent: int = 0) -> str:
    """A comment, wrapped."""
    head = " " * indent + "# "
    return textwrap.fill(
        plain(words, 2_000), WIDTH, initial_indent=head, subsequent_indent=head, break_long_words=False, break_on_hyphens=False
    )


def put(key: str, value: Any = None, indent: int = 0, off: bool = False) -> str:
    """A key and its value. off: as a comment."""
    head = " " * indent + ("# " if off else "")
    line = f"{head}{key}:" + ("" if value is None else f" {scalar(value)}")
    if len(line) <= WIDTH or not isinstance(value, dict) or off:
        return line
    return "\n".join([f"{head}{key}:", *(put(scalar(name), inner, indent + 2) for name, inner in value.items())])


def _facts(contents: Contents) -> dict[str, Any]:
    seen, totals, base = contents.seen, contents.seen.totals, contents.base
    pairs = (totals["rows"] - totals["requests"]) // 2
    names, days, sessions = _names(contents), [item["day"] for item in seen.days], seen.sessions.get("sessions", 0) or 0
    frequent = [item for item in seen.decisions if item["rule"] != "kept" and item["rows"] * 200 >= seen.sample_rows][:6]
    languages = [item for item in seen.languages if item["language"] and item["share"] >= 0.01]
    suites = {name: suite for source in contents.of("evals") for name, suite in suites_of(source).items()}
    named = [source.look for source in contents.of("logs", "feedback") if source.look.names_days]
    bounds = _bounds(contents)
    lora = SftSettings(method="lora").resolved()
    tokens = max(1, round(contents.trainable * sum(totals[name][0] or 0 for name in ("tokens_in_at", "tokens_out_at"))))
    lora = lora.fitted(tokens)
    verdicts = {verdict.question: verdict for verdict in seen.verdicts}
    length = {"max_length": contents.max_length}
    return {
        "asked": f"{totals['requests']:,} requests" + (f" and {pairs:,} preference pairs" if pairs else ""),
        "names": names,
        "mapping": _mapping(contents),
        "example": {plain(name, 40): _slug(name) for name in names[:3]},
        "models": [item["name"] for item in seen.models if item["name"]],
        "shown": lambda names: ", ".join(plain(name, 40) for name in names[:6]) + (", ..." if len(names) > 6 else ""),
        "days": days,
        "first_day": min([*days[:1], *(look.days[0] for look in named if look.days)], default=None),
        "suites": {name: suite | {"uri": place(suite["uri"], contents.home)} for name, suite in suites.items()},
        "dropped": [
            f"{plain(item['rule'].replace('_', ' '), 40)} {item['rows'] / seen.sample_rows:z.0%}"
            for item in (frequent if seen.sample_rows else [])
        ],
        "kinds": [f"{plain(item['kind'], 20)} {item['rows']:,}" for item in seen.pii[:5]],
        "languages": [item["language"] for item in languages],
        "shares": [f"{item['language']} {item['share']:z.0%}" for item in languages[:6]],
        "bounds": bounds,
        "rule": next(iter(bounds), ""),
        "bounded": next(iter(next(iter(bounds.values()), {})), ""),
        "sessions": sessions,
        "many_sessions": sessions >= FEW_SESSIONS or not contents.saw_everything,
        "lora": lora,
        "steps": lora.steps_over(tokens, filled(lora.tokens_per_step)),
        "sized": lambda section: {**TINY_SIZES[section], **length} if base.kind == "tiny" else length,
        "is_worth": lambda question: question in verdicts and verdicts[question].answer in WORTH,
        "verdict": lambda question: (
            f"{verdicts[question].answer}. {verdicts[question].sentence}" if question in verdicts else "not looked at."
        ),
    }


def _bounds(contents: Contents) -> dict[str, dict[str, float]]:
    """Good values of scores, by the rule of `curation.feedback` that takes them: known ones, and guesses."""
    known = FeedbackRules().least
    rules: dict[str, dict[str, float]] = {}
    for item in contents.seen.feedback:
        bound = ("least", known[item["name"]]) if item["name"] in known else guessed_bound(item)
        if bound:
            rules.setdefault(bound[0], {})[item["name"]] = bound[1]
    return rules


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
