"""Records of an object: whatever its form, its size and its faults, in pieces, and never more than a little at a time."""

import gzip
import io
import json
import tracemalloc
from datetime import UTC, datetime

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from test_example_formats import FIXTURES, said
from test_formats import pair, read
from test_trace_formats import decided

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.records.objects import decompress, log_reader
from resources.records.objects.decompress import DamagedError, decompressed
from resources.records.objects.log_reader import RecordProblem, read_records
from resources.records.objects.object_reader import _record, read_object
from resources.records.objects.vllm_log import is_vllm_log
from resources.sources.sources import SourceSettings
from tests.thorough_cases import thorough_except


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


objects = st.lists(
    st.dictionaries(
        st.text(max_size=4), st.text(max_size=60) | st.lists(st.integers(), max_size=3) | st.none(), min_size=1, max_size=3
    ).filter(lambda value: len(json.dumps(value, ensure_ascii=False).encode()) < 190),
    min_size=1,
    max_size=12,
)


@given(
    objects, st.integers(1, 90), st.sampled_from(["lines", "array", "array of lines", "indented", "indented array", "arrays"])
)
@settings(max_examples=80, deadline=None)
def test_every_form_gives_the_same_records_in_pieces_of_any_size(values, size, form):
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    indented = [json.dumps(value, ensure_ascii=False, indent=1) for value in values]
    content = {
        "lines": "\n".join(texts),
        "array": f"[{','.join(texts)}]",
        "array of lines": "[\n" + ",\n".join(texts) + "\n]\n",
        "indented": "\n".join(indented),
        "indented array": json.dumps(values, ensure_ascii=False, indent=2),
        "arrays": "\n".join(json.dumps(values[at : at + 2], ensure_ascii=False) for at in range(0, len(values), 2)),
    }[form]
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


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def _logged(number):
    record = pair(request={"model": "m", "messages": [{"role": "user", "content": f"q{number} {{"}]})
    record["response"] |= {"id": f"req_{number}", "created": None}
    return {key: value for key, value in record.items() if key != "timestamp"}


PREFIXES = ["2026-06-01T12:00:00.000Z stdout F ", "2026-06-01 12:00:00,000 INFO gateway: ",
    "<14>1 2026-06-01T12:00:00Z host app 7 - - ", "data: ", "INFO [req{id=1}] "]  # fmt: skip
FURTHER = ["2026-06-01T12:00:00Z ", "[2026-06-01 12:00:00] ", "INFO:root:", "Jun  1 12:00:00 host app[7]: ", "[req{id=1}] ",
    "2026-06-01 12:00:00 INFO ctx={} body=", "[INFO] "]  # fmt: skip


@pytest.mark.parametrize("prefix", thorough_except(PREFIXES, [*PREFIXES, *FURTHER]))
def test_records_behind_a_prefix_are_read_and_other_lines_counted(tmp_path, prefix):
    lines = [
        f"{prefix}Listening on :8000",
        *(prefix + json.dumps(_logged(number)) for number in range(3)),
        prefix + json.dumps(_logged(4))[:60],
    ]
    rows, bad, _, report = read(tmp_path, "\n".join(lines).encode(), name="2026-06-01.log")
    assert [row["request_id"] for row in rows] == ["req_0", "req_1", "req_2"] and [row["source_row"] for row in rows] == [
        2,
        3,
        4,
    ]
    assert report.total.skipped == 1 and [row["error_code"] for row in bad] == ["malformed_json"]
    dated = prefix.startswith(("2026", "[2026"))
    assert {row["ts"] for row in rows} == {NOON if dated else NOON.replace(hour=0)}


def test_pieces_of_a_line_are_joined(tmp_path):
    text = json.dumps(_logged(0))
    lines = [
        f"2026-06-01T12:00:00.1Z stdout P {text[:40]}",
        "2026-06-01T12:00:00.1Z stderr F warning",
        f"2026-06-01T12:00:00.2Z stdout P {text[40:90]}",
        f"2026-06-01T12:00:00.3Z stdout F {text[90:]}",
    ]
    [row], bad, _, report = read(tmp_path, "\n".join(lines).encode(), name="pod.log")
    assert not bad and (row["request_id"], row["source_row"]) == ("req_0", 1) and report.total.skipped == 1


def test_an_object_inside_a_line_that_breaks_off_is_no_record():
    assert _record('INFO {"request": {"messages": []}') is None and _record('INFO {"a": 1} done') is None
    assert _record('ctx={"a": {"b": 1}} {"c": 2}') == {"c": 2}
    assert _record('a{b}c {"d": "{"}') == {"d": "{"} and _record('{"a": {"b": 1}') is None


LOG = (FIXTURES.parent / "vllm.log").read_text()


def name(number):
    return f"chatcmpl-{number:032x}"


def request(number, prompt, ids="None"):
    return (
        f"INFO 06-01 10:00:{number % 60:02d} [logger.py:41] Received request {name(number)}: prompt: {prompt!r}, params: "
        f"SamplingParams(n=1, temperature=0.7), prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None."
    )


def response(number, output):
    return (
        f"INFO 06-01 10:00:{number % 60:02d} [logger.py:71] Generated response {name(number)}: output: {output!r}, "
        "output_token_ids: None, finish_reason: stop"
    )


def chatml(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_requests_and_responses_of_several_versions(tmp_path):
    rows, bad, _, report = read(tmp_path, LOG.encode(), name="vllm.log")
    for row in rows:
        row |= {column: json.loads(row[column]) for column in ("messages", "completion", "params")}
    found = {row["request_id"]: row for row in rows}
    assert set(found) == {name(1), name(2), "cmpl-c52d", name(8)}
    first, second = found[name(1)], found[name(2)]
    assert said(first["messages"]) == [("system", "Be brief."), ("user", 'hé, it is "so"')]
    assert (first["completion"]["content"], first["finish_reason"], first["source_format"]) == ('no\n"never"', "length", "vllm")
    assert first["params"]["stop"] == ["END", "it's"] and first["params"]["max_tokens"] == 100 and "seed" not in first["params"]
    assert said(second["messages"])[1] == ("user", "two\nlines") and second["completion"]["content"] == "it's yes"
    assert (second["prompt_token_ids"], second["completion_token_ids"], second["model"]) == ([1, 2, 3], [7, 8], "support")
    assert said(found["cmpl-c52d"]["messages"]) == [("user", "How to make pizza")] and found["cmpl-c52d"]["params"]["templated"]
    assert found[name(8)]["completion"]["content"] == " hello" and str(found[name(8)]["ts"]).startswith("2026-06-01 10:00:10")
    assert {row["source_row"]: row["error_code"] for row in bad} == {
        14: "missing_field",
        16: "missing_field",
        17: "unpaired",
        18: "truncated_log",
    }
    assert "VLLM_LOGGING_LEVEL=DEBUG" in bad[0]["message"] and "--enable-log-outputs" in bad[2]["message"]
    assert decided(tmp_path) == {"vllm_chatter": 6, "vllm_delta": 1, "vllm_params": 1}
    assert (report.total.rows, report.total.quarantined, report.total.skipped, report.total.read) == (4, 4, 8, 16)


def test_a_rotated_log_is_joined_whichever_part_arrives_first(tmp_path):
    lines = LOG.splitlines(keepends=True)
    logs, tables = tmp_path / "logs", Tables(LakeLayout.open(tmp_path / "lake"))
    logs.mkdir()
    source = {"engine": SourceSettings(uri=str(logs))}
    (logs / "server.log").write_text("".join(lines[8:]))
    assert ingest(tables, "w", source).total.rows == 2
    (logs / "server.log.1").write_text("".join(lines[:8]))
    ingest(tables, "w", source)
    rows = tables.open("interactions").to_pyarrow_table().to_pylist()
    assert len(rows) == 4 and {row["request_id"] for row in rows} == {name(1), name(2), "cmpl-c52d", name(8)}


@pytest.mark.parametrize(
    "prompts",
    [
        [chatml("a question that is longer than the limit")[:40], chatml("b")],  # its template is not closed
        [f"{n}: an untemplated text that is much longer than the limit of the log, which is here"[:64] for n in range(4)]
        + ["short"],
    ],
)
def test_cut_prompts_are_quarantined_and_the_others_stay(tmp_path, prompts):
    lines = [line for n, prompt in enumerate(prompts) for line in (request(n, prompt), response(n, f"answer {n}"))]
    rows, bad, _, _ = read(tmp_path, "\n".join(lines).encode(), name="server.log")
    assert [row["request_id"] for row in rows] == [name(len(prompts) - 1)]
    assert {row["error_code"] for row in bad} == {"truncated_log"} and "--max-log-len" in bad[0]["message"]


def test_answers_of_the_length_of_a_cut_prompt_and_prompts_as_long_as_their_token_ids_are_cut(tmp_path):
    lines = [
        request(0, chatml("much longer than the limit")[:32]),
        response(0, "a"),
        request(1, chatml("b")),
        response(1, "c" * 32),
        request(2, chatml("d")),
        response(2, "e" * 31),
        request(3, "x" * 40, list(range(40))),
        response(3, "f"),
    ]
    rows, bad, _, _ = read(tmp_path, "\n".join(lines).encode(), name="server.log")
    assert [row["request_id"] for row in rows] == [name(2)] and len(bad) == 3


def test_short_answers_of_one_length_are_no_cut_ones(tmp_path):
    lines = [line for n in range(8) for line in (request(n, chatml(f"number {n}")), response(n, f"label-{n}"))]
    rows, bad, _, _ = read(tmp_path, "\n".join(lines).encode(), name="server.log")
    assert len(rows) == 8 and not bad


def test_several_answers_to_a_request_are_choices_and_the_year_is_the_objects(tmp_path):
    lines = [request(1, chatml("a")).replace("06-01", "12-31"), response(1, "b"), response(1, "c")]
    rows, *_ = read(tmp_path, "\n".join(lines).encode(), name="server-2026-01-01.log")
    assert [(row["choice_index"], json.loads(row["completion"])["content"]) for row in rows] == [(0, "b"), (1, "c")]
    assert {str(row["dt"]) for row in rows} == {"2025-12-31"}


def test_a_line_that_is_not_utf_8_costs_only_itself():
    content = "\n".join([request(1, "a"), response(1, "Muller").replace("Mu", "M\udcfc"), request(2, "b")]).encode(
        "utf-8", "surrogateescape"
    )
    problem, found = list(read_object(io.BytesIO(content), "a.log", plain_text=False))
    assert (problem.row, problem.error_code, found.rows.to_pylist()) == (2, "invalid_utf8", [1, 3])


@pytest.mark.parametrize(
    "head", [b'{"log": "INFO 06-01 10:00:00 [logger.py:1] x"}', b"INFO:     Started server", b"", b"a,b\n1,2\n"]
)
def test_other_logs_are_not_taken_for_it(head):
    assert not is_vllm_log(head)
