"""Paths to one value in a JSON record, as `fields` writes them: "$.payload.items[0].text", with [-1] for the last one; a key
with a dot or a bracket is quoted. Where a step meets a text that is JSON, it goes on inside the text."""

import json
import re
from typing import Any

Steps = tuple[str | int, ...]

_STEP = re.compile(r"""\.?(?P<key>[^.\[\]"'*?]+)|\[(?P<place>-?\d{1,9})\]|\[(?P<quoted>"(?:[^"\\]|\\.)+"|'[^']+')\]""")
_DEEP = 32


def steps_of(path: str) -> Steps:
    """The keys and positions of a path. Raises ValueError, with one sentence, for a path that names no single value."""
    rest = path.strip()
    rest = rest[1:] if rest.startswith("$") else rest
    rest = rest.removeprefix(".")
    steps: list[str | int] = []
    while rest:
        step = _STEP.match(rest)
        if step is None or (rest.startswith(".") and not steps):
            raise ValueError(_fault(path))
        if step["place"] is not None:
            steps.append(int(step["place"]))
        elif step["quoted"] is not None:
            steps.append(_unquoted(step["quoted"], path))
        else:
            steps.append(step["key"].strip())
        rest = rest[step.end() :]
        if (rest and rest[0] not in ".[") or rest == ".":
            raise ValueError(_fault(path))
    if not steps or "" in steps or isinstance(steps[0], int) or len(steps) > _DEEP:
        raise ValueError(_fault(path))
    return tuple(steps)


def _unquoted(text: str, path: str) -> str:
    try:
        return text[1:-1] if text.startswith("'") else json.loads(text)
    except ValueError:
        raise ValueError(_fault(path)) from None


def _fault(path: str) -> str:
    why = "names many values, and one is needed" if re.search(r"[*?]|\.\.", path) else "is not a path"
    return f"{path!r} {why}; write keys and positions, such as payload.request or items[0].text"


def path_of(steps: Steps) -> str:
    written = ""
    for step in steps:
        if isinstance(step, int):
            written += f"[{step}]"
        elif re.fullmatch(r"[^.\[\]\"'*?$\s](?:[^.\[\]\"'*?]*[^.\[\]\"'*?\s])?", step):
            written += f".{step}" if written else step
        else:
            written += f"[{json.dumps(step, ensure_ascii=False)}]"
    return written


def value_at(record: Any, steps: Steps) -> Any:
    value = record
    for step in steps:
        if isinstance(value, str):
            value = structure_in(value)
        if isinstance(value, list) and isinstance(step, str) and step.isdecimal():
            step = int(step)  # items.0.text
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def structure_in(text: str) -> dict | list | None:
    """The JSON object or list that a text holds, also one that was encoded twice; None for any other text."""
    text = text.strip().removeprefix("\ufeff")
    if text[:1] not in ("{", "[", '"'):
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return structure_in(parsed) if isinstance(parsed, str) else parsed
