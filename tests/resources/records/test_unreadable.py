"""Whatever lies in a folder of logs, its reason and its remedy are its own."""

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile

import pytest
import zstandard

from resources.inspecting.inspection import InspectError, inspect
from resources.lake.lake import LakeLayout
from resources.lake.sql_files import attach_slice, rows, workbench
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest, notes_on
from resources.records.objects.log_reader import RecordProblem, read_records
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
    "latin.csv": ("id,text\n1,Müller\n".encode("latin-1"), "invalid_utf8", "not UTF-8 text, Latin-1 by its looks"),
    "sjis.jsonl": (JAPANESE.encode("shift_jis"), "invalid_utf8", "Japanese .SHIFT_JIS. by its looks; .*-f SHIFT_JIS "),
    "euc.jsonl": (JAPANESE.encode("euc_jp"), "invalid_utf8", "Japanese .EUC-JP. by its looks; .*-f EUC-JP "),
    "gb.jsonl": (CHINESE.encode("gb18030"), "invalid_utf8", "of an East Asian, .* by its looks; .*GB18030"),
    "picture.png": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "invalid_utf8", "the file is binary"),
    "random": (bytes((number * 7919) % 251 for number in range(9000)), "invalid_utf8", "the file is binary"),
    "a.csv": (b"1,hi,there\n2,a,b\n", "unknown_format", "looks like CSV with commas, but its first line does not name the columns; add"),
    "a.tsv": (b"1\thi, you\n2\thi\n", "unknown_format", "looks like CSV with tabs"),
    "page.jsonl": (b"<!DOCTYPE html><html>Sign in</html>", "unknown_format", "an HTML page.*; fetch"),
    "listing.xml": (b"<?xml version='1.0'?><Error>no</Error>", "unknown_format", "the file is XML"),
    "python.jsonl": (f"{RECORD}\n".encode(), "malformed_json", "Python's own notation, not JSON; .*json.dumps"),
    "readme.txt": (b"These are the logs.\nThey are from June.\n", "unknown_format", "no line of the file is a JSON object; .*text"),
    "cut.jsonl.gz": (gzip.compress(bytes((n * n) % 251 for n in range(9000)))[:200], "damaged_file", "gzip stream ends early; .*rewrite"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_each_kind_has_its_reason_and_its_remedy(tmp_path, name):
    from resources.records.objects.object_reader import read_object

    content, code, said = FILES[name]
    [problem] = read_object(io.BytesIO(content), name, plain_text=False)
    assert isinstance(problem, RecordProblem) and problem.row == 0 and problem.error_code == code
    assert re.search(said, problem.message), problem.message
    assert problem.message.count("; ") >= 1 and "Müller" not in problem.message


@pytest.mark.parametrize("content", [
    LINES.encode(), b"\xef\xbb\xbf" + LINES.encode(), gzip.compress(LINES.encode(), mtime=0),
    zstandard.compress(LINES.encode()), json.dumps([RECORD] * 3).encode(),
])  # fmt: skip
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
