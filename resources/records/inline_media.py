"""Replaces inline pictures, sounds and files in a request with references to the hash and size of the decoded bytes, also in a
text that is JSON: {"url": "data:image/png;base64,..."} -> {"url": "sha256:<hex>;image/png;<bytes>"}. URLs and invalid base64
stay."""

import base64
import binascii
import hashlib
import json
import mimetypes
import re
from typing import Any

from model_ops.chat_apis import json_text

NEEDLES = ("base64", "input_audio", "inlineData", "inline_data", '"bytes"')
"""A record without any of these has no inline media. The list is short because every record is searched for each."""

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?[^,]{0,200};base64,")
SHORT = 64
"""Base64 shorter than this stays: a reference would not be shorter."""


def referenced(value: Any) -> Any:
    if isinstance(value, str):
        head = _DATA_URL.match(value)
        if head:
            return _reference(value[head.end() :], head[1] or "application/octet-stream") or value
        return _written(value)
    if isinstance(value, list):
        return [referenced(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _sound(item) if key in ("input_audio", "audio") else referenced(item) for key, item in _blob(value).items()}


def _written(text: str) -> str:
    if len(text) < SHORT or text.lstrip()[:1] not in ("{", "[") or not any(needle in text for needle in NEEDLES):
        return text
    try:
        value = json.loads(text)
        shortened = referenced(value)
        return text if shortened == value else json_text(shortened)
    except (ValueError, RecursionError):
        return text


def _sound(value: Any) -> Any:
    """OpenAI's {data: base64, format: wav | mp3}."""
    if isinstance(value, dict) and isinstance(value.get("data"), str):
        form = value.get("format")
        reference = _reference(value["data"], f"audio/{form}" if isinstance(form, str) else "audio")
        return {**value, "data": reference or value["data"]}
    return referenced(value)


def _blob(value: dict[str, Any]) -> dict[str, Any]:
    """Anthropic's {type: base64, media_type, data}, Gemini's {mimeType, data}, Bedrock's {format, source: {bytes}}."""
    media_type = value.get("media_type") if value.get("type") == "base64" else value.get("mimeType", value.get("mime_type"))
    if isinstance(value.get("data"), str) and (value.get("type") == "base64" or isinstance(media_type, str)):
        reference = _reference(value["data"], str(media_type or "application/octet-stream"))
        return {**value, "data": reference or value["data"]}
    source = value.get("source")
    if isinstance(source, dict) and isinstance(source.get("bytes"), str):
        media_type = mimetypes.guess_type(f"file.{value.get('format')}")[0] or "application/octet-stream"
        return {**value, "source": {**source, "bytes": _reference(source["bytes"], media_type) or source["bytes"]}}
    return value


def _reference(text: str, media_type: str) -> str | None:
    if len(text) < SHORT:
        return None
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return f"sha256:{hashlib.sha256(content).hexdigest()};{media_type};{len(content)}"
