"""A locked connection to the catalog, read-only, and the check that a statement is exactly one query that only reads: only
files that the views name can be opened; no extension, secret, Python variable or setting. DuckDB's lock allows `copy` to
overwrite the files that may be read, so its own parser checks statements first: since DuckDB 2.0 a `copy ... to` or an `insert`
may be a CTE, and `query` and `json_execute_serialized_sql` run any text."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from resources.lake import sql_literal, sql_text

DEFAULT_MEMORY_GIB = 4.0
SPILLS = 4
"""Limit of the spill folder, as a multiple of the memory."""

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_CLOSED: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "http_proxy": "none",  # else the environment's, with its password, is a setting that a query can show
}


@dataclass(frozen=True)
class Limits:
    """Limits of one query."""

    memory_gib: float | None = None
    """None for 4 GiB, or half of the machine's memory if that is less."""
    spill: Path | None = None
    """The folder for data that does not fit; None for a temporary one."""


@contextmanager
def locked(catalog: Path, root: Path, limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    """A locked connection to a catalog of the lake at `root`. Raises duckdb.Error if it cannot be opened."""
    with (
        nullcontext(limits.spill) if limits.spill else TemporaryDirectory(prefix="millrace-sql-") as spill,
        duckdb.connect(config={**_CLOSED, "temp_directory": str(spill)}) as connection,
    ):
        _bound(connection, limits)
        connection.execute("set timezone = 'UTC'")
        connection.execute(f"attach {sql_literal(str(catalog))} as catalog (read_only)")
        connection.execute("use catalog")
        connection.execute(f"set variable lake = {sql_literal(str(root))}")
        paths = ", ".join(sql_literal(f"{root}/{path}") for path in _own_files(connection))
        connection.execute(f"set allowed_paths = [{paths}]")
        connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        yield connection


def memory_gib(connection: duckdb.DuckDBPyConnection) -> float:
    [(said,)] = connection.execute("select current_setting('memory_limit')").fetchall()
    number, unit = said.split()
    return float(number) * _UNITS[unit] / 2**30


def files_of_views(catalog: Path) -> list[str]:
    """Paths inside the lake of the files that a catalog's views read."""
    with duckdb.connect(str(catalog), read_only=True) as connection:
        return _own_files(connection)


def _bound(connection: duckdb.DuckDBPyConnection, limits: Limits) -> None:
    half_of_the_machine = memory_gib(connection) / 0.8 / 2  # DuckDB's own limit is 80 % of the memory that it may use
    mib = round(1024 * (limits.memory_gib or min(DEFAULT_MEMORY_GIB, half_of_the_machine)))
    connection.execute(f"set memory_limit = '{mib} MiB'")
    connection.execute(f"set max_temp_directory_size = '{SPILLS * mib} MiB'")


def _own_files(connection: duckdb.DuckDBPyConnection) -> list[str]:
    paths = connection.execute("select distinct path from view_files").fetchall()
    return [path for (path,) in paths if not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts]


_QUERIES = {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}
"""DuckDB splits a pivot into several statements (MULTI), and a `create table ... as pivot` too."""


_READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_RUN_TEXT = {"query", "json_execute_serialized_sql"}
"""Table functions that run the SQL in their argument, which may be composed at run time."""
_WRITING = {"copy", "insert", "update", "delete", "merge", "truncate", "create", "drop", "alter", "export", "import", "attach"}


class NotAQuestionError(Exception):
    """A statement is not a query; the message says what it is."""


def check_question(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises NotAQuestionError unless `sql` is one query, duckdb.Error if it is not SQL."""
    statements = connection.extract_statements(sql)
    if not statements:
        raise NotAQuestionError('the query is empty: give SQL, such as "from artefacts"')
    if len(statements) > 1:
        raise NotAQuestionError(f"{len(statements)} statements were given, and none was run: ask one query at a time")
    kind = _kind(statements[0])
    if kind is duckdb.StatementType.EXPLAIN:
        queries = [text for text in _explained(statements[0].query) if _is_query(connection, text)]
    else:
        queries = [statements[0].query] if kind in _QUERIES and _is_query(connection, statements[0].query) else []
    holds = bool(queries)
    if holds and not all(_only_reads(connection, _without_end(text)) for text in queries):
        raise NotAQuestionError(
            "a part of this query writes, or runs SQL from a text (copy, insert, update or delete in brackets; query(...); "
            "json_execute_serialized_sql(...)): nothing was run; plain DuckDB on the lake's catalog.duckdb runs anything"
        )
    if not holds:
        raise NotAQuestionError(
            "only a query can be asked (select, from, with, values, describe, show, summarize, pivot, explain), and this is "
            f"a {kind.name if kind else 'newer'} statement: nothing was run; plain DuckDB on the lake's catalog.duckdb runs "
            "anything"
        )


def _kind(statement: duckdb.Statement) -> duckdb.StatementType | None:
    """The kind of a statement; None if DuckDB's Python package has no name for it (`update extensions`)."""
    try:
        return statement.type
    except ValueError:
        return None


def _is_query(connection: duckdb.DuckDBPyConnection, statement: str) -> bool:
    text = _without_end(statement)
    try:
        alone = connection.extract_statements(text)
        inside = connection.extract_statements(f"from (\n{text}\n)")
    except duckdb.Error:
        return False
    return len(alone) == len(inside) == 1 and _kind(alone[0]) in _QUERIES


def _only_reads(connection: duckdb.DuckDBPyConnection, text: str) -> bool:
    """Whether no part of a query writes or runs other SQL, by its syntax tree, or by its words if DuckDB gives no tree."""
    [(said,)] = connection.execute(sql_text("catalog/queries/syntax_tree"), {"text": text}).fetchall()
    tree = json.loads(said)
    return _tree_only_reads(tree) if not tree.get("error") else _words_only_read(text)


def _tree_only_reads(tree: Any) -> bool:
    if isinstance(tree, list):
        return all(map(_tree_only_reads, tree))
    if not isinstance(tree, dict):
        return True
    kind = tree.get("type")
    if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _READING_NODES:
        return False
    if str(tree.get("function_name", "")).lower() in _RUN_TEXT:
        return False
    return all(map(_tree_only_reads, tree.values()))


def _words_only_read(text: str) -> bool:
    """Whether no bracket begins with a statement that writes, and no function that runs text is called."""
    words = _words(text)
    for bracket, word, after in zip(words, words[1:], [*words[2:], ""], strict=False):
        if bracket == "(" and word in _WRITING and re.match(r"[\w\"'$(]", after):
            return False
        if word == "(" and bracket.strip('"') in _RUN_TEXT:
            return False
    return True


def _words(text: str) -> list[str]:
    return [word.lower() for _, word in _tokens(text)]


def _tokens(text: str) -> list[tuple[int, str]]:
    """(place, token) of a statement, comments left out. DuckDB counts places in bytes of UTF-8; these are characters."""
    encoded = text.encode("utf-8", "surrogatepass")
    marks = [*duckdb.tokenize(text), (len(encoded), duckdb.token_type.comment)]
    return [
        (len(encoded[:start].decode("utf-8", "surrogatepass")), encoded[start:end].decode("utf-8", "surrogatepass").strip())
        for (start, kind), (end, _) in pairwise(marks)
        if kind != duckdb.token_type.comment
    ]


def _without_end(statement: str) -> str:
    tokens = _tokens(statement)
    ends = len(statement)
    while tokens and tokens[-1][1] == ";":
        ends = tokens.pop()[0]
    return statement[:ends]


def _explained(statement: str) -> list[str]:
    tokens = _tokens(statement)
    starts = [place for place, _ in tokens] + [len(statement)]
    words = [word.lower() for _, word in tokens]
    first = 2 if len(words) > 1 and words[1] == "analyze" else 1
    depth = 0
    for number in range(first, len(words)):
        depth += (words[number] == "(") - (words[number] == ")")
        if depth == 0:
            return [statement[starts[first] :], statement[starts[number + 1] :]]
    return [statement[starts[first] :]]
