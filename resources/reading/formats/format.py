"""A log format as the reader sees it: a name, a way to recognise its records, and what its SQL fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """`fills` names the SQL files under sql/reading/formats/<name>/: interactions, feedback, or both.

    turns: a record is a conversation, and each of its answers an interaction. plain_text: a file that is not JSON is one
    record {text}, where the recipe names the format. streamed: its lines are chunks of answers, joined before anything else.
    rows_as: the format whose SQL is used. paired: requests and responses lie in
    different objects, and resources/reading/pairing.py joins them. spans: `calls` and `sides` are run too, and
    resources/reading/span_events.py joins spans with their log records. when_named: how it recognises records where the recipe
    names the format, if another way than elsewhere.
    """

    name: str
    recognises: Callable[[dict], bool]
    fills: tuple[str, ...] = ("interactions",)
    turns: bool = False
    plain_text: bool = False
    streamed: bool = False
    rows_as: str = ""
    paired: bool = False
    spans: bool = False
    when_named: Callable[[dict], bool] | None = None

    def accepts(self, record: dict) -> bool:
        """Whether a record is of this format, where the recipe names the format."""
        return (self.when_named or self.recognises)(record)
