"""Records of an object: whatever its form, its size and its faults, in pieces, and never more than a little at a time."""

import gzip
import io
import json
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.records.objects import decompress, log_reader
from resources.records.objects.decompress import DamagedError, decompressed
from resources.records.objects.log_reader import RecordProblem, read_records


def records(content, size=7):
    """(row, text) of the records and (row, code) of the problems, read in pieces of `size` bytes."""
    found, problems = [], []
    for part in read_records(iter([content[at : at + size] for at in range(0, len(content), size)])):
        if isinstance(part, RecordProblem):
            problems.append((part.row, part.error_code))
        else:
            found += zip(part.rows.to_pylist(), (text.strip() for text in part.raw.to_pylist()), strict=True)
    return found, problems


@pytest.fixture
def small(monkeypatch):
    """Limits so low that little content meets them."""
    monkeypatch.setattr(log_reader, "HEAD_BYTES", 64)
    monkeypatch.setattr(log_reader, "CHUNK_BYTES", 50)
    monkeypatch.setattr(log_reader, "RECORD_BYTES", 200)


objects = st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=60) | st.lists(st.integers(), max_size=3) | st.none(),
        min_size=1, max_size=3).filter(lambda value: len(json.dumps(value, ensure_ascii=False).encode()) < 190), min_size=1,
    max_size=12)  # fmt: skip


@given(
    objects, st.integers(1, 90), st.sampled_from(["lines", "array", "array of lines", "indented", "indented array", "arrays"])
)
@settings(max_examples=80, deadline=None)
def test_every_form_gives_the_same_records_in_pieces_of_any_size(values, size, form):
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    indented = [json.dumps(value, ensure_ascii=False, indent=1) for value in values]
    content = {"lines": "\n".join(texts), "array": f"[{','.join(texts)}]",
        "array of lines": "[\n" + ",\n".join(texts) + "\n]\n", "indented": "\n".join(indented),
        "indented array": json.dumps(values, ensure_ascii=False, indent=2),
        "arrays": "\n".join(
            json.dumps(values[at : at + 2], ensure_ascii=False) for at in range(0, len(values), 2))}[form]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "HEAD_BYTES", 300)
        patch.setattr(log_reader, "CHUNK_BYTES", 50)
        found, problems = records(content.encode(), size)
    assert problems == [] and [row for row, _ in found] == list(range(1, len(values) + 1))
    assert [json.loads(text) for _, text in found] == values


@pytest.mark.parametrize("form", ["\x1e{}\n", "\x1e{}", "\n\x1e\n{}\n", "\x1e{}\r\n"])
@pytest.mark.parametrize("indent", [(None, None), (1, 1), (None, 1), (1, None)])
def test_a_json_text_sequence_is_read(small, form, indent):
    values = [{"n": n, "said": "a \x1e b" * (n % 3), "more": {"list": [n, None]}} for n in range(9)]
    content = "".join(form.format(json.dumps(value, indent=indent[value["n"] % 2])) for value in values)
    found, problems = records(content.encode())
    assert not problems and [json.loads(text) for _, text in found] == values


def test_a_line_that_is_too_long_is_passed_over_and_the_rest_is_read(small):
    long = json.dumps({"x": "y" * 5_000})
    content = "\n".join(['{"a":1}', long, '{"a":2}', '{"a":"' + "z" * 194 + '"}', '{"a":3}']).encode()
    assert records(content) == ([(1, '{"a":1}'), (3, '{"a":2}'), (5, '{"a":3}')], [(2, "line_too_long"), (4, "line_too_long")])
    assert records(long.encode()) == ([], [(1, "line_too_long")])
    assert records(f'{long}\n{{"a":1}}'.encode()) == ([(2, '{"a":1}')], [(1, "line_too_long")])


def test_an_element_that_is_too_long_is_passed_over_and_the_rest_is_read(small):
    long = json.dumps({"x": "y}]," * 5_000})
    content = f'[{{"a":1}},{long},{{"a":2}}]'.encode()
    assert records(content) == ([(1, '{"a":1}'), (3, '{"a":2}')], [(2, "line_too_long")])


@pytest.mark.parametrize(
    "content, rows, problems",
    [
        (b'[{"a":1},{"a" 2},{"a":3}]', [1, 2, 3], []),  # SQL tells that the second is no JSON
        (b'[{"a":1},{"a":2},{"a"', [1, 2], [(3, "malformed_json")]),  # it breaks off
        (b'[{"a":1}] {"b":2}', [1, 2], []),  # more behind its end
        (b'[{"a":1}] x', [1], [(2, "malformed_json")]),
        (b'[{"a":1},{"a":2}]\n[{"a":3}]\n', [1, 2, 3], []),  # a page a line
        (b'[{"a":1}][]\n[\n{"a":2}\n]', [1, 2], []),
        (b'[]\n[{"a":1}]', [1], []),
        (b"[]", [], []),
        (b" [\n ]\n", [], []),
        (b"[", [], [(0, "malformed_json")]),
        ('{"a":"h\u00e9"}\n'.encode("latin-1") * 3, [], [(0, "invalid_utf8")]),
        ('{"a":"h\u00e9"}\n'.encode("latin-1") + b'{"a":2}', [2], [(1, "invalid_utf8")]),
        ('{"a":1}\n{"a":2}'.encode("utf-16"), [], [(0, "invalid_utf8")]),
        ('[{"a":1}]'.encode("utf-16-be"), [], [(0, "invalid_utf8")]),
        (b'[{"a":1},\xff,{"a":3}]', [1, 3], [(2, "invalid_utf8")]),
        (b"[1,2,3]", [], [(0, "malformed_json")]),
        (b'[1,2]\n{"a":1}\n', [1, 2], []),  # lines; SQL tells that the first is no object
        (b'[broken\n{"a":1}\n', [1, 2], []),
        (b'{"a":1\n{"a":2}\n', [1, 2], []),
        (b'{\n"a":1\n}\n{\n"a":', [1], [(2, "malformed_json")]),
        (b'\xef\xbb\xbf{"a":1}\n\n \r\n{"a":2}', [1, 4], []),
        (b"", [], []),
        (b"\n" * 500, [], []),
        (b"\n" * 500 + b'{"a":1}', [501], []),
        (b"\x00\xff\xfe" * 50, [], [(0, "invalid_utf8")]),
        (b"plain words\n", [], [(0, "unknown_format")]),
    ],
)
@pytest.mark.parametrize("size", [3, 10_000])
def test_odd_content(content, rows, problems, size):
    found, wrong = records(content, size)
    assert ([row for row, _ in found], wrong) == (rows, problems)


def test_blank_and_bad_lines_keep_the_numbers_of_the_others(small):
    content = b"\n".join([b'{"a":1}', b"", b" \t ", b'{"a":"\xff"}', b'{"a":5}'] * 40)
    found, problems = records(content)
    assert [row for row, _ in found] == [row for row in range(1, 201) if row % 5 in (0, 1)]
    assert problems == [(row, "invalid_utf8") for row in range(4, 200, 5)]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_comes_out_in_small_pieces(pack):
    packed = pack(b" " * (200 << 20))
    tracemalloc.start()
    total = sum(map(len, decompressed(io.BytesIO(packed))))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 200 << 20 and peak < 160 << 20


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("given", [1, 1000, 8 << 20])
def test_pieces_lose_no_byte_and_a_cut_end_is_said(pack, given, monkeypatch):
    monkeypatch.setattr(decompress, "GIVEN_BYTES", given)
    monkeypatch.setattr(decompress, "READ_BYTES", 100)
    content = b"".join(b'{"a":%d}\n' % number for number in range(3_000))
    packed = pack(content)
    assert b"".join(decompressed(io.BytesIO(packed * 2))) == content * 2
    taken = []
    with pytest.raises(DamagedError, match="ends early"):
        taken.extend(decompressed(io.BytesIO(packed[:-3])))
    assert content.startswith(b"".join(taken))


def test_a_long_line_costs_no_more_memory_than_the_limit(monkeypatch):
    monkeypatch.setattr(log_reader, "RECORD_BYTES", 4 << 20)
    monkeypatch.setattr(log_reader, "CHUNK_BYTES", 1 << 20)
    packed = gzip.compress(b'{"a":1}\n' + b"x" * (200 << 20) + b'\n{"a":3}\n', 1)
    tracemalloc.start()
    parts = list(read_records(decompressed(io.BytesIO(packed))))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [part.row if isinstance(part, RecordProblem) else part.rows.to_pylist() for part in parts] == [[1], 2, [3]]
    assert peak < 50 << 20
