"""`millrace show`: rows of a dataset as they are rendered for training and, with --preference, pairs at most 80 columns wide:
the end of the prompt and both answers from shortly before their first difference, which » marks."""

from __future__ import annotations

import itertools
import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from model_ops.jobs import Misuse, counted
from model_ops.rendering import Picture, ServedTokens, Split
from pipelines.contract import Recipe, look_at_base
from pipelines.terminal import say
from resources.artefacts import Registry
from resources.lake import LakeLayout
from resources.records import visible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST = 4_000
"""Characters of a run that the terminal shows; the middle of longer ones is left out."""


class NothingToShow(Misuse):
    """The lake has no dataset or model to show yet; the message says what makes it."""


def picture_of(recipe: Recipe, lake: LakeLayout, split: Split, count: int, row_id: str | None = None) -> Picture:
    """The rendered rows of the current sft_dataset. Raises NothingToShow without it or without the base model, and ModelError
    for an unknown row or a tokenizer without chat template."""
    registry = Registry(lake, recipe.workload)
    model = _model(recipe, registry)
    if model is None or not registry.exists("dataset", "sft_dataset"):
        raise NothingToShow(
            f"the lake has no {'base_model' if model is None else 'sft_dataset'} of {recipe.workload} yet: run "
            "`millrace run RECIPE --select +sft_dataset --select base_model` first"
        )
    served = None
    if registry.exists("dataset", "served_answers"):
        path = registry.directory(registry.current("dataset", "served_answers")) / "served.parquet"
        served = ServedTokens.read(path) if path.exists() else None
    dataset = registry.directory(registry.current("dataset", "sft_dataset"))
    return Picture.of(dataset, split, load_tokenizer(model), count, row_id, served)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    from model_ops.models import load_tokenizer as load  # imports torch

    return load(directory)


def _model(recipe: Recipe, registry: Registry) -> Path | None:
    """The lake's base model, else the directory that the recipe names; None where neither is there."""
    if registry.exists("model", "base_model"):
        return registry.directory(registry.current("model", "base_model"))
    base = look_at_base(recipe.base_model)
    return Path(base.name) if base.kind == "directory" else None


def print_picture(picture: Picture, console: Console) -> None:
    """Prints context dim and learnt text in colour; where there is no colour, learnt text stands between « and »."""
    colour = console.color_system is not None
    for row in picture.rows:
        words = f"left out: {row.refusal}" if row.refusal else f"{row.learnt_tokens:,} of {row.tokens:,} tokens learnt"
        if len(row.contexts) > 1:
            words += f", {len(row.contexts)} contexts"
        if row.served_answers:
            words += f", {row.served_answers} answers with the log's own token ids"
        console.print(Text.assemble((row.row_id, "bold"), f"  {words}", style="red" if row.refusal else ""))
        for context in row.contexts:
            text = Text()
            for run in context:
                shown = visible(_shortened(run.text), lines=True)
                text.append(shown if colour or not run.is_learnt else f"«{shown}»", "bold green" if run.is_learnt else "dim")
            console.print(text)
            console.print()
    say(
        console,
        f"first {picture.looked_at:,} rows of {picture.split}: {picture.contexts:,} contexts, {picture.tokens:,} "
        f"tokens, {picture.learnt_tokens:,} learnt",
    )
    for reason, rows in picture.dropped.items():
        say(console, f"left out: {rows:,} rows: {reason}", style="red")


def _shortened(text: str) -> str:
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}\n[... {len(text) - LONGEST:,} characters ...]\n{text[-half:]}"


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
