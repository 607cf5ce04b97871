"""`millrace show`: how the rows of a recipe's dataset are rendered for the model that is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from model_ops.jobs import Misuse
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
    """The directory of the model that is trained first: the lake's base model, else the directory that the recipe names; None
    where neither is there."""
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
