"""One of several models of a server: what clients call it, what the server calls it, and the change of names in between.

An answer is changed as it passes, without being parsed: the JSON fields `model` and `system_fingerprint` are replaced where
they stand. A quotation mark inside of a JSON string is escaped, so text that a model wrote is never taken for such a field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


class NoModelNamedError(Exception):
    """A request that names none of the models that are served. status: HTTP status for the client."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Naming:
    model: str
    """Model in requests and in answers."""
    served_as: str
    """The server's name for it."""
    fingerprint: str = ""
    """What answers carry."""
    server_fingerprint: str = ""
    """What the server writes into all answers, which is replaced; "" for none."""

    def asked(self, body: bytes) -> bytes:
        """A request with the server's name of the model. The body is a JSON object with a field `model`."""
        said = json.loads(body)
        return json.dumps({**said, "model": self.served_as}).encode()

    def answer(self) -> NameReplacer:
        fields = [("model", self.served_as, self.model)]
        if self.server_fingerprint:
            fields.append(("system_fingerprint", self.server_fingerprint, self.fingerprint))
        return NameReplacer(
            [(_field(name, space, old), _field(name, space, new)) for name, old, new in fields for space in ("", " ")]
        )


class NameReplacer:
    """An answer in which texts are replaced as its parts arrive. What may be the beginning of such a text waits for the next
    part; the end of an event of a stream never does."""

    def __init__(self, pairs: list[tuple[bytes, bytes]]):
        self._pairs, self._held = pairs, b""
        self._longest = max(len(old) for old, _ in pairs)

    def part(self, data: bytes) -> bytes:
        text = self._held + data
        for old, new in self._pairs:
            text = text.replace(old, new)
        ends = self._beginning_at(text)
        self._held = text[ends:]
        return text[:ends]

    def _beginning_at(self, text: bytes) -> int:
        """Where the beginning of a text that may be replaced stands at the end; the length if there is none. Each of these
        texts begins with a quotation mark and has no line feed."""
        place = -1 if text.endswith(b"\n") else text.find(b'"', max(0, len(text) - self._longest + 1))
        while place >= 0 and not any(old.startswith(text[place:]) for old, _ in self._pairs):
            place = text.find(b'"', place + 1)
        return place if place >= 0 else len(text)

    def rest(self) -> bytes:
        """What still waits, at the answer's end."""
        held, self._held = self._held, b""
        return held


def model_of(body: bytes, known: list[str]) -> str:
    """The model that a request names; the only one there is, where it names none. Raises NoModelNamedError."""
    try:
        said: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoModelNamedError("the body is no JSON, so it names no model", 400) from error
    named = said.get("model") if isinstance(said, dict) else None
    if named in (None, "") and isinstance(said, dict) and len(known) == 1:
        return known[0]
    if not isinstance(named, str) or not named:
        raise NoModelNamedError(f"the request names no model; there are: {', '.join(known)}", 400)
    if named not in known:
        raise NoModelNamedError(f"no such model is served; there are: {', '.join(known)}", 404)
    return named


def _field(name: str, space: str, value: str) -> bytes:
    return f'"{name}":{space}{json.dumps(value)}'.encode()
