"""The choices of a question as lines below it.

lines_of(["red", "green"], "Which colour?")             # ["A. red", "B. green"]
lines_of({"label": ["1", "2"], "text": ["red", "green"]}, "Which colour?")     # ["1. red", "2. green"]
"""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

CHOICES = ("choices", "options")


def lines_of(choices: Any, prompt: str) -> list[str]:
    """The labelled texts of a list, of {"label", "text"}, or of an object by label; none where the prompt has each of them."""
    labels, texts = ascii_uppercase, choices
    if isinstance(choices, dict):
        labels, texts = choices.get("label"), choices.get("text")
        if all(len(key) == 1 and key.isalnum() for key in choices):
            labels, texts = list(choices), list(choices.values())
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
        return []
    if all(text in prompt for text in texts):
        return []
    labels = labels if isinstance(labels, list) and len(labels) == len(texts) else ascii_uppercase
    return [
        text if text.startswith((f"{label})", f"{label}.", f"({label})")) else f"{label}. {text}"
        for label, text in zip(labels, texts, strict=False)
    ]
