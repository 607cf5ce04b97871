"""What a file of sql/ says in its header, and what its statement really references and creates (DuckDB's own syntax tree).

    header = header_of(path.read_text())        # Header(needs={...}, parameters={...}, placeholders={...}, makes=[...])
    found = statement_of(path.read_text(), header.placeholders)

A header is the comment lines before the statement:

    -- Ids of the batch that the table already has.        what the statement is for
    -- needs: interactions, staged, moment()               relations and macros of ours, by name
    -- parameters: $workload, $days                        bound values
    -- placeholders: table                                 names that Python formats into the text
    -- makes: temp table known_ids (workload, interaction_id)

A line that begins with three spaces or more continues the field before it. `makes` is one of: rows (...), table | view | temp table |
temp view NAME (...), macro NAME(...), rows into NAME (...), deletion from NAME, update of NAME (...), comments.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

SQL = Path(__file__).resolve().parents[2] / "sql"
FIELDS = ("needs", "parameters", "placeholders", "makes")
PYTHON_FUNCTIONS = {
    "model_call_of", "joined_call_of", "chat_of", "beside_of", "call_of", "provider_chat_of", "normal_messages", "cleaned", "is_sought",
    "call_turns", "moment_of", "context_of", "finish_reason_of",
}
"""Functions that resources/reading/extraction.py and resources/erasing/pages.py register."""

_PREFIX = re.compile(
    r"\s*(?:create(?P<replace> or replace)?(?P<temp> temp)? (?P<what>table|view|macro) (?P<name>\w+|\{\w+\})"
    r"|insert into (?P<into>\w+|\{\w+\})(?: by name)?"
    r"|delete from (?P<delete>\w+|\{\w+\})"
    r"|update (?P<update>\w+|\{\w+\})"
    r"|comment on)"
)
_STAND_INS = {"columns": "*", "rows": "select * from no_rows", "types": "a: varchar", "files": "'file'", "kind": "view"}


@dataclass
class Header:
    """The fields of a file's header; `about` is its first sentence."""

    about: str = ""
    needs: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    placeholders: set[str] = field(default_factory=set)
    makes: str = ""


@dataclass
class Statement:
    """What a statement references and creates, in the words of a header."""

    needs: set[str]
    parameters: set[str]
    makes: str


def sql_files() -> list[str]:
    """Names of all files of sql/, without the ending."""
    return sorted(path.relative_to(SQL).as_posix().removesuffix(".sql") for path in SQL.rglob("*.sql"))


def split_header(text: str) -> tuple[list[str], str]:
    """The comment lines before the statement, without their dashes, and the rest."""
    lines = text.split("\n")
    count = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return [line.removeprefix("--").removeprefix(" ") for line in lines[:count]], "\n".join(lines[count:])


def header_of(text: str) -> Header:
    """Reads a file's header. A field that is not written is empty."""
    parts: dict[str, str] = {}
    current = "about"
    for line in split_header(text)[0]:
        name = line.split(":", 1)[0]
        if name in FIELDS:
            if name in parts:
                raise ValueError(f"the header says `{name}` twice")
            current, line = name, line.split(":", 1)[1]
        elif current != "about" and not line.startswith("   "):
            raise ValueError(f"`{line}` stands after `{current}`: say what the statement is for before the fields")
        parts[current] = f"{parts.get(current, '')} {line.strip()}".strip()
    return Header(
        about=parts.get("about", ""),
        needs=_names(parts.get("needs", "")),
        parameters=set(re.findall(r"[$:](\w+)", parts.get("parameters", ""))),
        placeholders=set(re.findall(r"\w+", parts.get("placeholders", ""))),
        makes=re.sub(r"\s+", " ", parts.get("makes", "")),
    )


def _names(text: str) -> set[str]:
    return {name.strip() for name in re.sub(r" \([^)]*\)", "", text).split(",") if name.strip()}


def statement_of(text: str, placeholders: set[str], macros: set[str]) -> Statement:
    """What the statement in `text` references and creates. `macros` are the names that count as needed when called."""
    body = split_header(text)[1].strip()
    names = {name: _STAND_INS.get(name, f"{name}_placeholder") for name in placeholders}
    if placeholders:
        body = body.format(**names)
    back = {value: f"<{name}>" for name, value in names.items()}
    match = _PREFIX.match(body)
    if match is None:
        needs, parameters, columns = _select(body, macros)
        makes = f"rows ({columns})"
    elif body.startswith("comment on"):
        return Statement(set(), set(), "comments")
    else:
        needs, parameters, makes = _other(match, body[match.end():].strip(), macros)
    needs = {back.get(name, name) for name in needs} - {"no_rows"}
    if "rows" in placeholders:
        needs.add("<rows>")
    for value, name in back.items():
        if value.endswith("_placeholder"):
            makes = makes.replace(value, name)
    return Statement(needs, parameters, makes)


def _other(match: re.Match[str], rest: str, macros: set[str]) -> tuple[set[str], set[str], str]:
    temp = "temp " if match["temp"] else ""
    if match["what"] == "macro":
        inside, body = re.match(r"\(([^)]*)\) as\s+(.*)", rest, re.DOTALL).groups()
        is_table = re.match(r"table\s+(.*)", body, re.DOTALL)
        needs, parameters, columns = _select(is_table[1] if is_table else f"select {body}", macros)
        what = f"macro {match['name']}({inside})" + (f" as rows ({columns})" if is_table else "")
        own = {name.strip() for name in inside.split(",")}
        return needs - own, parameters, what
    if match["what"] and rest.startswith("("):
        with duckdb.connect() as connection:
            connection.execute(f"create table made {rest}")
            columns = ", ".join(connection.table("made").columns)
        return set(), set(), f"{temp}{match['what']} {match['name']} ({columns})"
    if match["what"]:
        needs, parameters, columns = _select(re.sub(r"^as\s+", "", rest), macros)
        return needs, parameters, f"{temp}{match['what']} {match['name']} ({columns})"
    if match["into"]:
        needs, parameters, columns = _select(rest, macros)
        return needs | {match["into"]}, parameters, f"rows into {match['into']} ({columns})"
    if match["delete"]:
        using, _, condition = rest.partition("where ")
        condition, _, returned = condition.partition("returning ")
        source = ", ".join(filter(None, [match["delete"], using.removeprefix("using").strip()]))
        needs, parameters, columns = _select(f"select {returned or 1} from {source} where {condition}", macros)
        return needs, parameters, f"deletion from {match['delete']}" + (f", rows ({columns})" if returned else "")
    changed, word, source = re.match(r"set\s+(.*?)\n(from|where) (.*)", rest, re.DOTALL).groups()
    columns = ", ".join(part.split("=")[0].strip() for part in changed.split(","))
    values = ", ".join(part.split("=", 1)[1] for part in changed.split(",")) if word == "where" else "1"
    needs, parameters, _ = _select(f"select {values} from {match['update']}{',' if word == 'from' else ' where'} {source}", macros)
    return needs, parameters, f"update of {match['update']} ({columns})"


def _select(text: str, macros: set[str]) -> tuple[set[str], set[str], str]:
    """Relations and macros of a query, its parameters, and the names of its columns."""
    text = re.sub(r"(?<![:\w]):(?=[a-z]\w*\b)(?! )", "$", text) if re.search(r"(= |limit ):\w", text) else text
    with duckdb.connect() as connection:
        tree = json.loads(connection.execute("select json_serialize_sql($text)", {"text": text}).fetchall()[0][0])
    if tree["error"]:
        raise ValueError(f"{tree['error_message']} in: {text[:200]}")
    (statement,) = tree["statements"]
    needs: set[str] = set()
    _collect(statement["node"], frozenset(), needs, macros)
    return needs, {entry["key"] for entry in statement.get("named_param_map", [])}, ", ".join(_columns(statement["node"]))


def _collect(node: Any, scope: frozenset[str], needs: set[str], macros: set[str]) -> None:
    """Adds the relations that are no CTE of their scope, and the macros that are called."""
    if isinstance(node, list):
        for item in node:
            _collect(item, scope, needs, macros)
        return
    if not isinstance(node, dict):
        return
    if node.get("type") == "BASE_TABLE":
        name = ".".join(node["qualified_name"]["path"])
        if name not in scope:
            needs.add(name)
    if node.get("type") == "FUNCTION" and node["function_name"] in macros:
        needs.add(f"{node['function_name']}()")
    for entry in (node.get("cte_map") or {}).get("map", []):
        is_recursive = entry["value"]["query_node"]["type"] == "RECURSIVE_CTE_NODE"
        _collect(entry["value"], scope | {entry["key"]} if is_recursive else scope, needs, macros)
        scope = scope | {entry["key"]}
    for key, value in node.items():
        if key != "cte_map":
            _collect(value, scope, needs, macros)


def _columns(node: dict[str, Any]) -> list[str]:
    if "select_list" not in node:
        children = node.get("children") or [node["left"]]
        return _columns(children[0])
    return [_column(item) for item in node["select_list"]]


def _column(item: dict[str, Any]) -> str:
    if item.get("alias"):
        return item["alias"]
    if item["type"] == "STAR":
        return f"{item['relation_name']}.*" if item.get("relation_name") else "*"
    if item["type"] == "COLUMN_REF":
        return item["column_names"][-1]
    if item["type"] == "FUNCTION" and item["function_name"] == "unnest":
        return "unnest"
    return item.get("function_name") or item["type"].lower()
