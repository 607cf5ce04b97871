r"""What stands in the code fences of an answer, whose strings and docstrings may hold fences themselves.

    json_values('```json\n{"note": "```sh"}\n```')       # [{"note": "```sh"}]
    code_blocks("Here:\n```python\nx = 1\n```")           # [Block("python", "x = 1\n", 16, 22)]

A fence of JSON ends where its value does. A fence of code ends at the first line of enough ticks before which the code is
Python, else at the first such line that is not indented deeper than the fence, as in CommonMark."""

import ast
import json
import re
from bisect import bisect_right as bisect
from textwrap import dedent
from typing import Any, NamedTuple

_OPENING = re.compile(r"(?P<ticks>`{3,}|~{3,})[ \t]*(?P<language>[\w.+#-]*)(?:[^\n`]*\n|[ \t]*)")
_IN_A_LINE = re.compile(r"(?:(?:python|py)[\d.]*|json|tool_code|tool_call)?", re.IGNORECASE)
_CLOSING_LINE = re.compile(r"^(?P<indent>[ \t]*)(?P<ticks>`{3,}|~{3,})[ \t\r]*$", re.MULTILINE)
_VALUE_AT = re.compile(
    r"(?:`{3,}|~{3,})[ \t]*(?:[a-zA-Z][\w.+#-]*(?=[\s{\[\"])"
    r"(?:[ \t]+(?!(?:true|false|null)\b)(?:[a-zA-Z]|\{[.#])[^\n`]*(?=\n))?)?\s*"
)
_CLOSING = re.compile(r"\s*(?:`{3,}|~{3,})")
MOST_TRIES = 50
"""Places that are tried as the end of one block, or as the beginning of JSON: each costs the time to parse."""
MOST_BLOCKS = 100


class Block(NamedTuple):
    """A fenced block."""

    language: str
    code: str
    start: int
    end: int
    """start, end: where the code stands in the text."""


def json_values(text: str, decoder: json.JSONDecoder) -> list[Any]:
    """The value of the text where it is JSON as a whole, else those of its fences that hold one JSON value each."""
    bare = text.strip().removeprefix("\ufeff").strip()
    try:
        return [decoder.decode(bare)]
    except (ValueError, RecursionError):
        pass
    values, place = [], 0
    for _ in range(MOST_TRIES):
        if (opening := _VALUE_AT.search(bare, place)) is None:
            break
        place = opening.end()
        try:
            value, end = decoder.raw_decode(bare, place)
        except (ValueError, RecursionError):
            continue
        if closing := _CLOSING.match(bare, end):
            values.append(value)
            place = closing.end()
    return values


def code_blocks(text: str) -> list[Block]:
    """The fenced blocks of a text; none of a text that is Python as a whole, whose docstrings may hold some."""
    if is_python(text):
        return []
    blocks: list[Block] = []
    ends, place = list(_CLOSING_LINE.finditer(text)), 0
    while (opening := _OPENING.search(text, place)) and len(blocks) < MOST_BLOCKS:
        before = text[text.rfind("\n", 0, opening.start()) + 1 : opening.start()]
        if before.strip("> \t") and not _IN_A_LINE.fullmatch(opening["language"]):
            place = opening.end("ticks")  # ticks in prose
            continue
        end = _end_of(text, opening, ends[bisect(ends, opening.start(), key=re.Match.start) :], len(before))
        begin, until = opening.end(), end.start() if end else len(text)
        blocks.append(Block(opening["language"].lower(), text[begin:until], begin, until))
        place = end.end() if end else len(text)
    return blocks


def _end_of(text: str, opening: re.Match[str], lines: list[re.Match[str]], indent: int) -> re.Match[str] | None:
    """The fence that closes a block; None where none does. lines: those of nothing but ticks, behind the opening."""
    ticks, begin = opening["ticks"], opening.end()
    fitting = [each for each in lines[:MOST_TRIES] if each["ticks"].startswith(ticks) and each.start() >= begin - 1]
    whole = next((each for each in fitting if is_python(text[begin : each.start()])), None)
    if whole is None and is_python(text[begin:]):
        return None
    flat = next((each for each in fitting if len(each["indent"]) <= indent), None)
    return whole or flat or next(iter(fitting), None) or re.compile(ticks).search(text, begin)


def is_python(code: str) -> bool:
    """Whether the text parses as Python, also where it is indented as a whole."""
    try:
        ast.parse(dedent(code) if code.lstrip("\r\n")[:1].isspace() else code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
