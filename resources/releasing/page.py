"""Renders templates of a release's pages: HTML is escaped, Markdown is escaped where a table would break."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    return environment.get_template(template).render(**values)


def _cell(text: str) -> str:
    """A cell of a Markdown table: on one line, without what ends a cell or begins a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
