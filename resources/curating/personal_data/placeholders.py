"""Replaces personal data in chat messages by typed placeholders, the same for a value as long as one redactor is used. JSON
stays JSON: each key and value is redacted by itself, also in strings that contain JSON.

    redactor = Redactor()                                          # one for each session
    redactor.redact_json('[{"role":"user","content":"mail a@b.org"}]')   # ... "mail <EMAIL_1>"
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from model_ops.chat_apis import json_text
from resources.curating.personal_data.secret_patterns import Span
from resources.curating.pii_patterns import card, find_personal_data

_PLAIN_KEYS = frozenset(("role", "content", "text", "type", "name", "description", "reasoning", "refusal"))
_JOINING_KEYS = frozenset(("tool_call_id", "call_id", "tool_use_id"))
"""Ids that join a call with its result: neither may change alone."""
_AFTER_KEY = re.compile(r"[\"']\s*:\s*\Z")

MOST_REMEMBERED = 2_000
"""Texts of a session whose findings are remembered: each turn of a conversation repeats its history."""


def finder(engine: str) -> Callable[[str], Iterable[Span]]:
    """The function that finds personal data in a text: `builtin`, or `presidio`, which adds to it. Raises PresidioError."""
    if engine == "builtin":
        return find_personal_data
    from resources.curating.personal_data.presidio import presidio_finder

    return presidio_finder()


class Redactor:
    """Replaces what `find_personal_data` finds and numbers the values; use one redactor per session."""

    def __init__(self, find: Callable[[str], Iterable[Span]] = find_personal_data) -> None:
        self.counts: Counter[str] = Counter()
        self._search = find
        self._remembered: dict[str, list[Span]] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._last: Counter[str] = Counter()

    def redact(self, text: str) -> str:
        return self._replace(text, self._find(text))

    def redact_json(self, text: str) -> str:
        """JSON text with every key and value redacted, other text as a whole; without personal data the same bytes."""
        before = self.counts.total()
        try:
            value = self._walk(json.loads(text))
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            return self.redact(text)
        if self.counts.total() == before:
            return text
        return json_text(value)

    def _find(self, text: str) -> list[Span]:
        spans = self._remembered.get(text)
        if spans is None:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            spans = self._remembered[text] = list(self._search(text))
        return spans

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._json_inside(value) if value[:1] in ("{", "[") and len(value) > 2 else self.redact(value)
        if isinstance(value, list):
            return [self._walk(item) for item in value]
        if isinstance(value, dict):
            named: dict[str, Any] = {}
            for key, item in value.items():
                if key in _JOINING_KEYS or (key == "id" and "function" in value):
                    named[key] = item
                    continue
                spelt = self.redact(key)
                while spelt in named:  # two keys with the same placeholder: both values are kept
                    spelt += "'"
                named[spelt] = self._named(key, item)
            return named
        if isinstance(value, int) and value >= 10**12 and card(str(value)):
            return self._holder("CARD", str(value))
        return value

    def _named(self, key: str, value: Any) -> Any:
        """Redacts a value, using its key: "password" marks a value that no pattern would find."""
        if type(value) is int and value >= 10**6:
            text = str(value)
            spans = self._find(f"{key}: {text}")
            whole = next((span for span in spans if (span.start, span.end) == (len(key) + 2, len(key) + 2 + len(text))), None)
            return self._holder(whole.kind, whole.identity) if whole else value
        if not isinstance(value, str) or key in _PLAIN_KEYS or len(value) > 512 or value[:1] in ("{", "["):
            return self._walk(value)
        begin = len(key) + 2
        spans = [
            Span(span.start - begin, span.end - begin, *span[2:])
            for span in self._find(f"{key}: {value}")
            if span.start >= begin
        ]
        return self._replace(value, spans)

    def _json_inside(self, text: str) -> str:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return self.redact(text)
        if "\\" not in text:
            return self.redact(text)
        before = self.counts.total()
        value = self._walk(value)
        if self.counts.total() == before:
            return text
        return json_text(value, (", ", ": ") if '": ' in text else (",", ":"))

    def _replace(self, text: str, spans: Iterable[Span]) -> str:
        parts, last = [], 0
        for span in spans:
            holder = self._holder(span.kind, span.identity)
            # {"card": 4111...} inside a text: a placeholder needs quotes there, or the JSON would be invalid
            bare = text[span.start].isdigit() and _AFTER_KEY.search(text, max(0, span.start - 8), span.start)
            parts += [text[last : span.start], f'"{holder}"' if bare else holder]
            last = span.end
        return "".join([*parts, text[last:]]) if parts else text

    def _holder(self, kind: str, identity: str) -> str:
        number = self._numbers.get((kind, identity))
        if number is None:
            self._last[kind] += 1
            number = self._numbers[(kind, identity)] = self._last[kind]
        self.counts[kind] += 1
        return f"<{kind}_{number}>"
