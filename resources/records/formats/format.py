"""A log format as the reader sees it: a name, a way to recognise its records, and what its SQL fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """`fills` names the sections of sql/reading/formats/<name>.sql: interactions, feedback, or both."""

    name: str
    recognises: Callable[[dict], bool]
    fills: tuple[str, ...] = ("interactions",)
    turns: bool = False
    """A record is a conversation, and each of its answers an interaction."""
    plain_text: bool = False
    """A file that is not JSON is one record {text}, where the recipe names the format."""
    streamed: bool = False
    """Its lines are chunks of answers, joined before anything else."""
    rows_as: str = ""
    """The format whose SQL is used."""
    paired: bool = False
    """Requests and responses lie in different objects, and resources/reading/pairing.py joins them."""
    spans: bool = False
    """`calls` and `sides` are run too, and resources/reading/span_events.py joins spans with their log records."""
    when_named: Callable[[dict], bool] | None = None
    """How it recognises records where the recipe names the format, if another way than elsewhere."""

    def accepts(self, record: dict) -> bool:
        """Whether a record is of this format, where the recipe names the format."""
        return (self.when_named or self.recognises)(record)
