"""JSON text that UTF-8 can hold, from logs whose writers cut a text in the middle of a character.

    json_text({"content": "x\\ud83d"})           # '{"content":"x\\ufffd"}': half a character becomes U+FFFD
    mended('{"content": "x\\\\ud83d"}')           # the same of a text; None where no half of a character is its fault

JSON writes a character beyond the first 65,536 as two escapes, a surrogate pair. JavaScript's slice, and token streams,
part them, and what is left is valid JSON to Python and to browsers, but no text to Arrow, to DuckDB or to a tokenizer.
"""

from __future__ import annotations

import json
from typing import Any


def json_text(value: Any, separators: tuple[str, str] = (",", ":")) -> str:
    """The value as JSON. Halves that stand together become their character, others U+FFFD.

    Raises ValueError for integers of more than 4,300 digits, and RecursionError.
    """
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    return text if _is_whole(text) else whole(text)


def whole(text: str) -> str:
    """The text without halves of characters."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mended(text: str) -> str | None:
    """JSON text with halves of characters replaced; None for what is no JSON, and for what had none of them."""
    try:
        written = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None
    return None if _is_whole(written) else whole(written)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
