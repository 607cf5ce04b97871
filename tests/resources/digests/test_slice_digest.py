"""The digest of a table slice: the same for the same rows however they lie, another for any other row."""

from itertools import pairwise

import duckdb
import pyarrow as pa
import pytest
from interaction_rows import days_of, interaction, store

from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.digests.code import PROJECT
from resources.digests.slices import slice_digest
from resources.digests.sql import sql_digest, sql_tokens
from resources.lake.tables import SCHEMAS


def test_digest_follows_content_not_history(tables, tmp_path):
    rows = [
        interaction(n, "Go", f"answer {n} of a few words, so that shingles of either length tell it", day=n % 2)
        for n in range(6)
    ]
    store(tables, "interactions", rows)
    digest = slice_digest(tables, "interactions", "tutor")
    store(tables, "interactions", rows[::-1])
    assert slice_digest(tables, "interactions", "tutor") == digest
    clean(tables, "tutor", days_of(rows), CurationSettings())
    cleaned = slice_digest(tables, "cleaned_interactions", "tutor")
    clean(tables, "tutor", days_of(rows), CurationSettings(near_duplicates={"ngram": 3}))
    assert slice_digest(tables, "cleaned_interactions", "tutor") != cleaned
    store(tables, "interactions", [*rows[:5], interaction(5, "Go", "away", day=1)])
    assert slice_digest(tables, "interactions", "tutor") != digest
    assert slice_digest(tables, "interactions", "nobody") == slice_digest(tables, "feedback", "nobody")
    with pytest.raises(ValueError, match="quarantine has no slice digest"):
        slice_digest(tables, "quarantine", "tutor")


def as_table(rows: list) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"])


def _rows(count: int, days: int = 3) -> list:
    return [interaction(n, "Go", f"answer {n}", day=n % days) for n in range(count)]


@pytest.fixture
def read(monkeypatch):
    """The days that were read, call by call."""
    from resources.digests import slices as module

    found, original = [], module._digests_of_days

    def counted(tables, name, workload, days, query):
        found.append([day.day for day in days])
        return original(tables, name, workload, days, query)

    monkeypatch.setattr(module, "_digests_of_days", counted)
    return found


def test_days_that_nobody_wrote_to_are_not_read_again(tables, read):
    store(tables, "interactions", _rows(9))
    first = slice_digest(tables, "interactions", "tutor")
    assert slice_digest(tables, "interactions", "tutor") == first and [len(days) for days in read] == [3]
    everything, changed = _rows(9), interaction(4, "Go", "another answer", day=1)
    store(tables, "interactions", [row for row in [*everything[:4], changed, *everything[5:]] if row["dt"] == changed["dt"]])
    assert slice_digest(tables, "interactions", "tutor") != first
    assert [len(days) for days in read] == [3, 1]
    store(tables, "interactions", [row for row in everything if row["dt"] == changed["dt"]])
    assert slice_digest(tables, "interactions", "tutor") == first


def test_append_delete_compaction_and_time_travel(tables, read):
    rows = _rows(9)
    store(tables, "interactions", rows)
    first = slice_digest(tables, "interactions", "tutor")
    version = tables.open("interactions").version()
    more = interaction(100, "Go", "appended", day=0)
    before = len(read)
    tables.append("interactions", as_table([more]))
    appended = slice_digest(tables, "interactions", "tutor")
    assert appended != first and len(read) == before + 1
    tables.open("interactions").optimize.compact()
    assert slice_digest(tables, "interactions", "tutor") == appended
    tables.replace("interactions", as_table([]), workload="tutor", dt=[more["dt"]])
    deleted = slice_digest(tables, "interactions", "tutor")
    assert deleted not in (first, appended)
    tables.open("interactions").restore(version)
    assert slice_digest(tables, "interactions", "tutor") == first


def test_what_is_remembered_can_be_lost_damaged_or_of_another_way_to_digest(tables, read):
    store(tables, "interactions", _rows(6))
    first = slice_digest(tables, "interactions", "tutor")
    [kept] = (tables.lake.root / ".remembered").rglob("*.json")
    for text in ("", "{}", "[]", '{"made_by": "another", "answers": {}}'):
        kept.write_text(text)
        assert slice_digest(tables, "interactions", "tutor") == first
    assert len(read) == 5
    kept.unlink()
    assert slice_digest(tables, "interactions", "tutor", remember=False) == first
    assert not kept.exists()


def test_one_workload_or_way_of_looking_does_not_answer_for_another(tables):
    store(tables, "interactions", _rows(6))
    found = {
        slice_digest(tables, "interactions", workload, as_served)
        for workload in ("tutor", "nobody")
        for as_served in (False, True)
    }
    assert len(found) == 3


@pytest.mark.parametrize(("one", "other"), [
    ("select 1", "-- why\nselect\n\t1\n-- end"), ("select f(a, b)", "select f(\n  a,  -- the first\n  b\n)"),
    ("select 1", "select /* a /* b */ c */ 1"), ("select 1", "select/**/1"), ("a - b", "a-b"),
    ("a - b", "a -/* not -- this */ b"), ("a->>'x'", "a ->> 'x'"), ("select $workload::varchar", "select $workload :: varchar"),
    ("select 'a' -- it's", "select 'a'"), ("select 'a' /* it's */", "select 'a'"),
])  # fmt: skip
def test_comments_and_layout_do_not_count(one, other):
    assert sql_tokens(one) == sql_tokens(other) and sql_digest(one) == sql_digest(other)


@pytest.mark.parametrize(("one", "other"), [
    ("select 1", "select 2"), ("select 'a b'", "select 'a  b'"), ("select 'a'", "select 'A'"),
    ("select 'it''s -- no comment'", "select 'it''s'"), ("select '--' || 'x'", "select '--' || 'y'"),
    ("select '/*', 1, '*/'", "select '/*', 2, '*/'"), (r"select e'\'' -- x'", r"select e'\'' || 'x'"),
    (r"select '\' -- x", r"select '\' || 'x'"), ("select E'a'", "select E 'a'"), ('select "a -- b"', 'select "a"'),
    ('select "a""b"', 'select "a" "b"'), ("select $$ -- a $$", "select $$ $$"),
    ("select $t$ $$ 'x' $t$", "select $t$ $$ 'y' $t$"), ("select a >= b", "select a > = b"), ("select a - -b", "select a --b"),
    ("select ab", "select a b"), ("select 1.5", "select 1 5"), ("select $a", "select $b"), ("select 1e5", "select 1 e5"),
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
