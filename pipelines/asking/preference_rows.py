"""`millrace show --preference`: rows of the preference dataset, at most 80 columns wide.

Of a pair the end of the prompt and both answers from shortly before their first difference, which » marks. After the pairs come
answers with a verdict, then the number of rows and of the pairs that each rule left out.
"""

import itertools
import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from model_ops.jobs import counted
from model_ops.rendering import Split
from pipelines.asking.rendered_rows import NothingToShow
from pipelines.contract import Recipe
from pipelines.terminal import say
from resources.artefacts import Registry
from resources.lake import LakeLayout
from resources.records import visible

WIDTH, LABEL = 80, 10
"""Columns of the output, and of the labels before a text."""
PROMPT_END, BEFORE, AFTER = 280, 70, 280
"""Characters shown of a prompt's end, before the first difference, and after it."""


@dataclass(frozen=True)
class PreferenceRows:
    """Rows to show, and how many there are."""

    split: Split
    pairs: int
    answers: int
    rows: list[dict[str, Any]]
    left_out: dict[str, int]
    """Pairs of all splits by the rule that left them out."""


def preferences_of(recipe: Recipe, lake: LakeLayout, split: Split, count: int, row_id: str | None = None) -> PreferenceRows:
    """The first rows of a split of the current preference_dataset, pairs first, or the row that is named. Raises NothingToShow
    without the dataset or the row."""
    registry = Registry(lake, recipe.workload)
    if not registry.exists("dataset", "preference_dataset"):
        raise NothingToShow(
            f"the lake has no preference_dataset of {recipe.workload} yet: give the recipe `datasets: {{preference: {{}}}}` "
            "and run `millrace run RECIPE --select +preference_dataset`"
        )
    manifest = registry.current("dataset", "preference_dataset")
    directory = registry.directory(manifest)
    paths = [directory / f"{prefix}{split}.parquet" for prefix in ("", "unpaired_")]
    pairs, answers = (pq.read_metadata(path).num_rows for path in paths)
    rows = [row for path in paths for row in _first(path, count, row_id)]
    if row_id is not None and not rows:
        raise NothingToShow(f"the split {split} of preference_dataset has no row {row_id}")
    return PreferenceRows(split, pairs, answers, rows[:count], manifest.metrics.get("dropped", {}).get("pairs", {}))


def _first(path: Path, count: int, row_id: str | None) -> list[dict[str, Any]]:
    if row_id is not None:
        return pq.read_table(path, filters=pc.field("row_id") == row_id).to_pylist()
    batch = next(pq.ParquetFile(path).iter_batches(count), None)
    return [] if batch is None else batch.to_pylist()


def print_preferences(shown: PreferenceRows, console: Console) -> None:
    for row in shown.rows:
        grades = {name: row[name] for name in ("confidence", "margin", "value", "weight") if row.get(name) is not None}
        words = "  ".join([row["reason"], *(f"{name} {value:.3g}" for name, value in grades.items())])
        console.print(Text.assemble((row["row_id"], "bold"), f"  {words}"), soft_wrap=True)
        last = json.loads(row["prompt"])[-1:] or [{}]
        prompt = f"{last[0].get('role', '')}: {_said(last[0])}"
        _print(console, "prompt", "…" * (len(prompt) > PROMPT_END) + prompt[-PROMPT_END:], "dim")
        if row.get("chosen") is None:
            _print(console, "wanted" if row["desirable"] else "unwanted", _cut(_said(json.loads(row["answer"])[0])))
            console.print()
            continue
        chosen, rejected = (_said(json.loads(row[side])[0]) for side in ("chosen", "rejected"))
        alike = sum(1 for _ in itertools.takewhile(lambda each: each[0] == each[1], zip(chosen, rejected, strict=False)))
        start = chosen.rfind(" ", 0, alike) + 1  # a word is shown whole
        before = "…" * (start > BEFORE) + chosen[max(0, start - BEFORE) : start]
        for label, text, style in (("chosen", chosen, "green"), ("rejected", rejected, "red")):
            _print(console, label, f"{before}»{_cut(text[start:])}", style)
        console.print()
    say(
        console,
        f"{counted(shown.pairs, 'pair')} and {counted(shown.answers, 'answer')} with a verdict in {shown.split}"
        + ("; » marks the first difference" if shown.pairs else ""),
    )
    if shown.left_out:
        words = ", ".join(f"{rule} {pairs:,}" for rule, pairs in shown.left_out.items())
        say(console, f"pairs left out: {words}; README.md of the dataset says why")


def _said(message: dict[str, Any]) -> str:
    """What a message says: reasoning, text, and calls."""
    content = message.get("content") or ""
    parts = content if isinstance(content, list) else [{"text": content}]
    thoughts = f"<think>{message['reasoning_content']}</think>" if message.get("reasoning_content") else ""
    calls = [call["function"] for call in message.get("tool_calls") or []]
    called = (f"{each.get('name')}({each.get('arguments')})" for each in calls)
    return visible(
        " ".join(filter(None, [thoughts, *(str(part.get("text", "[part]")) for part in parts), *called])), lines=True
    )


def _cut(text: str) -> str:
    return text if len(text) <= AFTER else f"{text[:AFTER]}…"


def _print(console: Console, label: str, text: str, style: str = "") -> None:
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, WIDTH - LABEL) or [""]]
    for number, line in enumerate(lines):
        console.print(Text.assemble(f"{'' if number else label:{LABEL}}", (line, style)), soft_wrap=True)
