"""Keys of older recipes that another key replaced: accepted if both say the same, refused if they contradict each other.

    content, given = without_retired_keys(text.content)     # given: [(RetiredKey, 3)]
    broken = contradicted(given, recipe)                     # (key, sentence) of each contradiction

`millrace check` advises to remove such a key. To retire a key, delete its field and add a line to RETIRED_KEYS.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class RetiredKey:
    """A key `section.name` that older recipes have, and the key that replaced it."""

    section: str
    name: str
    replaced_by: str
    """The dotted key with the value that counts."""
    reason: str
    """Why both have the same value."""

    @property
    def dotted(self) -> str:
        return f"{self.section}.{self.name}"


RETIRED_KEYS = (
    RetiredKey("evaluation", "num_speculative_tokens", "speculator.num_speculative_tokens",
               "what is measured must be what is served"),
)


def without_retired_keys(content: Any) -> tuple[Any, list[tuple[RetiredKey, Any]]]:
    """The recipe's values without retired keys, and every retired key that they had, with its value."""
    given = []
    for key in RETIRED_KEYS:
        section = content.get(key.section) if isinstance(content, dict) else None
        if isinstance(section, dict) and key.name in section:
            section = copy(section)
            given.append((key, section.pop(key.name)))
            content = {**content, key.section: section}
    return content, given


def contradicted(given: list[tuple[RetiredKey, Any]], recipe: BaseModel) -> Iterator[tuple[str, str]]:
    """(key, sentence) for each retired key that says something else than the key that replaced it."""
    for key, value in given:
        counts = reduce(getattr, key.replaced_by.split("."), recipe)
        if value != counts or isinstance(value, bool):
            yield key.dotted, (f"{key.dotted} is {value} and {key.replaced_by} {counts}, but {key.reason}; leave the first out")
