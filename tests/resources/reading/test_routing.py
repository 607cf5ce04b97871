"""Files whose records are of several formats: each becomes what it is, wherever in the file it stands."""

import json

import pytest

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading import batches as staging_module
from resources.reading.ingestion import ingest
from resources.records.objects import decompress, log_reader
from resources.sources.sources import SourceSettings
from tests.resources.records.test_openai_batch import read as read_batch
from tests.resources.records.test_openai_batch import request, response
from tests.thorough_cases import thorough_except

SAID, ANSWER = [{"role": "user", "content": "hi"}], {"role": "assistant", "content": "hello"}


def pair(number):
    return {
        "timestamp": 1780300000,
        "request": {"messages": SAID},
        "response": {"id": f"p{number}", "choices": [{"finish_reason": "stop", "message": ANSWER}]},
    }


def thumb(number):
    return {"response_id": f"p{number}", "value": "up", "timestamp": 1780300001}


def proxied(number):
    return {
        "id": f"l{number}",
        "call_type": "acompletion",
        "startTime": 1780300000.5,
        "endTime": 1780300001.5,
        "status": "success",
        "messages": [*SAID, ANSWER, *SAID],
        "response": {"id": f"l{number}", "choices": [{"message": ANSWER}]},
    }


def example(number):
    return {"id": f"m{number}", "timestamp": 1780300000, "messages": [*SAID, ANSWER]}


KINDS = {"openai_pairs": pair, "feedback": thumb, "litellm": proxied, "messages": example}


def read(tmp_path, lines, form="auto"):
    path = tmp_path / "logs/a.jsonl"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    total = ingest(tables, "w", {"g": SourceSettings(uri=str(tmp_path / "logs"), format=form)}).total
    found = {}
    for name in ("interactions", "feedback", "quarantine"):
        opened = tables.open(name)
        found[name] = opened.to_pyarrow_table().to_pylist() if opened else []
    return found, total


@pytest.mark.parametrize("together", thorough_except([True], [True, False]))
@pytest.mark.parametrize("main", thorough_except(["openai_pairs", "litellm"], KINDS))
@pytest.mark.parametrize("other", KINDS)
def test_a_record_of_another_format_becomes_what_it_is(tmp_path, main, other, together):
    """together: the other one stands among the first records; else behind those that tell the file's format."""
    lines = [KINDS[main](number) for number in range(20)]
    lines.insert(1 if together else 15, KINDS[other](99))
    found, total = read(tmp_path, lines)
    assert found["quarantine"] == [] and total.rows + total.feedback == 21
    expected = {kind: 20 * (kind == main) + (kind == other) for kind in KINDS}
    assert len(found["feedback"]) == expected.pop("feedback")
    kinds = [row["source_format"] for row in found["interactions"]]
    assert {kind: kinds.count(kind) for kind in expected} == expected
    assert all(json.loads(row["completion"])["content"] == "hello" for row in found["interactions"])
    rows = [row["source_row"] for name in ("interactions", "feedback") for row in found[name]]
    assert sorted(rows) == list(range(1, 22))


@pytest.mark.parametrize("together", [True, False])
def test_what_no_format_knows_is_said_so_with_its_keys(tmp_path, together):
    lines = [pair(number) for number in range(20)]
    lines[1 if together else 15] = {"level": "info", "event": "started"}
    found, total = read(tmp_path, lines)
    (bad,) = found["quarantine"]
    assert (bad["error_code"], bad["source_row"]) == ("unknown_format", 2 if together else 16)
    assert "event, level" in bad["message"] and json.loads(bad["raw"])["event"] == "started"
    assert total.rows == 19 and total.read == 20


def test_a_records_own_fault_keeps_its_own_reason(tmp_path):
    broken = {**pair(1), "request": {"model": "m"}}
    found, _ = read(tmp_path, [*map(pair, range(2, 20)), broken, b'{"cut": '])
    assert [(row["source_row"], row["error_code"]) for row in found["quarantine"]] == [
        (19, "missing_field"),
        (20, "malformed_json"),
    ]


def test_a_named_format_is_held_to_for_every_record(tmp_path):
    found, total = read(tmp_path, [*map(pair, range(10)), thumb(1)], form="openai_pairs")
    assert total.rows == 10 and total.feedback == 0 and [row["source_row"] for row in found["quarantine"]] == [11]


@pytest.mark.parametrize("junk", [8, 30])
def test_records_behind_others_that_no_format_knows_are_found(tmp_path, junk):
    lines = [*({"level": "info", "n": number} for number in range(junk)), *map(pair, range(20)), thumb(1)]
    found, total = read(tmp_path, lines)
    assert (total.rows, total.feedback, total.quarantined) == (20, 1, junk)
    assert [row["source_row"] for row in sorted(found["quarantine"], key=lambda row: row["source_row"])] == list(
        range(1, junk + 1)
    )
    assert {row["error_code"] for row in found["quarantine"]} == {"unknown_format"}


def test_a_file_without_any_known_record_is_one_row_that_says_how_far_it_was_looked_through(tmp_path):
    found, total = read(tmp_path, [{"level": "info", "n": number} for number in range(30)])
    (bad,) = found["quarantine"]
    assert (bad["source_row"], bad["error_code"], total.read) == (0, "unknown_format", 1)
    assert "none of the first 30 records" in bad["message"] and "level, n" in bad["message"]


def test_records_that_are_not_of_the_named_format_are_counted_one_by_one(tmp_path):
    lines = [*({"level": "info", "n": number} for number in range(30)), *map(pair, range(20)), thumb(1), b"{cut"]
    found, total = read(tmp_path, lines, form="openai_pairs")
    assert (total.rows, total.feedback, total.quarantined) == (20, 0, 32)
    bad = {row["source_row"]: row for row in found["quarantine"]}
    assert sorted(bad) == [*range(1, 31), 51, 52] and bad[52]["error_code"] == "malformed_json"
    assert bad[51]["message"] == "the record is not of the format openai_pairs; its keys: response_id, timestamp, value"


@pytest.mark.parametrize("form", ["auto", "openai_pairs", "chunks"])
@pytest.mark.parametrize("first", thorough_except([1], [0, 1, 15]))
def test_lines_of_streams_between_pairs_are_put_together(tmp_path, form, first):
    chunks = [
        {
            "id": "s",
            "object": "chat.completion.chunk",
            "created": 1780300000,
            "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": finish}],
        }
        for word, finish in (("hel", None), ("lo", "stop"))
    ]
    lines = [
        *map(pair, range(first)),
        {"request": {"messages": SAID}, "id": "s"},
        chunks[0],
        *map(pair, range(first, 20)),
        chunks[1],
    ]
    found, total = read(tmp_path, lines, form)
    assert not found["quarantine"] and total.rows == total.read == 21
    assert all(json.loads(row["completion"])["content"] == "hello" for row in found["interactions"])
    assert {row["request_id"]: row["source_row"] for row in found["interactions"]}["s"] == first + 2


def test_chunks_pairs_and_feedback_in_one_file_in_many_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(log_reader, "HEAD_BYTES", 600)
    monkeypatch.setattr(log_reader, "CHUNK_BYTES", 500)
    monkeypatch.setattr(decompress, "READ_BYTES", 300)
    lines = []
    for number in range(30):
        stream = [
            {
                "id": f"s{number}",
                "object": "chat.completion.chunk",
                "created": 1780300000,
                "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": finish}],
            }
            for word, finish in (("hel", None), ("lo", "stop"))
        ]
        lines += [{**stream[0], "request": {"messages": SAID}}, pair(number), thumb(number), stream[1], {"odd": number}]
    found, total = read(tmp_path, lines)
    assert (total.rows, total.feedback, total.quarantined) == (60, 30, 30)
    assert all(json.loads(row["completion"])["content"] == "hello" for row in found["interactions"])


@pytest.mark.parametrize("form", ["auto", "openai_batch"])
def test_strangers_behind_a_batchs_lines(tmp_path, form):
    asked = [
        {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": SAID}}
        for number in range(10)
    ]
    answered = [
        {
            "id": f"b{number}",
            "custom_id": f"c{number}",
            "error": None,
            "response": {"status_code": 200, "body": pair(number)["response"]},
        }
        for number in range(10)
    ]
    found, total = read(tmp_path, [*asked, *answered, thumb(1), {"odd": 1}, [1]], form)
    assert total.rows == 10 and total.feedback == (form == "auto") and total.read == 13
    assert len(found["quarantine"]) == (2 if form == "auto" else 3)


def test_feedback_with_words_is_feedback_and_log_lines_with_a_text_are_no_corpus(tmp_path):
    said = {"response_id": "p1", "rating": "up", "text": "great thanks"}
    found, total = read(tmp_path, [pair(1), said, {"ts": 1780300000, "level": "info", "text": "GET /health"}])
    (told,), (bad,) = found["feedback"], found["quarantine"]
    assert (total.rows, told["value"], told["comment"]) == (1, 1, "great thanks")
    assert bad["error_code"] == "unknown_format" and "level, text, ts" in bad["message"]


def test_a_text_has_any_keys_where_the_recipe_says_so(tmp_path):
    lines = [{"text": f"page {number}", "quality": number} for number in range(20)]
    assert read(tmp_path / "named", lines, form="text")[1].rows == 20
    assert read(tmp_path / "auto", lines)[1].rows == 0
    assert read(tmp_path / "known", [{"text": f"page {number}", "url": "x"} for number in range(20)])[1].rows == 20


def test_a_file_of_many_kinds_in_many_parts_adds_up(tmp_path, monkeypatch):
    monkeypatch.setattr(staging_module, "PART_BYTES", 500)
    lines = [make(number) for number in range(40) for make in KINDS.values()]
    lines = [*lines[:80], {"odd": 1}, b"\xff", b"[1]", *lines[80:]]
    found, total = read(tmp_path, lines)
    assert (total.rows, total.feedback, total.quarantined) == (120, 40, 3)
    assert sorted(row["error_code"] for row in found["quarantine"]) == ["invalid_utf8", "unknown_format", "wrong_type"]


OPENAI = [request("a", "openai a"), request("b", "openai b")], [response("b", "o-b"), response("a", "o-a")]
ANTHROPIC = (
    [
        {
            "custom_id": name,
            "params": {"model": "c", "max_tokens": 5, "messages": [{"role": "user", "content": f"claude {name}"}]},
        }
        for name in "ab"
    ],
    [
        {
            "custom_id": name,
            "result": {
                "type": "succeeded",
                "message": {
                    "id": f"msg_{name}",
                    "type": "message",
                    "role": "assistant",
                    "model": "c",
                    "stop_reason": "end_turn",
                    "content": [{"type": "text", "text": f"c-{name}"}],
                    "usage": {"input_tokens": 1, "output_tokens": 1},
                },
            },
        }
        for name in "ba"
    ],
)
GEMINI = (
    [{"key": name, "request": {"contents": [{"parts": [{"text": f"gemini {name}"}]}]}} for name in "ab"],
    [
        {
            "key": name,
            "response": {
                "candidates": [{"content": {"parts": [{"text": f"g-{name}"}]}, "finishReason": "STOP"}],
                "responseId": f"g{name}",
            },
        }
        for name in "ba"
    ],
)
VLLM = [
    "INFO 06-01 08:00:00 [request_logger.py:30] Received request chatcmpl-a: prompt: '<|im_start|>user\\nvllm a<|im_end|>\\n"
    "<|im_start|>assistant\\n', params: SamplingParams(n=1, temperature=0.7, max_tokens=50), prompt_token_ids: None, "
    "prompt_embeds shape: None, lora_request: None.",
    "INFO 06-01 08:00:01 [request_logger.py:60] Generated response chatcmpl-a: output: 'v-a', output_token_ids: None, "
    "finish_reason: stop",
]
ANSWERED = {
    ("openai a", "o-a"), ("openai b", "o-b"), ("claude a", "c-a"), ("claude b", "c-b"), ("gemini a", "g-a"),
    ("gemini b", "g-b"),
}  # fmt: skip


def put(folder, name, lines):
    path = folder / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def answered(found):
    return {
        (json.loads(row["messages"])[0]["content"], json.loads(row["completion"])["content"]) for row in found["interactions"]
    }


@pytest.mark.parametrize("one_file", [False, True])
def test_each_response_finds_the_request_of_its_own_format(tmp_path, one_file):
    if one_file:
        for side in (0, 1):
            put(
                tmp_path,
                f"{('input', 'output')[side]}.jsonl",
                [line for each in (OPENAI, ANTHROPIC, GEMINI) for line in each[side]],
            )
    else:
        for name, (requests, responses) in {"o": OPENAI, "c": ANTHROPIC, "g": GEMINI}.items():
            put(tmp_path, f"{name}_input.jsonl", requests)
            put(tmp_path, f"{name}_output.jsonl", responses)
    found, report = read_batch(tmp_path)
    assert answered(found) == ANSWERED and not found["quarantine"]
    assert (report.total.read, report.total.rows) == (6, 6)
    assert {row["source_format"] for row in found["interactions"]} == {"openai_pairs", "anthropic", "gemini"}
    again, report = read_batch(tmp_path)
    assert report.total.read == 0 and answered(again) == ANSWERED


def test_a_later_file_of_one_format_leaves_the_pairs_of_the_others(tmp_path):
    put(tmp_path, "o_input.jsonl", OPENAI[0])
    put(tmp_path, "c_input.jsonl", ANTHROPIC[0])
    put(tmp_path, "c_output.jsonl", ANTHROPIC[1])
    put(tmp_path, "vllm.log", VLLM)
    found, _ = read_batch(tmp_path)
    assert answered(found) == {("claude a", "c-a"), ("claude b", "c-b"), ("vllm a", "v-a")}
    assert [row["error_code"] for row in found["quarantine"]] == ["unpaired", "unpaired"]
    put(tmp_path, "o_output.jsonl", OPENAI[1])
    found, _ = read_batch(tmp_path)
    assert answered(found) == {*(pair for pair in ANSWERED if not pair[0].startswith("gemini")), ("vllm a", "v-a")}
    assert not found["quarantine"]
