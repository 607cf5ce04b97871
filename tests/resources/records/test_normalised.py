"""What all formats share: streamed answers put together, inline media as references, thoughts kept apart; and Parquet."""

import base64
import gzip
import hashlib
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_formats import litellm, numbered, pair, read

from resources.records.formats import FORMATS
from resources.records.inline_media import referenced
from resources.records.objects import parquet_reader
from resources.records.objects.parquet_reader import read_parquet
from resources.records.streams import joined
from tests.thorough_cases import thorough_except

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/formats"


def chunk(identity="c1", delta=None, finish=None, index=0, **changes):
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {
        "id": identity,
        "object": "chat.completion.chunk",
        "created": 1780300000,
        "model": "m-1",
        "choices": [choice],
        **changes,
    }


def stream(identity="c1", words=("Hel", "lo"), **end):
    return [
        chunk(identity, {"role": "assistant", "content": ""}),
        *[chunk(identity, {"content": word}) for word in words],
        chunk(identity, finish="stop"),
        chunk(identity, choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2}),
        *([end] if end else []),
    ]


def events(chunks, done=True):
    return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + ("data: [DONE]\n\n" if done else "")


def completions(rows):
    return [json.loads(row["completion"]) for row in rows]


@pytest.mark.parametrize("written", [lambda chunks: chunks, events, lambda chunks: [*chunks, "[DONE]"]])
def test_a_pair_with_a_streamed_response_is_the_pair_with_its_answer(tmp_path, written):
    (row,), bad, _, report = read(tmp_path, [pair(response=written(stream()))])
    assert not bad and report.total.read == 1 and row["request_id"] == "c1" and row["status"] == "success"
    assert completions([row]) == [{"role": "assistant", "content": "Hello"}] and row["finish_reason"] == "stop"
    assert (row["prompt_tokens"], row["completion_tokens"], row["model"]) == (3, 2, "m-1")


def test_streamed_tool_calls_thoughts_token_ids_and_choices(tmp_path):
    call = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}
    pieces = [
        chunk(delta={"role": "assistant", "reasoning_content": "Let me "}, prompt_token_ids=[1, 2]),
        chunk(delta={"reasoning_content": "see."}),
        chunk(delta={"content": "other"}, index=1, finish="length"),
        chunk(delta={"tool_calls": [call]}),
        chunk(delta={"tool_calls": [{"index": 1, "id": "u", "function": {"name": "g", "arguments": "{}"}}]}),
        chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]}),
        chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}),
        chunk(finish="tool_calls"),
    ]
    for number, piece in enumerate(pieces):
        if piece["choices"][0]["index"] == 0:
            piece["choices"][0]["token_ids"] = [number]
    rows, bad, _, report = read(tmp_path, [pair(response=pieces)])
    assert not bad and report.total.read == 2 and [row["finish_reason"] for row in rows] == ["tool_calls", "length"]
    called, other = completions(rows)
    assert [each["function"] for each in called["tool_calls"]] == [
        {"name": "f", "arguments": '{"x": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert [each["id"] for each in called["tool_calls"]] == ["t", "u"] and called["content"] is None
    assert rows[0]["reasoning"] == "Let me see." and "reasoning" not in rows[0]["completion"]
    assert rows[0]["completion_token_ids"] == [0, 1, 3, 4, 5, 6, 7] and rows[0]["prompt_token_ids"] == [1, 2]
    assert other["content"] == "other"


@pytest.mark.parametrize("cut", [stream()[:-2], events(stream()[:3], done=False), events(stream()[:3], done=False)[:-20]])
def test_a_cut_stream_is_a_failed_request_with_what_had_arrived(tmp_path, cut):
    (row,), bad, _, _ = read(tmp_path, [pair(response=cut)])
    assert not bad and row["status"] == "failure" and row["error"].startswith("stream_cut")
    assert completions([row])[0]["content"] in ("Hello", "Hel")
    (row,), bad, _, _ = read(tmp_path, [litellm(response=stream()[:-2])])
    assert not bad and row["status"] == "failure" and row["error"].startswith("stream_cut")


def test_litellm_streams_are_put_together(tmp_path):
    (row,), bad, _, _ = read(tmp_path, [litellm(response=stream())])
    assert not bad and completions([row])[0]["content"] == "Hello" and row["status"] == "success"


def test_lines_of_chunks_one_after_the_other_or_interleaved(tmp_path):
    first, second = stream("a", ["1", "2"]), stream("b", ["3", "4"])
    asked = [{"request": {"messages": [{"role": "user", "content": text}]}, "timestamp": 1780300000} for text in "ab"]
    one, after = [asked[0], *first, asked[1], *second], [{**asked[0], "id": "a"}, {**asked[1], "id": "b"}]
    for interleaved in zip(first, second, strict=True):
        after += interleaved[::-1]
    on_a_chunk = [{**first[0], **asked[0]}, *first[1:], *second[:1], {**second[1], **asked[1]}, *second[2:]]
    for number, lines in enumerate((one, after, on_a_chunk)):
        (tmp_path / str(number)).mkdir()
        rows, bad, _, report = read(tmp_path / str(number), lines)
        found = {
            row["request_id"]: (json.loads(row["messages"])[0]["content"], completions([row])[0]["content"]) for row in rows
        }
        assert not bad and found == {"a": ("a", "12"), "b": ("b", "34")} and report.total.read == 2
        assert min(row["source_row"] for row in rows) == (1 if number == 2 else 2 if number == 0 else 3)


def test_chunks_whose_request_is_unknown_or_doubtful_are_not_guessed(tmp_path):
    asked = [{"request": {"messages": [{"role": "user", "content": text}]}} for text in "ab"]
    rows, bad, _, report = read(tmp_path, [*asked, *stream("x"), {"odd": 1}, *stream("y")[:2]])
    assert not rows and report.total.read == 5 and [row["source_row"] for row in bad] == [1, 2, 3, 8, 9]
    assert [row["error_code"] for row in bad] == ["missing_field"] * 3 + ["unknown_format", "missing_field"]


@given(st.lists(st.text(max_size=5), min_size=1, max_size=6), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_law_joining_pieces_gives_the_text_back(words, choices):
    pieces = [chunk(delta={"content": word}, index=index) for word in words for index in range(choices)]
    pieces += [chunk(finish="stop", index=index) for index in range(choices)]
    answer = joined(pieces)
    assert [each["message"]["content"] for each in answer["choices"]] == ["".join(words)] * choices
    assert "error" not in answer and "error" in joined(pieces[:-1]) and "error" not in joined(pieces[:-1], done=True)


PICTURE = bytes(range(256)) * 40


def test_inline_media_become_references_and_urls_stay(tmp_path):
    encoded = base64.b64encode(PICTURE).decode()
    parts = [
        {"type": "text", "text": "what is this? data:image/png;base64,AAAA"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{encoded}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": encoded}},
    ]
    record = pair(request={"messages": [{"role": "user", "content": parts}]})
    (row,), bad, _, _ = read(tmp_path, [record])
    found = json.loads(row["messages"])[0]["content"]
    digest = f"sha256:{hashlib.sha256(PICTURE).hexdigest()}"
    assert not bad and found[0] == parts[0] and found[2] == parts[2] and len(row["messages"]) < 1500
    assert found[1]["image_url"] == {"url": f"{digest};image/png;{len(PICTURE)}", "detail": "low"}
    assert found[3]["input_audio"] == {"data": f"{digest};audio/wav;{len(PICTURE)}", "format": "wav"}
    assert found[4]["file"] == {"filename": "a.pdf", "file_data": f"{digest};application/pdf;{len(PICTURE)}"}
    assert found[5]["source"]["data"] == f"{digest};image/jpeg;{len(PICTURE)}"


def test_inline_media_inside_json_texts_become_references(tmp_path):
    encoded = base64.b64encode(PICTURE).decode()
    digest = f"sha256:{hashlib.sha256(PICTURE).hexdigest()}"
    asked = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hé"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}},
                {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}},
            ],
        }
    ]
    parts = [{"role": "user", "parts": [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": encoded}]}]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "yes"}]}]

    def span(name, asked):
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": asked, "gen_ai.output.messages": said}
        return {
            "traceId": "t",
            "spanId": name,
            "startTimeUnixNano": "1780300000000000000",
            "attributes": [
                {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}
                for key, value in attributes.items()
            ],
        }

    observation = {
        "id": "g",
        "trace_id": "t",
        "type": "GENERATION",
        "start_time": "2026-06-01 10:00:00",
        "input": json.dumps(asked),
        "output": "a",
    }
    found = json.dumps({"screen": f"data:image/png;base64,{encoded}", "n": [1]}, indent=1)
    tool = {"role": "tool", "tool_call_id": "c", "content": found}
    prose = f"[see data:image/png;base64,{encoded[:80]}"
    rows, bad, _, _ = read(
        tmp_path,
        [
            {"resourceSpans": [{"scopeSpans": [{"spans": [span("a", parts), span("b", asked)]}]}]},
            observation,
            pair(request={"messages": [tool, {"role": "user", "content": prose}]}),
        ],
    )
    spans, langfuse, ours = rows[:2], rows[2], rows[3]
    assert not bad and len(rows) == 4 and encoded[:100] not in str(rows)
    image = {"type": "image_url", "image_url": {"url": f"{digest};image/png;{len(PICTURE)}"}}
    by_id = {row["request_id"]: json.loads(row["messages"]) for row in spans}
    assert by_id["t-a"][0]["content"] == [image]
    assert by_id["t-b"] == json.loads(langfuse["messages"])
    assert by_id["t-b"][0]["content"][1:] == [
        image,
        {"type": "input_audio", "input_audio": {"data": f"{digest};audio/wav;{len(PICTURE)}", "format": "wav"}},
    ]
    talk = json.loads(ours["messages"])
    assert json.loads(talk[0]["content"]) == {"screen": image["image_url"]["url"], "n": [1]} and talk[1]["content"] == prose


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=80),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    )
)
@settings(max_examples=100, deadline=None)
def test_law_what_is_no_media_stays(value):
    assert referenced(value) == value


def test_thoughts_are_kept_apart(tmp_path):
    cases = [
        ({"content": "4", "reasoning_content": "2 + 2"}, "4", "2 + 2"),
        ({"content": "4", "reasoning": "two"}, "4", "two"),
        ({"content": "<think>\nhm\n</think>\n\n4"}, "4", "hm"),
        ({"content": "<think>\n\n</think>\n\n4"}, "4", None),
        ({"content": "say <think>x</think>"}, "say <think>x</think>", None),
        ({"content": "<think>cut"}, "<think>cut", None),
        ({"content": "A metal.\n</think>\n\nTin."}, "Tin.", "A metal."),
        ({"content": "[THINK]hm[/THINK]Tin."}, "Tin.", "hm"),
        ({"content": "<thought>hm</thought>\nTin."}, "Tin.", "hm"),
        ({"content": "◁think▷hm◁/think▷Tin."}, "Tin.", "hm"),
        ({"content": "It ends with `</think>`\n\nso"}, "It ends with `</think>`\n\nso", None),
        ({"content": "It ends with </think> and\nso"}, "It ends with </think> and\nso", None),
        ({"content": "a <think> tag\n</think>\nso"}, "a <think> tag\n</think>\nso", None),
        ({"content": 'a "reasoning" word'}, 'a "reasoning" word', None),
    ]
    records = numbered([pair() for _ in cases])
    for record, (message, _, _) in zip(records, cases, strict=True):
        record["response"]["choices"] = [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}]
    rows, bad, _, _ = read(tmp_path, records)
    assert not bad and [json.loads(row["completion"]) for row in rows] == [
        {"role": "assistant", "content": content} for _, content, _ in cases
    ]
    assert [row["reasoning"] for row in rows] == [thought for *_, thought in cases]


def as_parquet(records, **options):
    content = io.BytesIO()
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    pq.write_table(pa.table(columns), content, **options)
    return content.getvalue()


MIXED = (
    "preferences.jsonl", "completions.jsonl", "langsmith.jsonl", "ollama.jsonl", "prompt_completion.jsonl", "sharegpt.jsonl",
    "anthropic.jsonl", "gemini.jsonl", "bedrock.jsonl", "bedrock_completions.jsonl",
)  # fmt: skip
"""Fixtures whose lines differ in the kind of one key: no Parquet column could hold them as they are."""


@pytest.mark.parametrize(
    "name",
    thorough_except(
        ["otlp_traces.jsonl", "preferences.jsonl", "stored_completions.jsonl"],
        sorted(path.name for path in FIXTURES.glob("*.jsonl")),
    ),
)
@pytest.mark.parametrize("as_text", [False, True])
def test_parquet_gives_the_same_rows_as_json_lines(tmp_path, name, as_text):
    records = [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]
    if as_text or name in MIXED:
        records = [
            {
                key: value
                if isinstance(value, str | int | float | None)
                or key in ("token_ids", "input_ids", "labels", "attention_mask", "loss_mask")
                else json.dumps(value)
                for key, value in record.items()
            }
            for record in records
        ]
    own = next(form for form in sorted(FORMATS, key=len, reverse=True) if name.startswith(form))
    found = {}
    for place, content in (("lines", (FIXTURES / name).read_bytes()), ("parquet", as_parquet(records))):
        (tmp_path / place).mkdir()
        rows, bad, _feedback, report = read(tmp_path / place, content, name="data", format=own)
        found[place] = [(row["source_row"], row["choice_index"], row["content_sha256"], row["status"]) for row in rows]
        found[place] += [(row["source_row"], row["error_code"]) for row in bad] + [report.total.attached_feedback]
    if own != "tokens" or not as_text:
        assert found["parquet"] == found["lines"]


def test_parquet_of_a_log_and_a_damaged_one(tmp_path):
    records = []
    for number in range(3000):
        records.append(pair())
        records[-1]["response"]["id"] = f"r{number}"
    content = as_parquet(records, row_group_size=1000)
    rows, bad, _, report = read(tmp_path, content, name="a.parquet")
    assert len(rows) == 3000 and not bad and [row["source_row"] for row in rows] == list(range(1, 3001))
    assert rows[7]["request_id"] == "r7" and rows[7]["source_format"] == "openai_pairs" and report.total.read == 3000
    for damaged in (content[:-20], content[:2000] + bytes(2000) + content[4000:], b"PAR1" + bytes(50)):
        (tmp_path / str(len(damaged))).mkdir(exist_ok=True)
        rows, bad, _, report = read(tmp_path / str(len(damaged)), damaged, name="b.parquet")
        assert len(bad) == 1 and bad[0]["error_code"] == "damaged_file" and bad[0]["source_row"] == 0
        assert "Parquet" in bad[0]["message"] and report.total.read == len(rows) + 1


def test_parquet_is_read_in_batches_of_bounded_size(monkeypatch):
    content = as_parquet(
        [{"text": f"{number} {'x' * 1000}"} for number in range(2000)], compression="none", use_dictionary=False
    )
    monkeypatch.setattr(parquet_reader, "BATCH_BYTES", 100_000)
    parts = list(read_parquet(io.BytesIO(content)))
    assert len(parts) > 10 and sum(len(part.raw) for part in parts) == 2000
    assert max(part.raw.nbytes for part in parts) < 200_000 and parts[1].rows[0].as_py() == len(parts[0].rows) + 1


def test_an_error_of_the_storage_is_not_one_of_the_parquet():
    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 0:
                raise OSError("connection lost")
            return super().read(size)

    with pytest.raises(OSError, match="connection lost"):
        list(read_parquet(Broken(as_parquet([{"text": "a"}] * 5))))


def test_a_text_file_is_text_only_where_the_recipe_says_so(tmp_path):
    prose = b"# A page\n\nof prose: {not json}\n"
    (row,), bad, _, _ = read(tmp_path, prose, name="page.md", format="text")
    assert not bad and json.loads(row["completion"])["content"] == prose.decode() and row["source_row"] == 1
    (tmp_path / "b").mkdir()
    rows, (bad,), _, _ = read(tmp_path / "b", prose, name="page.md")
    assert not rows and bad["error_code"] == "unknown_format"
    cases = [
        (b'{"text": "broken', "broken.jsonl", "malformed_json"),
        (b"\xff\x80\x00", "a.txt", "invalid_utf8"),
        ("hé".encode("utf-16")[:-1], "b.txt", "damaged_file"),
        (gzip.compress(prose)[:-9], "a.txt.gz", "damaged_file"),
    ]
    for number, (content, name, code) in enumerate(cases):
        (tmp_path / f"c{number}").mkdir()
        rows, (bad,), _, _ = read(tmp_path / f"c{number}", content, name=name, format="text")
        assert not rows and bad["error_code"] == code
    (tmp_path / "d").mkdir()
    rows, bad, _, _ = read(tmp_path / "d", [{"text": "a"}, {"text": "b"}], name="lines.txt", format="text")
    assert len(rows) == 2 and not bad


def test_texts_of_people_that_are_json_stay_texts_in_parquet(tmp_path):
    said = '{"b": [1,\n 2]}'
    examples = [
        {"instruction": "Sort", "input": said, "response": said},
        {"instruction": "Sort", "context": said, "response": "[]"},
    ]
    rows, bad, _, _ = read(tmp_path, as_parquet(examples), name="a.parquet")
    assert not bad and [json.loads(row["completion"])["content"] for row in rows] == [said, "[]"]
    assert all(json.loads(row["messages"])[0]["content"] == f"Sort\n\n{said}" for row in rows)
    (tmp_path / "b").mkdir()
    (row,), bad, _, _ = read(tmp_path / "b", as_parquet([{"prompt": said, "response": said}]), name="a.parquet")
    assert not bad and json.loads(row["completion"])["content"] == json.loads(row["messages"])[0]["content"] == said
    (tmp_path / "c").mkdir()
    talk = [{"role": "user", "content": said}, {"role": "assistant", "content": said}]
    observation = {
        "id": "g",
        "trace_id": "t",
        "type": "GENERATION",
        "start_time": "2026-06-01 10:00:00",
        "input": json.dumps(talk[:1]),
        "output": json.dumps(talk[1]),
    }
    (row,), bad, _, _ = read(tmp_path / "c", as_parquet([observation]), name="a.parquet")
    assert not bad and json.loads(row["messages"]) == talk[:1] and json.loads(row["completion"]) == talk[1]


def _call(city, **more):
    return {"name": "weather", "arguments": {"city": city}, **more}


def _turn(speaker, value):
    return {"from": speaker, "value": value if isinstance(value, str) else json.dumps(value)}


ASKED, SAID = _turn("human", "Oslo and Rome?"), _turn("gpt", "9 and 24.")
RESULTS = [_turn("observation", "9 C"), _turn("observation", "24 C")]


@pytest.mark.parametrize(
    "turns",
    [
        [_turn("function_call", _call("Oslo")), _turn("function_call", _call("Rome")), *RESULTS],
        [_turn("function_call", [_call("Oslo"), _call("Rome")]), *RESULTS],
        [_turn("tool_call", f"{json.dumps(_call('Oslo'))}\n{json.dumps(_call('Rome'))}"), *RESULTS],
        [
            _turn("function_call", [{"type": "function", "function": _call("Oslo")}]),
            _turn("function_call", _call("Rome")),
            *RESULTS,
        ],
        [{"from": "function_call", "value": [_call("Oslo"), _call("Rome")]}, _turn("tool_response", ["9 C", "24 C"])],
    ],
    ids=["in a row", "a list", "lines", "nested", "one value of results"],
)
def test_calls_in_a_row_are_one_turn_and_results_answer_them_in_order(tmp_path, turns):
    rows, bad, _, _ = read(tmp_path, [{"conversations": [ASKED, *turns, SAID]}])
    assert not bad and len(rows) == 2
    called, last = json.loads(rows[0]["completion"]), json.loads(rows[1]["messages"])
    assert [json.loads(call["function"]["arguments"])["city"] for call in called["tool_calls"]] == ["Oslo", "Rome"]
    assert rows[0]["finish_reason"] == "tool_calls" and json.loads(rows[1]["completion"])["content"] == "9 and 24."
    assert [(message["tool_call_id"], message["content"]) for message in last[2:]] == [
        (call["id"], said) for call, said in zip(called["tool_calls"], ["9 C", "24 C"], strict=True)
    ]


def test_a_second_round_of_calls_has_ids_of_its_own_and_a_text_before_a_call_is_in_its_turn(tmp_path):
    turns = [
        ASKED,
        _turn("gpt", "I look."),
        _turn("function_call", _call("Oslo")),
        RESULTS[0],
        _turn("function_call", _call("Rome")),
        RESULTS[1],
        SAID,
    ]
    rows, bad, _, _ = read(tmp_path, [{"conversations": turns}])
    told = json.loads(rows[2]["messages"])
    assert not bad and [message["role"] for message in told] == ["user", "assistant", "tool", "assistant", "tool"]
    assert told[1]["content"] == "I look." and told[1]["tool_calls"][0]["id"] == told[2]["tool_call_id"] == "call_1"
    assert told[3]["tool_calls"][0]["id"] == told[4]["tool_call_id"] == "call_2"


@pytest.mark.parametrize(
    "turns",
    [
        [_turn("function_call", "look for Oslo"), ASKED, SAID],
        [ASKED, _turn("function_call", [_call("Oslo"), 5]), SAID],
        [ASKED, _turn("function_call", _call("Oslo")), _turn("function_call", "{"), SAID],
    ],
)
def test_a_call_without_a_name_is_no_call(tmp_path, turns):
    rows, [bad], _, _ = read(tmp_path, [{"conversations": turns}])
    assert not rows and "function_call that is no JSON with a name" in bad["message"]
