"""Whatever lies in a folder of logs, its reason and its remedy are its own."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile

import pytest
import zstandard
from test_formats import read

from resources.inspecting.inspection import InspectError, inspect
from resources.lake.lake import LakeLayout
from resources.lake.sql_files import attach_slice, rows, workbench
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest, notes_on
from resources.records.objects import csv_reader
from resources.records.objects.log_reader import RecordProblem, read_records
from resources.records.objects.object_reader import read_object
from resources.sources.sources import SourceSettings

RECORD = {"timestamp": 1780300000, "request": {"messages": [{"role": "user", "content": "Wie heißt der Müller, 水車の粉屋は"}]},
    "response": {"id": "1", "choices": [{"message": {"role": "assistant", "content": "Er heißt Müller."}}]}}  # fmt: skip
LINES = (json.dumps(RECORD, ensure_ascii=False) + "\n") * 3
WESTERN = LINES.replace("水車の粉屋は", "“so”")
JAPANESE = LINES.replace("ß", "ss").replace("ü", "ue") + "水車のある川の粉屋\n" * 3
CHINESE = JAPANESE.replace("の", "的").replace("ある", "之").replace("は", "")


def in_tar():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("logs.jsonl")
        info.size = len(LINES.encode())
        archive.addfile(info, io.BytesIO(LINES.encode()))
    return file.getvalue()


def in_zip(name="logs.jsonl"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, LINES)
    return file.getvalue()


FILES = {
    "a.bz2": (bz2.compress(LINES.encode()), "other_container", "compressed with bzip2; .*bzcat"),
    "a.xz": (lzma.compress(LINES.encode()), "other_container", "compressed with xz; .*xzcat"),
    "a.zip": (in_zip(), "other_container", "a zip archive; .*unzip -p"),
    "a.xlsx": (in_zip("[Content_Types].xml"), "other_container", "an Office document; export"),
    "a.tar": (in_tar(), "other_container", "a tar archive; unpack it: tar xf"),
    "a.tar.gz": (gzip.compress(in_tar()), "other_container", "a tar archive"),
    "twice.gz": (gzip.compress(gzip.compress(LINES.encode())), "other_container", "compressed twice"),
    "sealed.json.enc": (b"Salted__" + bytes(range(256)), "other_container", "encrypted .OpenSSL.; decrypt"),
    "a.avro": (b"Obj\x01" + bytes(range(256)), "other_container", "an Avro file; write it as JSON lines"),
    "lfs.jsonl": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "other_container", "git lfs pull"),
    "u32.jsonl": (LINES.encode("utf-32"), "invalid_utf8", "the file is UTF-32 text; .*iconv -f UTF-32 "),
    "latin.jsonl": (WESTERN.replace("“so”", "so").encode("latin-1"), "invalid_utf8", "Latin-1 by its looks; .*-f LATIN1 "),
    "windows.jsonl": (WESTERN.encode("cp1252"), "invalid_utf8", "Windows-1252 by its looks; .*-f CP1252 "),
    "latin.csv": ("id,text\n1,größer\n".encode("latin-1"), "invalid_utf8", "not UTF-8 text, Latin-1 by its looks"),
    "sjis.jsonl": (JAPANESE.encode("shift_jis"), "invalid_utf8", "Japanese .SHIFT_JIS. by its looks; .*-f SHIFT_JIS "),
    "euc.jsonl": (JAPANESE.encode("euc_jp"), "invalid_utf8", "Japanese .EUC-JP. by its looks; .*-f EUC-JP "),
    "gb.jsonl": (CHINESE.encode("gb18030"), "invalid_utf8", "of an East Asian, .* by its looks; .*GB18030"),
    "picture.png": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "invalid_utf8", "the file is binary"),
    "random": (bytes((number * 7919) % 251 for number in range(9000)), "invalid_utf8", "the file is binary"),
    "a.csv": (
        b"1,hi,there\n2,a,b\n",
        "unknown_format",
        "looks like CSV with commas, but its first line does not name the columns; add",
    ),
    "a.tsv": (b"1\thi, you\n2\thi\n", "unknown_format", "looks like CSV with tabs"),
    "page.jsonl": (b"<!DOCTYPE html><html>Sign in</html>", "unknown_format", "an HTML page.*; fetch"),
    "listing.xml": (b"<?xml version='1.0'?><Error>no</Error>", "unknown_format", "the file is XML"),
    "python.jsonl": (f"{RECORD}\n".encode(), "malformed_json", "Python's own notation, not JSON; .*json.dumps"),
    "readme.txt": (
        b"These are the logs.\nThey are from June.\n",
        "unknown_format",
        "no line of the file is a JSON object; .*text",
    ),
    "cut.jsonl.gz": (
        gzip.compress(bytes((n * n) % 251 for n in range(9000)))[:200],
        "damaged_file",
        "gzip stream ends early; .*rewrite",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_each_kind_has_its_reason_and_its_remedy(tmp_path, name):
    from resources.records.objects.object_reader import read_object

    content, code, said = FILES[name]
    [problem] = read_object(io.BytesIO(content), name, plain_text=False)
    assert isinstance(problem, RecordProblem) and problem.row == 0 and problem.error_code == code
    assert re.search(said, problem.message), problem.message
    assert problem.message.count("; ") >= 1 and "Müller" not in problem.message


@pytest.mark.parametrize(
    "content",
    [
        LINES.encode(),
        b"\xef\xbb\xbf" + LINES.encode(),
        gzip.compress(LINES.encode(), mtime=0),
        zstandard.compress(LINES.encode()),
        json.dumps([RECORD] * 3).encode(),
    ],
)
def test_what_is_read_is_still_read(content):
    from resources.records.objects.decompress import decompressed

    [found] = read_records(decompressed(io.BytesIO(content)))
    assert len(found.rows) == 3


@pytest.mark.parametrize("junk", [b"BZh", b"ORC", b"PARE", b"%PDF-", b"\x1f\x8b", b"\x1f\x9d", b"<html>", b"PK\x03\x04"])
def test_a_first_line_of_junk_costs_no_good_line(junk):
    from resources.records.objects.decompress import decompressed

    found = list(read_records(decompressed(io.BytesIO(junk + b"\n" + LINES.encode()))))
    assert {row for part in found if not isinstance(part, RecordProblem) for row in part.rows.to_pylist()} >= {2, 3, 4}


@pytest.fixture
def folder(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, (content, _, _) in FILES.items():
        (logs / name).write_bytes(content)
    (logs / "more.bz2").write_bytes(bz2.compress(LINES.encode()))
    (logs / "zero.jsonl").write_bytes(b"")
    return logs


def test_a_mixed_folder_has_a_row_for_each_reason(folder, tmp_path):
    (folder / "good.jsonl").write_text(LINES.replace('"1"', '"2"'))
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    ingest(tables, "w", {"g": SourceSettings(uri=str(folder))})
    with workbench() as connection:
        for name in ("quarantine", "objects"):
            attach_slice(connection, tables, name, "w")
        found = rows(connection, "inspecting/quarantined").to_pylist()
        formats = {row["format"] for row in rows(connection, "inspecting/formats").to_pylist()}
    reasons = {row["message"].split(";")[0]: row for row in found}
    assert len(reasons) == len(found) == 23 and formats == {"openai_pairs", "not recognised", "empty"}
    assert reasons["the file is compressed with bzip2"]["lines"] == 2
    assert reasons["the file is compressed with xz"]["first_place"] == f"{folder}/a.xz:0"


def test_a_folder_without_one_good_record_says_every_reason(folder):
    with pytest.raises(InspectError, match=r"can be used, for \d+ reasons:(?s:.)*bzip2.*\(and 1 more like it\)") as raised:
        inspect([str(folder)])
    assert all(word in str(raised.value) for word in ("xzcat", "UTF-32", "LATIN1", "CSV", "zip archive"))


def test_an_ingest_says_which_objects_left_no_row_and_why(folder, tmp_path, monkeypatch):
    import resources.sources.ledger as module

    whole = module.open_object

    def opened(item):
        if item.uri.endswith((".csv", ".xml")):
            raise PermissionError(13, "Permission denied", item.uri)
        return whole(item)

    monkeypatch.setattr(module, "open_object", opened)
    report = ingest(Tables(LakeLayout.open(tmp_path / "lake")), "w", {"g": SourceSettings(uri=str(folder))})
    failed, aside = notes_on(report)
    assert failed == (
        f"3 objects could not be read, and the next run tries again: {folder}/a.csv and 2 more: Permission denied"
    )
    assert f"{folder}/a.bz2 and 1 more: other_container: the file is compressed with bzip2; unpack it" in aside
    assert aside.startswith("24 objects went to quarantine as a whole:\n  ") and "more reasons" in aside


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


@pytest.mark.parametrize(
    "pack",
    [
        lambda text: text.encode(),
        lambda text: text.encode("utf-8-sig"),
        lambda text: gzip.compress(text.encode()),
        lambda text: zstandard.compress(text.encode()),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: gzip.compress(text.encode("utf-16-be")),
        lambda text: ("sep=,\n" + text).encode(),
    ],
)
def test_it_is_read_packed_marked_and_in_utf_16(pack):
    records, problems = parts(pack(written([{"id": "1", "q": "hé\nho"}])))
    assert list(records.values()) == [{"id": "1", "q": "hé\nho"}] and not problems


def test_a_broken_row_is_a_problem_at_its_line_and_costs_no_other():
    lines = [
        "id;User Message;c",
        '1;"a',
        'b";x',
        "2;short",
        ";;",
        '3;"bad" tail;x',
        "",
        '4;ok;"open',
        "5;fine;y",
        "6;M\udcfcller;z",
        "7;hé;z",
        "8;a;b;c",
    ]
    records, problems = parts("\r\n".join(lines).encode("utf-8", "surrogateescape"))
    assert {line: row["id"] for line, row in records.items()} == {2: "1", 9: "5", 11: "7"}
    assert {line: code for line, (code, _) in problems.items()} == {
        4: "malformed_row",
        6: "malformed_row",
        8: "malformed_row",
        10: "invalid_utf8",
        12: "malformed_row",
    }
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


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"These are, the logs.\nThey are, from June.\n", "readme.txt"),
        (b"1,hi\n2,ho\n", "a.csv"),
        (b"a,a\n1,2\n", "a.csv"),
        ("id,text\n1,größer\n".encode("latin-1"), "a.csv"),
        (b"<a,b>\n<c,d>\n", "x"),
    ],
)
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
    pair = {
        "timestamp": "2026-06-01 10:00:00",
        "request": json.dumps({"messages": ASKED, "temperature": 0.5}),
        "cache_hit": "true",
        "response": json.dumps({"id": "r1", "choices": [{"index": 0, "finish_reason": "stop", "message": SAID}]}),
        "latency_ms": "12.5",
        "session_id": "",
        "user_id": "7",
    }
    content = written([pair, {**pair, "request": '{"messages": '}]).encode()
    (row,), (bad,), _, report = read(tmp_path, content, name="pairs.csv")
    assert json.loads(row["messages"]) == ASKED and json.loads(row["completion"])["content"] == "yes"
    assert (row["latency_ms"], row["cache_hit"], row["session_id"], row["source_row"]) == (12.5, True, None, 2)
    assert str(row["ts"]) == "2026-06-01 10:00:00+00:00" and (bad["source_row"], report.total.read) == (3, 2)


def test_other_columns_are_read_by_fields(tmp_path):
    content = written(
        [
            {"No.": "1", "Question": "hé, you?", "Answer": "yes", "meta": '{"who": "ann"}', "Stars": "dislike"},
            {"No.": "2", "Question": "hé, all?", "Answer": "no", "meta": "", "Stars": ""},
        ],
        ";",
    ).encode("utf-16")
    fields = {"prompt": "Question", "answer": "Answer", "id": '["No."]', "user": "meta.who", "feedback": "Stars"}
    rows, bad, (thumb,), _ = read(tmp_path, content, name="export.csv", fields=fields)
    assert [(row["request_id"], row["source_row"], row["user_hash"] is None) for row in rows] == [
        ("1", 2, False),
        ("2", 3, True),
    ]
    assert not bad and thumb["value"] == -1
