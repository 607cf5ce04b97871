"""Says why a file has no readable record, as "reason; remedy" without any text of the file. Reasons are grouped by the
statement inspecting/quarantined."""

import ast
import codecs
import re
from typing import NamedTuple

_JSON_LINES = "JSON lines or Parquet with the keys of a known format"
_CONTAINERS = (
    (b"BZh", "compressed with bzip2", "unpack it, or pack it as gzip: bzcat old | gzip > new.gz"),
    (b"\xfd7zXZ\0", "compressed with xz", "unpack it, or pack it as gzip: xzcat old | gzip > new.gz"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "unpack it, or pack it as gzip: lz4 -dc old | gzip > new.gz"),
    (b"\xff\x06\0\0sNaPpY", "compressed with snappy", "unpack it, or pack it as gzip or zstd"),
    (b"\x1f\x9d", "compressed with compress (.Z)", "unpack it, or pack it as gzip: zcat old | gzip > new.gz"),
    (b"\x1f\x8b", "compressed twice, the second time with gzip", "unpack it once: zcat old > new.gz"),
    (b"\x28\xb5\x2f\xfd", "compressed twice, the second time with zstd", "unpack it once: zstd -dc old > new.zst"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it: 7z x old"),
    (b"Rar!\x1a\x07", "a RAR archive", "unpack it: unrar x old"),
    (b"Obj\x01", "an Avro file", f"write it as {_JSON_LINES}"),
    (b"ORC", "an ORC file", f"write it as {_JSON_LINES}"),
    (b"ARROW1\0", "an Arrow file", f"write it as {_JSON_LINES}"),
    (b"SQLite format 3\0", "an SQLite database", f"export its table as {_JSON_LINES}"),
    (b"PARE", "an encrypted Parquet file", "write it without encryption"),
    (b"Salted__", "encrypted (OpenSSL)", "decrypt it first"),
    (b"age-encryption.org/", "encrypted (age)", "decrypt it first"),
    (b"-----BEGIN PGP MESSAGE", "encrypted (PGP)", "decrypt it first"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch its content: git lfs pull"),
    (b"%PDF-", "a PDF", "give logs in JSON lines or Parquet"),
)
_ARCHIVES = (b"PK\x03\x04", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07")
_UTF = ((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"{\0\0\0", "UTF-32LE"), (b"[\0\0\0", "UTF-32LE"),
    (b"\0\0\0{", "UTF-32BE"), (b"\0\0\0[", "UTF-32BE"))  # fmt: skip
"""First bytes of a UTF-32 text: its mark, or JSON's opening. (resources/records/objects/decompress.py decodes UTF-16.)"""
_SEPARATORS = ((",", "commas"), ("\t", "tabs"), (";", "semicolons"), ("|", "bars"))
_LOOKED_AT = 64 << 10
_MOST_CONTROLS = 0.02
"""A text has a smaller share of control characters than this."""
_RUNS = 0.5
"""In Western text, a smaller share of the non-ASCII bytes than this is in runs of three and more; `größer` has one of two."""


class FileProblem(NamedTuple):
    error_code: str
    message: str


def container_of(head: bytes) -> FileProblem | None:
    """An archive, a compression or another kind of file by its first bytes; None for any other. Ask only for files without a
    record: a log may begin with a line of junk."""
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        if b"[Content_Types].xml" in head[:_LOOKED_AT]:
            return _other("an Office document", f"export it as {_JSON_LINES}")
        return _other("a zip archive", "unpack it, or pack its files as gzip: unzip -p old | gzip > new.gz")
    if _is_tar(head):
        return _other("a tar archive", "unpack it: tar xf old")
    return next((_other(what, remedy) for mark, what, remedy in _CONTAINERS if head.startswith(mark)), None)


def is_archive(head: bytes) -> bool:
    """Whether a file is an archive that may store its files uncompressed: their lines would be read as one file's."""
    return _is_tar(head) or (head.startswith(_ARCHIVES) and b"\0" in head[:64])


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar" and b"\0" in head[:257]


def kind_of(head: bytes) -> FileProblem:
    """What a file is that begins without a whole JSON object."""
    for mark, name in _UTF:
        if head.startswith(mark):
            return FileProblem("invalid_utf8", f"the file is {name} text; {convert(name)}")
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end within a character
    except UnicodeDecodeError:
        if not _is_text(head):
            return FileProblem("invalid_utf8", "the file is binary, not a log in UTF-8 text; leave it out of the source's uri")
        looks, encoding = encoding_of(head)
        return FileProblem("invalid_utf8", f"the file is not UTF-8 text, {looks}; {convert(encoding)}")
    return _kind_of_text(text)


def _kind_of_text(text: str) -> FileProblem:
    if "\0" in text[:_LOOKED_AT]:
        return FileProblem("invalid_utf8", "the file is binary, not a log in UTF-8 text; leave it out of the source's uri")
    opening = text.lstrip()[:100].lower()
    if opening.startswith(("{", "[")):
        if _is_python(text):
            return FileProblem(
                "malformed_json", "the file holds Python's own notation, not JSON; write its records with json.dumps"
            )
        return FileProblem("malformed_json", "no line of the file is a whole JSON object; rewrite it with one object per line")
    if opening.startswith(("<!doctype html", "<html")):
        return _unknown("the file is an HTML page, such as a server's error or login; fetch the logs again")
    if opening.startswith("<"):
        return _unknown(f"the file is XML; write its records as {_JSON_LINES}")
    if separated := _separator(text):
        return _unknown(
            f"the file looks like CSV with {separated}, but its first line does not name the columns; add a line "
            "of their names in front, and call the file .csv"
        )
    return _unknown("no line of the file is a JSON object; leave it out, or give it `format: text` to learn it as a text")


def encoding_of(content: bytes) -> tuple[str, str]:
    """The likely encoding of a text that is not UTF-8, and iconv's name for it."""
    octets = content[:_LOOKED_AT]
    beyond = re.findall(rb"[\x80-\xff]+", octets)
    if sum(len(run) for run in beyond if len(run) > 2) < _RUNS * sum(map(len, beyond)):
        windows = any(0x80 <= octet <= 0x9F for octet in octets)
        return ("Windows-1252 by its looks", "CP1252") if windows else ("Latin-1 by its looks", "LATIN1")
    for name in ("SHIFT_JIS", "EUC-JP"):
        if _kana(octets, name):
            return f"Japanese ({name}) by its looks", name
    return "of an East Asian, Cyrillic or other encoding by its looks", "GB18030 (or BIG5, EUC-KR, CP1251, KOI8-R)"


def _kana(octets: bytes, encoding: str) -> bool:
    """Whether a text, decoded, has the kana of every Japanese sentence and no control characters."""
    text = codecs.getincrementaldecoder(encoding)("replace").decode(octets)
    beyond = [letter for letter in text if letter > "\x7f"]
    kana = sum("\u3040" <= letter <= "\u30ff" for letter in beyond)
    return "\ufffd" not in text and kana > len(beyond) / 5


def convert(encoding: str = "LATIN1") -> str:
    return f"convert it from its encoding, as with: iconv -f {encoding} -t UTF-8 old > new"


def _is_text(head: bytes) -> bool:
    octets = head[:_LOOKED_AT]
    controls = sum(octets.count(bytes([code])) for code in range(32) if code not in b"\t\n\r\v\f\x1b")
    return b"\0" not in octets and controls <= _MOST_CONTROLS * len(octets) and _ascii_share(octets) > 0.2


def _ascii_share(octets: bytes) -> float:
    return len(re.findall(rb"[\t\n\r\x20-\x7e]", octets)) / max(len(octets), 1)


def _is_python(text: str) -> bool:
    line = text.strip().split("\n", 1)[0].strip().rstrip(",")
    try:
        return isinstance(ast.literal_eval(line[:_LOOKED_AT]), dict | list)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


def _separator(text: str) -> str:
    """The name of the column separator, where the first lines have equally many; "" for plain text."""
    lines = [line for line in text[:_LOOKED_AT].split("\n")[:5] if line.strip()]
    if len(lines) < 2:
        return ""
    first = [re.sub(r'"(?:[^"]|"")*"', "", line) for line in lines[:2]]
    return next(
        (
            name
            for sign, name in _SEPARATORS
            if first[0].count(sign)
            and (first[0].count(sign) == first[1].count(sign) or '"' in first[1])
            and not first[0].strip().endswith(".")
        ),
        "",
    )


def _other(what: str, remedy: str) -> FileProblem:
    return FileProblem("other_container", f"the file is {what}; {remedy}")


def _unknown(message: str) -> FileProblem:
    return FileProblem("unknown_format", message)
