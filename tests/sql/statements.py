"""What the statements of sql/ reference, bind and make, by DuckDB's own syntax tree, and what Python runs and binds.

statement = parsed("curating/judge/texts_to_judge")      # needs, parameters, functions, makes, about
callers()                                                # what the product's Python names, binds and registers
"""

import ast
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import duckdb

from resources.digests.code import PROJECT
from resources.lake.sql_files import SQL, sections, sql_text

PYTHON_FUNCTIONS = {
    "edit_of", "prompt_of", "model_call_of", "joined_call_of", "chat_of", "beside_of", "call_of", "provider_chat_of",
    "normal_messages", "cleaned", "is_sought", "call_turns", "moment_of", "user_of", "context_of", "finish_reason_of",
    "label_of", "thumb_of",
}  # fmt: skip
"""Functions that resources/records/extraction.py and resources/erasing/sought.py register."""
OUTSIDE = {"sqlite_master", "runs", "run_tags", "event_logs", "julianday"}
"""What SQLite has, and Dagster's databases."""
PRODUCT = ("assets", "millrace", "pipelines", "resources", "stores")

_PREFIX = re.compile(
    r"\s*(?:create(?: or replace)?(?: temp)? (?P<what>table|view|macro) (?P<name>\w+|\{\w+\})"
    r"|insert into (?P<into>\w+|\{\w+\})(?: by name)?"
    r"|delete from (?P<delete>\w+|\{\w+\})"
    r"|update (?P<update>\w+|\{\w+\})"
    r"|comment on)"
)
_STAND_INS = {"columns": "*", "rows": "select * from no_rows", "types": "a: varchar", "files": "'file'", "kind": "view"}


@dataclass
class Statement:
    """A statement in words."""

    about: str
    """The comment under its name."""
    placeholders: set[str]
    needs: set[str] = field(default_factory=set)
    """Relations that it reads or changes, without its own CTEs and placeholders."""
    functions: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    makes: str = ""
    """The relation or macro that it creates, if any."""


def all_statements() -> list[str]:
    """The names of all statements, file by file."""
    return [
        f"{file.relative_to(SQL).with_suffix('').as_posix()}/{section}"
        for file in sorted(SQL.rglob("*.sql"))
        for section in sections(file)
    ]


@cache
def parsed(name: str) -> Statement:
    return statement_of(sql_text(name))


def statement_of(text: str) -> Statement:
    """What a section's text, below its name, says and does."""
    lines = text.split("\n")
    count = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    about, _, placeholders = "\n".join(lines[:count]).partition("-- placeholders:")
    found = Statement(about.replace("--", "").strip(), set(re.findall(r"\w+", placeholders)))
    body = "\n".join(lines[count:]).strip()
    if body.startswith("comment on"):
        return found
    names = {name: _STAND_INS.get(name, f"{name}_placeholder") for name in found.placeholders}
    if names:
        body = body.format(**names)
    match = _PREFIX.match(body)
    if match is None:
        _read(body, found)
    else:
        _read_other(match, body[match.end() :].strip(), found)
    found.needs -= {"no_rows", *names.values()}
    return found


def _read_other(match: re.Match[str], rest: str, found: Statement) -> None:
    found.makes = match["name"] or ""
    if match["what"] == "macro":
        inside, body = re.match(r"\(([^)]*)\) as\s+(.*)", rest, re.DOTALL).groups()
        is_table = re.match(r"table\s+(.*)", body, re.DOTALL)
        _read(is_table[1] if is_table else f"select {body}", found)
        found.needs -= {name.strip() for name in inside.split(",")}
    elif match["what"]:
        if not rest.startswith("("):
            _read(re.sub(r"^as\s+", "", rest), found)
    elif match["into"]:
        _read(rest, found)
        found.needs.add(match["into"])
    elif match["delete"]:
        using, _, condition = rest.partition("where ")
        condition, _, returned = condition.partition("returning ")
        source = ", ".join(filter(None, [match["delete"], using.removeprefix("using").strip()]))
        _read(f"select {returned or 1} from {source} where {condition}", found)
    else:
        changed, word, source = re.match(r"set\s+(.*?)\n(from|where) (.*)", rest, re.DOTALL).groups()
        values = ", ".join(part.split("=", 1)[1] for part in changed.split(",")) if word == "where" else "1"
        _read(f"select {values} from {match['update']}{',' if word == 'from' else ' where'} {source}", found)


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@cache
def known_functions() -> set[str]:
    """Those of DuckDB and of the project's Python."""
    names = _parser().execute("select distinct function_name from duckdb_functions()").fetchall()
    return {name for (name,) in names} | PYTHON_FUNCTIONS


def _read(text: str, found: Statement) -> None:
    """Adds what a query references and binds."""
    text = re.sub(r"(?<![:\w]):(?=[a-z]\w*\b)(?! )", "$", text) if re.search(r"(= |limit ):\w", text) else text
    tree = json.loads(_parser().execute("select json_serialize_sql($text)", {"text": text}).fetchall()[0][0])
    if tree["error"]:
        raise ValueError(f"{tree['error_message']} in: {text[:200]}")
    (statement,) = tree["statements"]
    _collect(statement["node"], frozenset(), found)
    found.parameters |= {entry["key"] for entry in statement.get("named_param_map", [])}


def _collect(node: Any, scope: frozenset[str], found: Statement) -> None:
    """Adds the relations that are no CTE of their scope, and the functions that are called."""
    if isinstance(node, list):
        for item in node:
            _collect(item, scope, found)
        return
    if not isinstance(node, dict):
        return
    if node.get("type") == "BASE_TABLE":
        name = ".".join(node["qualified_name"]["path"])
        if name not in scope:
            found.needs.add(name)
    if node.get("type") == "FUNCTION":
        found.functions.add(node["function_name"])
    for entry in (node.get("cte_map") or {}).get("map", []):
        is_recursive = entry["value"]["query_node"]["type"] == "RECURSIVE_CTE_NODE"
        _collect(entry["value"], scope | {entry["key"]} if is_recursive else scope, found)
        scope = scope | {entry["key"]}
    for key, value in node.items():
        if key != "cte_map":
            _collect(value, scope, found)


@dataclass
class Callers:
    """What the product's Python says to DuckDB."""

    strings: set[str] = field(default_factory=set)
    """All text constants; statements, relations and parameters are named by some."""
    chosen_from: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Beginning of an f-string -> text constants of the files that have it: names of statements are put together of both."""
    named: set[str] = field(default_factory=set)
    """Statements that a call names."""
    bound: dict[str, list[set[str]]] = field(default_factory=lambda: defaultdict(list))
    """Statement -> the parameters of each call that names it and binds all by keyword."""
    words: set[str] = field(default_factory=set)
    """Keywords of calls and names of fields: what `**parameters` may hold."""

    def runs(self, name: str) -> bool:
        return name in self.strings or any(
            name.startswith(beginning) and self._is_named(name.removeprefix(beginning), texts)
            for beginning, texts in self.chosen_from.items()
        )

    @staticmethod
    def _is_named(rest: str, texts: set[str]) -> bool:
        """Whether constants of a file make the rest of a name: {table}_added, {format}/pairs, {query}."""
        ends = (text for text in texts if text and not text[0].isalnum())
        return rest in texts or rest.rpartition("/")[2] in texts or rest.endswith(tuple(ends))


@cache
def callers() -> Callers:
    found = Callers()
    for file in (file for folder in PRODUCT for file in (PROJECT / folder).rglob("*.py")):
        strings, beginnings = set(), set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
            elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant) and "/" in node.values[0].value:
                beginnings.add(node.values[0].value)
            elif isinstance(node, ast.Call):
                _read_call(node, found)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.words.add(node.target.id)
        found.strings |= strings
        for beginning in beginnings:
            found.chosen_from[beginning] |= strings
    return found


def _read_call(node: ast.Call, found: Callers) -> None:
    found.words |= {keyword.arg for keyword in node.keywords if keyword.arg}
    called = getattr(node.func, "id", "")
    place = {"run": 1, "rows": 1, "stream": 1, "create_view": 1, "sql_text": 0}.get(called, len(node.args))
    for argument in node.args[place : place + 1]:
        if isinstance(argument, ast.Constant):
            found.named.add(argument.value)
            if called in ("run", "rows", "stream") and all(keyword.arg for keyword in node.keywords):
                found.bound[argument.value].append({keyword.arg for keyword in node.keywords})
