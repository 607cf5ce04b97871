from itertools import pairwise

import duckdb
import pytest

from resources.digests.code import PROJECT
from resources.digests.sql import sql_digest, sql_tokens


@pytest.mark.parametrize(("one", "other"), [
    ("select 1", "-- why\nselect\n\t1\n-- end"),
    ("select f(a, b)", "select f(\n  a,  -- the first\n  b\n)"),
    ("select 1", "select /* a /* b */ c */ 1"),
    ("select 1", "select/**/1"),
    ("a - b", "a-b"),
    ("a - b", "a -/* not -- this */ b"),
    ("a->>'x'", "a ->> 'x'"),
    ("select $workload::varchar", "select $workload :: varchar"),
    ("select 'a' -- it's", "select 'a'"),
    ("select 'a' /* it's */", "select 'a'"),
])  # fmt: skip
def test_comments_and_layout_do_not_count(one, other):
    assert sql_tokens(one) == sql_tokens(other) and sql_digest(one) == sql_digest(other)


@pytest.mark.parametrize(("one", "other"), [
    ("select 1", "select 2"),
    ("select 'a b'", "select 'a  b'"),
    ("select 'a'", "select 'A'"),
    ("select 'it''s -- no comment'", "select 'it''s'"),
    ("select '--' || 'x'", "select '--' || 'y'"),
    ("select '/*', 1, '*/'", "select '/*', 2, '*/'"),
    (r"select e'\'' -- x'", r"select e'\'' || 'x'"),
    (r"select '\' -- x", r"select '\' || 'x'"),
    ("select E'a'", "select E 'a'"),
    ('select "a -- b"', 'select "a"'),
    ('select "a""b"', 'select "a" "b"'),
    ("select $$ -- a $$", "select $$ $$"),
    ("select $t$ $$ 'x' $t$", "select $t$ $$ 'y' $t$"),
    ("select a >= b", "select a > = b"),
    ("select a - -b", "select a --b"),
    ("select ab", "select a b"),
    ("select 1.5", "select 1 5"),
    ("select $a", "select $b"),
    ("select 1e5", "select 1 e5"),
    ("select a.b", "select a b"),
])  # fmt: skip
def test_what_can_change_a_result_counts(one, other):
    assert sql_digest(one) != sql_digest(other)


@pytest.mark.parametrize("text", ["select 1 /* open", "select $$ open", "/* a /* b */"])
def test_what_does_not_end_is_refused(text):
    with pytest.raises(ValueError, match=r"has no end"):
        sql_tokens(text)


def _in_duckdb(text: str) -> list[str]:
    encoded = text.encode()
    marks = [*duckdb.tokenize(text), (len(encoded), None)]
    return [
        encoded[start:end].decode().strip() for (start, kind), (end, _) in pairwise(marks) if kind != duckdb.token_type.comment
    ]


FILES = sorted((PROJECT / "sql").rglob("*.sql"))


def test_duckdb_reads_the_same_from_the_tokens_of_every_file():
    """Joined by single spaces, the tokens of each of the project's files are the same SQL to DuckDB's own tokenizer."""
    assert len(FILES) > 50
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        ours, theirs = " ".join(_in_duckdb(" ".join(sql_tokens(text)))), " ".join(_in_duckdb(text))
        assert ours.replace(" ", "") == "".join(theirs.split()) or ours.split() == theirs.split(), file
