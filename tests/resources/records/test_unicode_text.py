"""UTF-16, decoded while it is read; everything else untouched."""

import io
import json

import pytest

from resources.records.objects.decompress import utf8, utf16_of
from resources.records.objects.object_reader import read_object

LINES = "".join(json.dumps({"id": n, "text": "Müller, 水車の粉屋は 🎡"}, ensure_ascii=False) + "\r\n" for n in range(300))
CODES = ["utf-16", "utf-16-le", "utf-16-be"]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("size", [2, 3, 4096])
def test_chunks_of_any_size_become_utf_8(code, size):
    content = LINES.encode(code)
    chunks = [content[:64], *(content[place : place + size] for place in range(64, len(content), size))]
    assert b"".join(utf8(iter(chunks))).decode() == LINES


@pytest.mark.parametrize("code", CODES)
def test_records_of_utf_16_have_their_lines(code):
    [found] = read_object(io.BytesIO(LINES.encode(code)), "a.jsonl", plain_text=False)
    assert found.rows.to_pylist() == list(range(1, 301)) and json.loads(found.raw[299].as_py())["text"].startswith(
        "Müller, 水車"
    )


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_a_text_without_any_ascii_is_decoded_after_its_mark(code):
    text = "\ufeff水車の粉屋は働く漢字中文瑞" * 200
    assert b"".join(utf8(iter([text.encode(code)]))).decode() == text[1:]


def test_whole_texts_and_lone_surrogates():
    [found] = read_object(io.BytesIO("\ufeffhé\nho".encode("utf-16-le")), "a.txt", plain_text=True)
    assert json.loads(found.raw[0].as_py()) == {"text": "hé\nho"}
    assert b"".join(utf8(iter(["{'a': '\ud83d'}".encode("utf-16-le", "surrogatepass")]))).decode() == "{'a': '\ufffd'}"


@pytest.mark.parametrize("content", [
    b"",
    b"{",
    LINES.encode(),
    LINES.encode("utf-32"),
    LINES.encode("utf-32-le"),
    "ü".encode("latin-1") * 50,
    bytes(200),
    bytes(range(256)) * 4,
    b"\xff\xfe\x0bv\xc9\xcd\x1e\x8c\n" + b'{"request": {}, "response": {"id": "resp_1"}}\n' * 9,
    b"\x01\0\x02\0\x03\0" * 50,
    b"PK\x03\x04" + bytes(60),
])  # fmt: skip
def test_other_content_stays_as_it_is(content):
    assert utf16_of(content) is None and b"".join(utf8(iter([content]))) == content
