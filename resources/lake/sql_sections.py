"""The statements of sql/: each is a section of a file, and its name is the file's path and the section's name.

    sql_text("curating/judge/texts_to_judge")      # the section texts_to_judge of sql/curating/judge.sql

A file holds what belongs to one table, dataset or step. A section begins with its name and what it is for, and ends where the
next one begins:

    -- name: texts_to_judge
    -- The answers that no judge has scored yet.
    select ... from cleaned_interactions where ...

    -- name: counts
    ...

`-- placeholders: table` under the description lists names in braces that Python formats into the text. What a statement reads,
makes and has bound is not written down: tests/sql takes it from the syntax tree, and finds a relation that nothing makes, a
parameter that nobody binds, and a section that nobody runs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

SQL = Path(__file__).resolve().parents[2] / "sql"


def sql_text(name: str) -> str:
    """The text of a statement. Raises LookupError if there is no such file or section."""
    file, _, section = name.rpartition("/")
    try:
        return sections(SQL / f"{file}.sql")[section]
    except (FileNotFoundError, KeyError):
        raise LookupError(f"there is no statement {name}: add the section `-- name: {section}` to sql/{file}.sql") from None


@cache
def sections(path: Path) -> dict[str, str]:
    """The statements of a file, by section, in their order. Raises ValueError for a name that occurs twice."""
    _, *parts = re.split(r"^-- name: (\w+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    names, texts = parts[::2], [text.strip() + "\n" for text in parts[1::2]]
    if len(set(names)) < len(names):
        raise ValueError(f"{path} has two sections of one name: give one of {', '.join(names)} another")
    return dict(zip(names, texts, strict=True))
