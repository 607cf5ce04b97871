r"""Makes text from logs safe to show: characters that control a terminal, reorder text or are invisible are escaped as in
Python ('a\\x1b[31mb'). The joiners U+200C and U+200D stay: scripts and emoji are written with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_UNSEEN = (
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_STEERING = re.compile(f"[{_UNSEEN}]")
_WITHIN_LINES = re.compile(f"(?![\n\t])[{_UNSEEN}]")
_SPELT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, lines: bool = False) -> str:
    """The text with these characters escaped. lines: line ends and tabs stay."""
    return (_WITHIN_LINES if lines else _STEERING).sub(_spelt, text)


def page_environment(templates: Path) -> Environment:
    """Renders the pages of a folder of templates: HTML is escaped, and so are these characters of the values that they show."""
    from jinja2 import Environment, FileSystemLoader, select_autoescape

    return Environment(
        loader=FileSystemLoader(templates),
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value, lines=True) if type(value) is str else value,
    )


def escaped_json(text: str) -> str:
    """JSON text of the same values, with these characters as JSON escapes."""
    return _WITHIN_LINES.sub(_json_escape, text)


def _spelt(match: re.Match[str]) -> str:
    code = ord(match[0])
    spelt = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _SPELT.get(match[0], spelt)


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))
