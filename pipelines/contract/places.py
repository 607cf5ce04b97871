"""What a recipe says of models on this machine, and its values with the absolute paths that reading made (LocalPath)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from model_ops.graders import GraderSettings
from pipelines.contract.fields import TINY, RecipeFields


def with_absolute_paths(given: Any, read: Any) -> Any:
    """Values of a recipe as they were given, with the texts that reading made of them."""
    if isinstance(read, GraderSettings) and isinstance(given, str):  # the short form of one grader
        (part,) = read.parts.values()
        return part.by
    if isinstance(given, dict):
        held = dict(read) if isinstance(read, BaseModel) else read if isinstance(read, dict) else {}
        return {key: with_absolute_paths(value, held.get(key)) for key, value in given.items()}
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [with_absolute_paths(*pair) for pair in zip(given, read, strict=True)]
    return read if isinstance(given, str) and isinstance(read, str) else given


def where_models_lie(recipe: RecipeFields) -> Iterator[tuple[str, str]]:
    """Problems (key, sentence): a revision of a base model that is not on the Hub, a student with more layers than its
    teacher. A Hub id's layers are unknown until it is fetched."""
    is_here = recipe.base_model == TINY or Path(recipe.base_model).is_absolute()
    if recipe.base_revision is not None and is_here:
        yield "base_revision", f"it is {recipe.base_revision}, and base_model is not on the Hugging Face Hub; leave it out"
    student, layers = recipe.student, recipe.tiny.layers if recipe.base_model == TINY else _layers_of(recipe.base_model)
    if layers is None or not student.enabled or student.base is not None:
        return
    try:
        student.depth(layers)
    except ValueError as error:
        yield "student.layers", str(error)


def _layers_of(directory: str) -> int | None:
    try:
        config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
        layers = config.get("text_config", config).get("num_hidden_layers")
    except (OSError, ValueError, AttributeError):
        return None
    return layers if isinstance(layers, int) else None
