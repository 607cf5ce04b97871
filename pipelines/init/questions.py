"""The questions of `millrace init`, and its closing message."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipelines.contract import BaseModelError, look_at_base
from pipelines.init.recipe_file import (
    InitError,
    NewRecipe,
    RecipeWishes,
    check_name,
    check_output,
    check_uri,
    sources_under,
    suggested_name,
)
from pipelines.terminal import say
from resources.inspecting import headline
from resources.reading import unread_text

USUAL_PLACES = ("logs", "data", "traffic")


def ask(wanted: RecipeWishes, base_given: bool, console: Console, at_terminal: bool) -> RecipeWishes:
    """Asks for missing values: the logs, the base model, a name. Raises InitError without a terminal."""
    if not at_terminal:
        raise InitError(
            "no logs were named, and there is no terminal to ask at: millrace init URI, such as ./logs or s3://bucket/logs/"
        )
    console.print("Three questions, and the logs are looked at. Enter takes the answer in brackets; Ctrl-C ends it.\n")
    usual = next((f"./{name}" for name in USUAL_PLACES if Path(name).is_dir()), None)
    uri = _answer(console, "Where are the logs (a file, a directory, a glob or s3://...)?", usual, _logs)
    base = (
        wanted.base_model
        if base_given
        else _answer(
            console, "Which base model (a directory, a Hugging Face id, or tiny for a toy that needs nothing)?", "tiny", _base
        )
    )
    suggested = suggested_name(sources_under([uri]), [uri])
    workload = wanted.workload or _answer(console, "What is the workload called?", suggested, lambda name: _name(name, wanted))
    return replace(wanted, uris=[uri], base_model=base, workload=workload)


def _answer(console: Console, question: str, default: str | None, check: Callable[[str], None]) -> str:
    """Asks until the answer passes `check`, which raises an error with a sentence."""
    while True:
        console.print(Text(question, style="bold").append(f" [{default}] " if default else " ", style="dim"), end="")
        try:
            given = input().strip() or default or ""
        except EOFError:
            raise InitError(
                "the input ended before all questions were answered; give the logs as an argument: millrace init URI"
            ) from None
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


def _base(name: str) -> None:
    look_at_base(name)


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
    nexts = (
        ("check", "test sources, model, disk and memory first"),
        ("run", "from logs to a release"),
        ("ui", "the graph and its history in a browser"),
    )
    lake = "" if os.environ.get("MILLRACE_LAKE") else " --lake ./lake"
    for word, what in nexts:
        command = f"millrace {word} {recipe}{lake}".ljust(len(f"millrace check {recipe}{lake}"))
        console.print(Text(f"  {command}  ").append(f"# {what}", style="dim"), soft_wrap=True, highlight=False)
    if not lake:
        console.print(Text(f"The lake is {os.environ['MILLRACE_LAKE']} (MILLRACE_LAKE)."), soft_wrap=True, highlight=False)


def _short(path: Path) -> str:
    here = Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)
