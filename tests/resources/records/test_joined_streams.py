"""Streams of the Responses API, and streams whose fields contradict each other."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_example_formats import FIXTURES, fixture, said
from test_formats import read
from test_trace_formats import decided

from resources.records.formats import detect
from resources.records.providers.otlp import model_call_of
from resources.records.providers.streams import joined as provider_joined
from resources.records.streams import joined
from resources.records.synonyms import Reader


def _event(kind, **more):
    return {"type": f"response.{kind}", **more}


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "The Suez canal."}]}
CALL = {"id": "f", "type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"Suez"}'}
BEGUN = [_event("created", response={"id": "r1", "status": "in_progress", "created_at": 1780300800, "output": []})]
ADDED = [
    _event("output_item.added", output_index=0, item={**MESSAGE, "content": []}),
    _event("output_text.delta", item_id="m", output_index=0, content_index=0, delta="The Suez "),
    _event("output_text.delta", item_id="m", output_index=0, content_index=0, delta="canal."),
    _event("output_item.added", output_index=0, item={**CALL, "arguments": ""}),  # a second item of the same index
    _event("function_call_arguments.delta", item_id="f", output_index=0, delta='{"at":'),
    _event("function_call_arguments.delta", item_id="f", output_index=0, delta='"Suez"}'),
]
DONE = [_event("output_item.done", output_index=place, item=item) for place, item in enumerate((MESSAGE, CALL))]
STREAMS = {
    "whole": [
        *BEGUN,
        *ADDED,
        *DONE,
        _event("completed", response={"id": "r1", "status": "completed", "output": [MESSAGE, CALL]}),
    ],
    "items": [*BEGUN, *DONE, _event("completed", response={"id": "r1", "status": "completed", "output": []})],
    "deltas": [*BEGUN, *ADDED, _event("completed", response={"id": "r1", "status": "completed"})],
}


def _sse(events):
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


WRITTEN = {
    "list": list,
    "text": _sse,
    "wrapped": lambda events: [{"event": event["type"], "data": event} for event in events],
    "texts": lambda events: [{"event": event["type"], "data": json.dumps(event)} for event in events],
}


@pytest.mark.parametrize("written", WRITTEN)
def test_a_stream_of_the_responses_api_is_its_response(tmp_path, written):
    records = []
    for name, events in STREAMS.items():
        named = json.loads(json.dumps(events).replace('"r1"', f'"resp_{name}x7f"'))
        records.append({"request": {"model": "m", "input": f"A canal? ({name})"}, "response": WRITTEN[written](named)})
    rows, bad, _, _ = read(tmp_path, records)
    assert not bad and [row["request_id"] for row in rows] == [f"resp_{name}x7f" for name in STREAMS]
    for row, name in zip(rows, STREAMS, strict=True):
        said = json.loads(row["completion"])
        assert (said["content"], row["status"], row["ts"].hour) == ("The Suez canal.", "success", 8), name
        assert said["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"Suez"}'}, name
        assert json.loads(row["messages"]) == [{"role": "user", "content": f"A canal? ({name})"}]


@pytest.mark.parametrize(
    ("end", "status", "finish"),
    [
        ([], "failure", "in_progress"),
        (
            [
                _event(
                    "failed",
                    response={"id": "r1", "status": "failed", "error": {"code": "server_error", "message": "overload"}},
                )
            ],
            "failure",
            "failed",
        ),
        (
            [
                _event(
                    "incomplete",
                    response={"id": "r1", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
                )
            ],
            "success",
            "length",
        ),
    ],
)
def test_a_stream_that_does_not_end_well_says_so(tmp_path, end, status, finish):
    events = [*BEGUN, *ADDED[:3], *end]
    [row], bad, _, _ = read(tmp_path, [{"request": {"model": "m", "input": "A canal?"}, "response": events}])
    assert not bad and (row["status"], row["finish_reason"]) == (status, finish)
    assert json.loads(row["completion"])["content"] == "The Suez canal."


def test_streams_are_joined_where_fields_name_them(tmp_path):
    lines = [
        {"ask": {"model": "m", "input": "A canal?"}, "got": _sse(STREAMS["items"])},
        {"ask": {"model": "m", "input": "A canal?"}, "got": STREAMS["deltas"]},
    ]
    rows, bad, _, _ = read(tmp_path, lines, fields={"request": "ask", "response": "got"})
    assert not bad and {json.loads(row["completion"])["content"] for row in rows} == {"The Suez canal."}


@pytest.mark.parametrize(("record", "words"), [
    ({"request": {"input": "a"}, "response": {"id": "x"}}, "response has neither output nor an error"),
    ({"request": {"input": []}, "response": {"id": "x", "output": []}}, "request.input has no message"),
    ({"request": {"model": "m"}, "response": {"choices": []}}, "request.messages is missing"),
])  # fmt: skip
def test_the_reason_is_that_of_the_api(tmp_path, record, words):
    rows, [bad], _, _ = read(tmp_path, [record])
    assert not rows and bad["message"] == words


def test_a_failed_call_of_the_responses_api_is_a_failed_request(tmp_path):
    [row], bad, _, _ = read(tmp_path, [{"request": {"input": "a"}, "response": {"error": {"message": "overload"}}}])
    assert not bad and (row["status"], row["error"]) == ("failure", "overload")


def _calls(*pieces):
    chunks = [
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces
    ]
    calls = joined(chunks, done=True)["choices"][0]["message"]["tool_calls"]
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


def _piece(call_id=None, name=None, arguments="", index=0):
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"function": function} | ({"id": call_id} if call_id else {}) | ({} if index is None else {"index": index})


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            [("a", "one", '{"x":'), (None, None, "1}"), ("b", "two", ""), (None, None, "{}")],
            [("a", "one", '{"x":1}'), ("b", "two", "{}")],
        ),
        ([(None, "one", "{}"), (None, "two", '{"y":2}')], [(None, "one", "{}"), (None, "two", '{"y":2}')]),
        ([(None, "one", '{"x":1}'), (None, "one", '{"x":2}')], [(None, "one", '{"x":1}'), (None, "one", '{"x":2}')]),
        ([("a", "one", "{}"), ("a", "two", "{}")], [("a", "one", "{}"), ("a", "two", "{}")]),
    ],
    ids=["another id", "another name", "the same name", "one id for all"],
)
def test_another_id_or_a_name_after_whole_arguments_begins_a_call(pieces, expected, index):
    assert _calls(*(_piece(*piece, index=index) for piece in pieces)) == expected


def test_a_name_or_an_id_with_every_piece_begins_none():
    assert _calls(_piece("a", "one", '{"x"'), _piece("a", "one", ":1}"), _piece("a", "one", "")) == [("a", "one", '{"x":1}')]
    assert _calls(_piece("a", "one", '{"x"'), _piece("b", None, ":1}")) == [("a", "one", '{"x":1}')]


def test_blocks_of_one_index_are_blocks_of_their_own():
    start = [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": name, "name": name, "input": {}},
        }
        for name in "ab"
    ]
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"x":1}'}}
    said = provider_joined(
        [
            {"type": "message_start", "message": {}},
            start[0],
            delta,
            start[1],
            delta,
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        ]
    )
    assert [(block["id"], block["input"]) for block in said["content"]] == [("a", {"x": 1}), ("b", {"x": 1})]
    tool = [
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": name, "name": name}}}}
        for name in "ab"
    ]
    said = provider_joined([{"messageStart": {"role": "assistant"}}, *tool, {"messageStop": {"stopReason": "tool_use"}}])
    assert [block["toolUse"]["name"] for block in said["output"]["message"]["content"]] == ["a", "b"]


def test_lines_of_two_answers_with_one_id_are_two_answers(tmp_path):
    lines = []
    for place in range(2):
        lines.append({"request": {"messages": [{"role": "user", "content": f"q{place}"}]}, "timestamp": 1780300000 + place})
        for delta, end in (({"content": f"a{place}"}, None), ({}, "stop")):
            lines.append(
                {
                    "id": "chatcmpl-373",
                    "object": "chat.completion.chunk",
                    "created": 1780300000 + place,
                    "choices": [{"index": 0, "delta": delta, "finish_reason": end}],
                }
            )
        lines.append(
            {"id": "chatcmpl-373", "object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 7}}
        )
    rows, bad, _, _ = read(tmp_path, lines)
    assert not bad and [
        (json.loads(row["messages"])[0]["content"], json.loads(row["completion"])["content"], row["completion_tokens"])
        for row in rows
    ] == [("q0", "a0", 7), ("q1", "a1", 7)]


TRACE = "5b8efff798038103d269b633813fc60c"


def found_in(tmp_path, name):
    rows, *rest = fixture(tmp_path, name)
    return {(row["request_id"].replace(f"{TRACE}-eee19b7ec3c1b", ""), row["choice_index"]): row for row in rows}, *rest


def test_spans_of_calls_are_interactions_and_every_other_span_is_counted(tmp_path):
    found, bad, _, report = found_in(tmp_path, "otlp_traces.jsonl")
    assert set(found) == {("resp-1", 0), ("003", 0), ("003", 1), ("004", 0), *((f"00{n}", 0) for n in (6, 7, 8, 9))}
    assert not bad and decided(tmp_path.parent / "fixture-otlp_traces.jsonl") == {
        "otlp_other": 1,
        "otlp_execute_tool": 1,
        "otlp_call_without_content": 1,
        "otlp_no_span_or_event": 1,
    }
    assert (report.total.read, report.total.rows, report.total.skipped) == (12, 8, 4)


def test_a_span_keeps_what_it_says(tmp_path):
    found, _, feedback, report = found_in(tmp_path, "otlp_traces.jsonl")
    row = found["resp-1", 0]
    assert row["messages"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "weather in Oslo?"},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"t":7}'},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    assert row["completion"]["content"] == "7 degrees" and row["reasoning"] == "hm" and row["finish_reason"] == "stop"
    assert row["tools"] == [
        {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}
    ]
    assert [row[f"{kind}_tokens"] for kind in ("prompt", "completion", "cached", "reasoning")] == [11, 5, 3, 2]
    assert row["latency_ms"] == 1500.000001 and row["ttft_ms"] == 250 and str(row["ts"]) == "2026-06-01 07:46:40.123456+00:00"
    assert (row["session_id"], row["client"], row["provider"], row["model"]) == ("conv-1", "shop", "openai", "m-1")
    assert row["params"] == {"temperature": 0.5, "max_tokens": 64} and "ann" not in str(row) and row["user_hash"]
    (judged,) = feedback
    assert (judged["request_id"], judged["name"], judged["value"]) == ("resp-1", "relevance", 0.9)
    assert (report.total.feedback, report.total.attached_feedback) == (0, 1)


def test_choices_tool_calls_and_failures(tmp_path):
    found, *_ = found_in(tmp_path, "otlp_traces.jsonl")
    assert found["003", 0]["finish_reason"] == "tool_calls" and found["003", 1]["finish_reason"] == "length"
    assert found["003", 0]["completion"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert found["003", 1]["completion"]["content"] == "or this"
    assert (found["004", 0]["status"], found["004", 0]["error"]) == ("failure", "deadline exceeded")


def test_older_conventions_and_other_instrumentations(tmp_path):
    found, *_ = found_in(tmp_path, "otlp_traces.jsonl")
    numbered = found["006", 0]
    assert said(numbered["messages"]) == [("system", "S"), ("user", "Q")] and numbered["prompt_tokens"] == 4
    assert numbered["completion"]["tool_calls"] == [
        {"id": "c3", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    ]
    inference = found["007", 0]
    assert said(inference["messages"]) == [("user", "oi")] and inference["completion"]["content"] == "ok"
    assert (inference["model"], inference["session_id"], inference["prompt_tokens"]) == ("m", "s9", 1)
    assert said(found["008", 0]["messages"]) == [("user", "old")] and found["008", 0]["completion"]["content"] == "event"
    assert said(found["009", 0]["messages"]) == [("user", "bare")] and found["009", 0]["completion"]["content"] == "text"


def test_events_of_one_pretty_printed_document(tmp_path):
    found, (bad,), feedback, report = found_in(tmp_path, "otlp_logs.json")
    row = found["500", 0]
    assert said(row["messages"]) == [("user", "structured")] and row["completion"]["content"] == "yes"
    assert row["prompt_tokens"] == 2 and decided(tmp_path.parent / "fixture-otlp_logs.json") == {"otlp_other": 1}
    assert bad["error_code"] == "missing_field" and "evaluation" in bad["message"]
    judged = {row["name"]: row for row in feedback}
    assert (judged["grounded"]["request_id"], judged["grounded"]["label"]) == ("resp-1", "pass")
    assert judged["grounded"]["comment"] == "cited"
    assert (judged["helpful"]["request_id"], judged["helpful"]["value"]) == (f"{TRACE}-eee19b7ec3c1b500", -1)
    assert report.total.read == 5 and report.total.feedback == 2


@pytest.mark.parametrize("name", ["otlp_traces.jsonl", "otlp_logs.json"])
def test_otlp_is_recognised(name):
    text = (FIXTURES / name).read_text()
    documents = [json.loads(text)] if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    assert all(detect([document]).name == "otlp" for document in documents)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["key", "value", "stringValue", "arrayValue", "values", "parts", "role"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["attributes", "events", "status", "startTimeUnixNano", "eventName", "body"]), values))
def test_no_span_raises_whatever_it_holds(item):
    assert json.loads(model_call_of(json.dumps(item), Reader(frozenset())))["kind"]


TEXT = [{"role": "user", "parts": [{"type": "text", "content": "Why?"}]}]
SAID = [{"role": "assistant", "parts": [{"type": "text", "content": "Because."}], "finish_reason": "stop"}]
CALLED = [
    *TEXT,
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": "it"}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "content": "blue"}]},
]


def pair(key, value):
    kind = {str: "stringValue", dict: "kvlistValue", list: "arrayValue"}[type(value)]
    return {"key": key, "value": {kind: any_value(value)}}


def any_value(value):
    if isinstance(value, dict):
        return {"values": [pair(key, each) for key, each in value.items()]}
    if isinstance(value, list):
        return {"values": [pair("", each)["value"] for each in value]}
    return value


def span(asked, said, attributes=None):
    told = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": asked, "gen_ai.output.messages": said}
    made = [pair(key, value) for key, value in told.items()] if attributes is None else attributes(told)
    return {"traceId": "t", "spanId": "s", "startTimeUnixNano": "1780000000000000000", "attributes": made}


def call_of(item):
    return json.loads(model_call_of(json.dumps(item), Reader(frozenset())))


@pytest.mark.parametrize(
    "item",
    [
        span(json.dumps(TEXT), json.dumps(SAID)),
        span(json.dumps(json.dumps(TEXT)), json.dumps(json.dumps(SAID))),
        span(json.dumps("Why?"), json.dumps("Because.")),
        span("Why?", "Because."),
        span(TEXT, SAID),
        span(json.dumps(TEXT), json.dumps(SAID), dict),
        span(TEXT, SAID, dict),
        span(TEXT, SAID, lambda told: {key: pair(key, value)["value"] for key, value in told.items()}),
        span(
            *(
                json.dumps([{"role": role, "parts": [{"type": "text", "text": text}]}])
                for role, text in (("user", "Why?"), ("assistant", "Because."))
            )
        ),
        span(
            *(
                json.dumps([{"role": role, "parts": [{"text": text}]}])
                for role, text in (("user", "Why?"), ("assistant", "Because."))
            )
        ),
        span(*(json.dumps([{"role": role, "parts": [text]}]) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
        span(
            *(
                json.dumps([{"role": role, "parts": json.dumps([{"type": "text", "content": text}])}])
                for role, text in (("user", "Why?"), ("assistant", "Because."))
            )
        ),
        span(
            *(
                json.dumps([{"role": role, "content": [{"type": "text", "content": text}]}])
                for role, text in (("user", "Why?"), ("assistant", "Because."))
            )
        ),
        span(
            *(
                json.dumps({"messages": [{"role": role, "content": text}]})
                for role, text in (("user", "Why?"), ("assistant", "Because."))
            )
        ),
        span(json.dumps(["Why?"]), json.dumps(["Because."])),
    ],
)
def test_texts_are_read(item):
    call = call_of(item)
    assert call["kind"] == "call" and call["messages"] == [{"role": "user", "content": "Why?"}]
    assert [(each["message"]["role"], each["message"]["content"]) for each in call["choices"]] == [("assistant", "Because.")]


def test_calls_and_their_results_are_read():
    call = call_of(span(json.dumps(json.dumps(CALLED)), json.dumps(SAID)))
    assert call["messages"][1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"it"}'}
    assert call["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "blue"}


def test_a_quoted_text_inside_a_message_stays_quoted():
    said = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": '"Yes."'}]}])
    call = call_of(span(json.dumps(TEXT), said))
    assert call["choices"][0]["message"]["content"] == '"Yes."'
