"""Which SQL is a question: one query, told by DuckDB's own parser.

    check_question(connection, "select 1")       # fine
    check_question(connection, "copy ...")       # raises NotAQuestionError, which says what was given

A query is select, from, with, values, table, describe, show, summarize, pivot or unpivot, and explain of one of them.
Several statements are refused: none of them is run.
"""

from __future__ import annotations

from itertools import pairwise

import duckdb

_QUERIES = {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}
"""DuckDB takes a pivot apart into several statements (MULTI), and a `create table ... as pivot` too."""


class NotAQuestionError(Exception):
    """A statement that is no query; one sentence that says what it is."""


def check_question(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises NotAQuestionError unless `sql` is one query, duckdb.Error where it is no SQL."""
    statements = connection.extract_statements(sql)
    if not statements:
        raise NotAQuestionError("there is no SQL in what was asked: give a query, such as \"from artefacts\"")
    if len(statements) > 1:
        raise NotAQuestionError(f"{len(statements)} statements were given, and none was run: ask one query at a time")
    kind = _kind(statements[0])
    if kind is duckdb.StatementType.EXPLAIN:
        holds = any(_is_query(connection, text) for text in _explained(statements[0].query))
    else:
        holds = kind in _QUERIES and _is_query(connection, statements[0].query)
    if not holds:
        raise NotAQuestionError(
            "only a query can be asked (select, from, with, values, describe, show, summarize, pivot, explain), and this is "
            f"a {kind.name if kind else 'newer'} statement: nothing was run; plain DuckDB on the lake's catalog.duckdb runs "
            "anything"
        )


def _kind(statement: duckdb.Statement) -> duckdb.StatementType | None:
    """The kind of a statement; None for those that DuckDB's Python package has no name for (`update extensions`)."""
    try:
        return statement.type
    except ValueError:
        return None


def _is_query(connection: duckdb.DuckDBPyConnection, statement: str) -> bool:
    """Whether a statement is grammatically a query: one that can stand where a table stands."""
    text = _without_end(statement)
    try:
        alone = connection.extract_statements(text)
        inside = connection.extract_statements(f"from (\n{text}\n)")
    except duckdb.Error:
        return False
    return len(alone) == len(inside) == 1 and _kind(alone[0]) in _QUERIES


def _without_end(statement: str) -> str:
    """A statement without the semicolons and comments after it."""
    tokens = [(place, kind) for place, kind in duckdb.tokenize(statement) if kind != duckdb.token_type.comment]
    ends = len(statement)
    while tokens and statement[tokens[-1][0]] == ";":
        ends = tokens.pop()[0]
    return statement[:ends]


def _explained(statement: str) -> list[str]:
    """What an `explain` may be of: the words after it, with and without options in brackets."""
    tokens = [(place, kind) for place, kind in duckdb.tokenize(statement) if kind != duckdb.token_type.comment]
    starts = [place for place, _ in tokens] + [len(statement)]
    words = [statement[start:end].strip().lower() for start, end in pairwise(starts)]
    first = 2 if len(words) > 1 and words[1] == "analyze" else 1
    depth = 0
    for number in range(first, len(words)):
        depth += (words[number] == "(") - (words[number] == ")")
        if depth == 0:
            return [statement[starts[first]:], statement[starts[number + 1]:]]
    return [statement[starts[first]:]]
