"""Writes JSON as valid UTF-8, from logs whose writers cut a text inside a surrogate pair.

    json_text({"content": "x\\ud83d"})           # '{"content":"x\\ufffd"}': a lone surrogate becomes U+FFFD
    mended('{"content": "x\\\\ud83d"}')           # the same for JSON text; None if it has no lone surrogate

JSON escapes a character beyond the first 65,536 as a surrogate pair. JavaScript's slice and token streams split pairs; the
result is valid JSON for Python and browsers, but not valid text for Arrow, DuckDB or a tokenizer.
"""

import json
from typing import Any


def json_text(value: Any, separators: tuple[str, str] = (",", ":")) -> str:
    """The value as JSON. Surrogates that form a pair become their character, lone ones U+FFFD.

    Raises ValueError for integers of more than 4,300 digits, and RecursionError.
    """
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    return text if _is_whole(text) else whole(text)


def whole(text: str) -> str:
    """The text with lone surrogates replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mended(text: str) -> str | None:
    """JSON text with lone surrogates replaced; None for invalid JSON, and for JSON without any."""
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
