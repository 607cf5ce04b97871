"""`millrace init`: looks at logs and writes a commented recipe, which is loaded before it gets its final name."""

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from model_ops.files import write_text
from model_ops.jobs import Misuse
from pipelines.contract import TINY, BaseModelError, load_recipe, look_at_base
from pipelines.init.recipe_text import Contents, recipe_text
from pipelines.terminal import say
from resources.inspecting import InspectError, Inspection, SourceProposal, headline, inspect, survey
from resources.reading import unread_text
from resources.records import FieldMapping
from resources.sources import SourceError, SourceSettings

NAME = re.compile(r"^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$")
MOST_OBJECTS = 1_000
MOST_BYTES = 500_000_000
"""Most bytes of logs that are read, unless the number of objects is given."""
SAMPLE_ROWS = 5_000


class InitError(Misuse):
    """No recipe can be written from this input; the message says what to give instead."""


@dataclass
class RecipeWishes:
    """The user's answers. None: not given."""

    uris: list[str]
    output: Path | None = None
    base_model: str = TINY
    workload: str | None = None
    force: bool = False
    limit_objects: int | None = None
    sample: int = SAMPLE_ROWS


@dataclass
class NewRecipe:
    """The recipe that was written. trainable: number of the inspected rows that curation would keep."""

    path: Path
    contents: Contents
    left_out: list[SourceProposal] = field(default_factory=list)

    @property
    def trainable(self) -> int:
        return self.contents.trainable


def write_recipe(wanted: RecipeWishes, tell: Callable[[str], None] = lambda doing: None) -> NewRecipe:
    """Writes the recipe. Raises InitError, SourceError, InspectError or BaseModelError if none can be written."""
    for uri in wanted.uris:
        check_uri(uri)
    if wanted.workload is not None:
        check_name(wanted.workload)
    if wanted.output is not None:
        check_output(wanted.output, wanted.force)
    tell("listing")
    proposals = sources_under(wanted.uris)
    workload = wanted.workload or suggested_name(proposals, wanted.uris)
    path = (wanted.output or Path(f"{workload}.yaml")).expanduser().absolute()
    check_output(path, wanted.force)
    base = look_at_base(wanted.base_model)
    limit = wanted.limit_objects or _limit(proposals)
    seen = _inspected(proposals, wanted, limit, tell)
    contents = Contents(workload, base, proposals, seen, path.parent, date.today(), limit)
    _write_checked(path, recipe_text(contents))
    return NewRecipe(path, contents, [each for each in proposals if each.kind == "unknown"])


def sources_under(uris: list[str]) -> list[SourceProposal]:
    """The sources under some uris. Raises InitError for a uri without objects."""
    try:
        return survey(uris)
    except SourceError as error:
        raise InitError(str(error).removeprefix("source logs: ")) from error  # an internal name


def check_uri(uri: str) -> None:
    """Raises InitError for an empty uri or one with credentials."""
    if not uri.strip():
        raise InitError("the logs' place is empty; give a file, a directory, a glob or an s3:// prefix")
    try:
        SourceSettings(uri=uri)
    except ValidationError as error:
        raise InitError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def check_name(name: str) -> None:
    if not NAME.match(name) or len(name) > 63:
        raise InitError(
            f"workload {name!r}: a name has small letters, digits, - and _, begins and ends with a letter or "
            "digit, and has at most 63 of them"
        )


def check_output(path: Path, force: bool) -> None:
    if path.is_dir():
        raise InitError(f"--output {path} is a directory; give the recipe's file, such as {path / 'recipe.yaml'}")
    if path.exists() and not force:
        raise InitError(f"{path} exists; give another --output, or --force to replace it")


def suggested_name(proposals: list[SourceProposal], uris: list[str]) -> str:
    """A workload's name, from the path of its logs."""
    single = [each.name for each in proposals if each.kind == "logs"]
    name = single[0] if len(single) == 1 else Path(uris[0].removeprefix("file://").rstrip("/*")).name
    name = re.sub(r"[^a-z0-9_-]+", "-", name.lower().partition(".")[0]).strip("-_")[:63].strip("-_")
    return name if name and NAME.match(name) and name not in ("logs", "data", "tmp") else "my-workload"


def _limit(proposals: list[SourceProposal]) -> int:
    looks = [each.look for each in proposals if each.kind in ("logs", "feedback")]
    objects, size = sum(look.objects for look in looks), sum(look.bytes for look in looks)
    return max(1, min(MOST_OBJECTS, MOST_BYTES * objects // size if size else MOST_OBJECTS))


def _inspected(proposals: list[SourceProposal], wanted: RecipeWishes, limit: int, tell: Callable[[str], None]) -> Inspection:
    """Inspects the sources. Raises InitError if none has requests with answers."""
    logs = [each for each in proposals if each.kind == "logs"]
    where = ", ".join(wanted.uris)
    if not logs and any(each.kind == "feedback" for each in proposals):
        raise InitError(f"under {where} there is only feedback; name the logs that it belongs to as well")
    if not logs:
        detail = next((f"; {uri}: {problem}" for each in proposals for uri, problem in each.look.problems), "")
        raise InitError(f"no log of a known format lies under {where}{detail}. docs/data.md lists the formats")
    uris = [each.uri for each in proposals if each.kind in ("logs", "feedback")]
    try:
        inspection = inspect(
            uris,
            "auto",
            wanted.sample,
            limit,
            lambda doing: tell("reading the logs" if doing.startswith("reading") else doing),
            {each.uri: FieldMapping(**each.look.proposed) for each in proposals if each.look.proposed},
        )
    except (SourceError, InspectError) as error:
        raise InitError(str(error)) from error
    if not inspection.totals["rows"]:
        raise InitError(f"no request with an answer was read under {where}; name the logs, not the feedback alone")
    return inspection


def _write_checked(path: Path, text: str) -> None:
    """Writes the recipe under a temporary name and loads it first, so that the final file always loads."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            beside.write_text(text, encoding="utf-8")
            load_recipe(beside)
        finally:
            beside.unlink(missing_ok=True)
        write_text(path, text)
    except OSError as error:
        raise InitError(f"{path} cannot be written: {error.strerror or error}; give another --output") from error


USUAL_PLACES = ("logs", "data", "traffic")


def ask(wanted: RecipeWishes, base_given: bool, console: Console, at_terminal: bool) -> RecipeWishes:
    """Asks for missing values: the logs, the base model, a name. Raises InitError without a terminal."""
    if not at_terminal:
        said = "no logs were named, and there is no terminal to ask at: millrace init URI, such as ./logs or s3://bucket/logs/"
        raise InitError(said)
    console.print("Three questions, and the logs are looked at. Enter takes the answer in brackets; Ctrl-C ends it.\n")
    usual = next((f"./{name}" for name in USUAL_PLACES if Path(name).is_dir()), None)
    uri = _answer(console, "Where are the logs (a file, a directory, a glob or s3://...)?", usual, _logs)
    base = (
        wanted.base_model
        if base_given
        else _answer(
            console,
            "Which base model (a directory, a Hugging Face id, or tiny for a toy that needs nothing)?",
            "tiny",
            look_at_base,
        )
    )
    suggested = suggested_name(sources_under([uri]), [uri])
    workload = wanted.workload or _answer(console, "What is the workload called?", suggested, lambda name: _name(name, wanted))
    return replace(wanted, uris=[uri], base_model=base, workload=workload)


def _answer(console: Console, question: str, default: str | None, check: Callable[[str], object]) -> str:
    """Asks until the answer passes `check`, which raises an error with a sentence."""
    while True:
        console.print(Text(question, style="bold").append(f" [{default}] " if default else " ", style="dim"), end="")
        try:
            given = input().strip() or default or ""
        except EOFError:
            said = "the input ended before all questions were answered; give the logs as an argument: millrace init URI"
            raise InitError(said) from None
        try:
            check(given)
            return given
        except (InitError, BaseModelError) as error:
            console.print(f"  {error}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _logs(uri: str) -> None:
    check_uri(uri)
    proposals = sources_under([uri])
    if not any(source.kind == "logs" for source in proposals):
        problem = next((f": {uri}: {said}" for source in proposals for uri, said in source.look.problems), "")
        raise InitError(f"no log of a known format lies there{problem}")


def _name(name: str, wanted: RecipeWishes) -> None:
    check_name(name)
    if wanted.output is None:
        check_output(Path(f"{name}.yaml"), wanted.force)


def print_new_recipe(result: NewRecipe, console: Console) -> None:
    """Prints what was found, what was written, and what to do next."""
    contents = result.contents
    figures = [f"{number} {what}" for number, what in headline(contents.seen)[:2]]
    words = {
        "logs": "source{s} of logs",
        "feedback": "source{s} of feedback",
        "seeds": "set{s} of seeds",
        "evals": "evaluation suite{s}",
    }
    counts = {kind: len(contents.of(kind)) for kind in words}
    said = ", ".join(f"{count} {words[kind].format(s='s' * (count != 1))}" for kind, count in counts.items() if count)
    formats = ", ".join(
        dict.fromkeys(
            form
            for kind in ("logs", "feedback")
            for source in contents.of(kind)
            for form in source.look.formats or ["read by a proposed mapping: check its fields"]
        )
    )
    say(console, f"{', '.join(figures)} ({formats}); {said}.")
    for source in result.left_out:
        why = source.look.problems[0][1] if source.look.problems else "it holds no records"
        say(console, f"Left out: {source.uri}: {why}.", "yellow")
    for source in (*contents.of("logs"), *contents.of("feedback")):
        if keys := contents.seen.unread.get(source.uri):
            say(console, f"{source.name}: {unread_text(keys, source.look.proposed)}.", "yellow")
    if contents.base.kind == "tiny":
        say(
            console,
            "base_model is tiny, a toy built by the run: it shows that your logs reach a release. For a useful "
            "model, name one in the recipe.",
        )
    if contents.has_token_ids:
        say(console, "These logs hold token ids: base_model must have the tokenizer that made them.", "yellow")
    console.print(Text.assemble(("✓", "green"), f" {_short(result.path)}"), soft_wrap=True, highlight=False)
    if not result.trainable:
        decisions = contents.seen.decisions[:4]
        rules = ", ".join(f"{decision['rule'].replace('_', ' ')} {decision['rows']:,}" for decision in decisions)
        say(
            console,
            f"With this recipe, no row of these logs can be trained on ({rules}): look at the rows with millrace "
            "inspect, or add logs whose requests have answers.",
            "red",
        )
    recipe = shlex.quote(_short(result.path))
    console.print("\nNext:", style="bold")
    check = "test sources, model, disk and memory first"
    nexts = (("check", check), ("run", "from logs to a release"), ("ui", "the graph and its history in a browser"))
    lake = "" if os.environ.get("MILLRACE_LAKE") else " --lake ./lake"
    for word, what in nexts:
        command = f"millrace {word} {recipe}{lake}".ljust(len(f"millrace check {recipe}{lake}"))
        console.print(Text(f"  {command}  ").append(f"# {what}", style="dim"), soft_wrap=True, highlight=False)
    if not lake:
        console.print(Text(f"The lake is {os.environ['MILLRACE_LAKE']} (MILLRACE_LAKE)."), soft_wrap=True, highlight=False)


def _short(path: Path) -> str:
    here = Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)
