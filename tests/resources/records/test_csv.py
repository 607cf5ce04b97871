"""CSV and TSV: how each is written, what a broken row costs, and which records the rows become."""

import csv
import gzip
import io
import json
import re

import pytest
import zstandard
from test_formats import read

from resources.records.objects import csv_reader
from resources.records.objects.log_reader import RecordProblem
from resources.records.objects.object_reader import read_object

ASKED, SAID = [{"role": "user", "content": 'say "hé",\nplease; now'}], {"role": "assistant", "content": "yes"}
ROWS = [{"id": str(n), "q": 'a "b", c;\td\n\ne', "ok": "" if n else "x"} for n in range(3)]


def parts(content, name="a.csv"):
    """(records by line, problems by line)."""
    records, problems = {}, {}
    for found in read_object(io.BytesIO(content), name, plain_text=False):
        if isinstance(found, RecordProblem):
            problems[found.row] = (found.error_code, found.message)
        else:
            records.update(zip(found.rows.to_pylist(), map(json.loads, found.raw.to_pylist()), strict=True))
    return records, problems


def written(rows, separator=",", **how):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=separator, **how)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "export", "a.csv.gz"])
@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
@pytest.mark.parametrize(
    "how", [{}, {"lineterminator": "\n"}, {"quoting": csv.QUOTE_ALL}, {"doublequote": False, "escapechar": "\\"}]
)
def test_separators_quotes_and_line_ends_are_recognised(name, separator, how):
    records, problems = parts(written(ROWS, separator, **how).encode(), name)
    assert not problems and list(records) == [2, 5, 8]
    assert [row | {"ok": row.get("ok", "")} for row in records.values()] == ROWS


@pytest.mark.parametrize("pack", [
    lambda text: text.encode(), lambda text: text.encode("utf-8-sig"), lambda text: gzip.compress(text.encode()),
    lambda text: zstandard.compress(text.encode()), lambda text: text.encode("utf-16"), lambda text: text.encode("utf-16-le"),
    lambda text: gzip.compress(text.encode("utf-16-be")), lambda text: ("sep=,\n" + text).encode(),
])  # fmt: skip
def test_it_is_read_packed_marked_and_in_utf_16(pack):
    records, problems = parts(pack(written([{"id": "1", "q": "hé\nho"}])))
    assert list(records.values()) == [{"id": "1", "q": "hé\nho"}] and not problems


def test_a_broken_row_is_a_problem_at_its_line_and_costs_no_other():
    lines = [
        "id;User Message;c", '1;"a', 'b";x', "2;short", ";;", '3;"bad" tail;x', "", '4;ok;"open', "5;fine;y",
        "6;M\udcfcller;z", "7;hé;z", "8;a;b;c",
    ]  # fmt: skip
    records, problems = parts("\r\n".join(lines).encode("utf-8", "surrogateescape"))
    assert {line: row["id"] for line, row in records.items()} == {2: "1", 9: "5", 11: "7"}
    assert {line: code for line, (code, _) in problems.items()} == {
        4: "malformed_row", 6: "malformed_row", 8: "malformed_row", 10: "invalid_utf8", 12: "malformed_row",
    }  # fmt: skip
    assert "2 columns, and the header has 3" in problems[4][1] and "is not closed" in problems[8][1]
    assert "Latin-1" in problems[10][1] and "ller" not in problems[10][1]


@pytest.mark.parametrize(("rows", "line", "said"), [
    (b"hi,you\na,b,c\nd,e,f\nq\n", 3, "the row has 3 columns, and the header has 2"),
    (b'hi,"you\n', 2, "a quote .* is not closed"),
])  # fmt: skip
def test_a_table_that_names_its_columns_is_one_however_many_rows_are_broken(rows, line, said):
    records, problems = parts(b"prompt,answer\n" + rows)
    assert next(iter(problems)) == line and re.search(said, problems[line][1])
    assert records == ({2: {"prompt": "hi", "answer": "you"}} if line == 3 else {})


@pytest.mark.parametrize(
    ("content", "keys"),
    [(b",a,b\n0,x,y\n", ["column_1", "a", "b"]), (b"a,b,\n1,2,\n", ["a", "b"]), (b"text\none word\n", ["text"])],
)
def test_unnamed_and_single_columns(content, keys):
    assert [list(row) for row in parts(content)[0].values()] == [keys]


@pytest.mark.parametrize(("content", "name"), [
    (b"These are, the logs.\nThey are, from June.\n", "readme.txt"), (b"1,hi\n2,ho\n", "a.csv"), (b"a,a\n1,2\n", "a.csv"),
    ("id,text\n1,Müller\n".encode("latin-1"), "a.csv"), (b"<a,b>\n<c,d>\n", "x"),
])  # fmt: skip
def test_what_is_no_table_or_has_no_usable_header_is_one_problem(content, name):
    records, problems = parts(content, name)
    assert not records and list(problems) == [0]


def test_json_lines_below_junk_and_empty_tables_are_no_tables():
    assert parts(b"a,b\n") == ({}, {})
    assert csv_reader.dialect_of(b'ready, go\n{"a": 1, "b": 2}\n', whole=True, named=False) is None


def test_an_end_that_is_cut_keeps_the_rows_before_it():
    packed = gzip.compress(written([{"id": str(n), "q": f"question {n}, {n * 7919}"} for n in range(5000)]).encode())
    records, problems = parts(packed[: len(packed) // 2])
    assert len(records) > 500 and problems[0][0] == "damaged_file"


def test_rows_are_given_before_the_rest_is_read(monkeypatch):
    monkeypatch.setattr(csv_reader, "BATCH_BYTES", 20_000)

    class Endless(io.RawIOBase):
        rows = 0

        def read(self, size=-1):
            if not self.rows:
                self.rows = 1
                return b"id,q\n"
            if self.rows > 40_000:
                return b""
            self.rows += 2_000
            return b"".join(b'%d,"%s\n"\n' % (n, b"word " * 20) for n in range(self.rows, self.rows + 2_000))

    file = Endless()
    found = read_object(file, "a.csv", plain_text=False)
    first = next(found)
    assert len(first.rows) < 1_000 and file.rows < 15_000  # the head of 1 MiB, by which the table is recognised
    assert len(first.rows) + sum(len(part.rows) for part in found) == 40_000


def test_rows_of_a_known_format_are_read_by_it_with_values_of_their_kind(tmp_path):
    pair = {"timestamp": "2026-06-01 10:00:00",
        "request": json.dumps({"messages": ASKED, "temperature": 0.5}), "cache_hit": "true",
        "response": json.dumps({"id": "r1", "choices": [{"index": 0, "finish_reason": "stop", "message": SAID}]}),
        "latency_ms": "12.5", "session_id": "", "user_id": "7"}  # fmt: skip
    content = written([pair, {**pair, "request": '{"messages": '}]).encode()
    (row,), (bad,), _, report = read(tmp_path, content, name="pairs.csv")
    assert json.loads(row["messages"]) == ASKED and json.loads(row["completion"])["content"] == "yes"
    assert (row["latency_ms"], row["cache_hit"], row["session_id"], row["source_row"]) == (12.5, True, None, 2)
    assert str(row["ts"]) == "2026-06-01 10:00:00+00:00" and (bad["source_row"], report.total.read) == (3, 2)


def test_other_columns_are_read_by_fields(tmp_path):
    content = written([{"No.": "1", "Question": "hé, you?", "Answer": "yes", "meta": '{"who": "ann"}', "Stars": "dislike"},
            {"No.": "2", "Question": "hé, all?", "Answer": "no", "meta": "", "Stars": ""}], ";").encode("utf-16")  # fmt: skip
    fields = {"prompt": "Question", "answer": "Answer", "id": '["No."]', "user": "meta.who", "feedback": "Stars"}
    rows, bad, (thumb,), _ = read(tmp_path, content, name="export.csv", fields=fields)
    assert [(row["request_id"], row["source_row"], row["user_hash"] is None) for row in rows] == [("1", 2, False),
            ("2", 3, True)]  # fmt: skip
    assert not bad and thumb["value"] == -1
