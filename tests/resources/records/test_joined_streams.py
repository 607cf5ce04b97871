"""Streams of the Responses API, and streams whose fields contradict each other."""

import json

import pytest
from test_formats import read

from resources.records.providers.streams import joined as provider_joined
from resources.records.streams import joined


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
    "whole": [*BEGUN, *ADDED, *DONE, _event("completed", response={"id": "r1", "status": "completed", "output": [MESSAGE, CALL]})],
    "items": [*BEGUN, *DONE, _event("completed", response={"id": "r1", "status": "completed", "output": []})],
    "deltas": [*BEGUN, *ADDED, _event("completed", response={"id": "r1", "status": "completed"})],
}  # fmt: skip


def _sse(events):
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


WRITTEN = {"list": list, "text": _sse,
    "wrapped": lambda events: [{"event": event["type"], "data": event} for event in events],
    "texts": lambda events: [{"event": event["type"], "data": json.dumps(event)} for event in events]}  # fmt: skip


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


@pytest.mark.parametrize(("end", "status", "finish"), [
    ([], "failure", "in_progress"),
    ([_event("failed", response={"id": "r1", "status": "failed", "error": {"code": "server_error", "message": "overload"}})], "failure", "failed"),
    ([_event("incomplete", response={"id": "r1", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}})], "success", "length"),
])  # fmt: skip
def test_a_stream_that_does_not_end_well_says_so(tmp_path, end, status, finish):
    events = [*BEGUN, *ADDED[:3], *end]
    [row], bad, _, _ = read(tmp_path, [{"request": {"model": "m", "input": "A canal?"}, "response": events}])
    assert not bad and (row["status"], row["finish_reason"]) == (status, finish)
    assert json.loads(row["completion"])["content"] == "The Suez canal."


def test_streams_are_joined_where_fields_name_them(tmp_path):
    lines = [{"ask": {"model": "m", "input": "A canal?"}, "got": _sse(STREAMS["items"])},
            {"ask": {"model": "m", "input": "A canal?"}, "got": STREAMS["deltas"]}]  # fmt: skip
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
    start = [{"type": "content_block_start", "index": 0,
            "content_block": {"type": "tool_use", "id": name, "name": name, "input": {}}} for name in "ab"]  # fmt: skip
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"x":1}'}}
    said = provider_joined([{"type": "message_start", "message": {}}, start[0], delta, start[1], delta,
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}])  # fmt: skip
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
            lines.append({"id": "chatcmpl-373", "object": "chat.completion.chunk", "created": 1780300000 + place,
                    "choices": [{"index": 0, "delta": delta, "finish_reason": end}]})  # fmt: skip
        lines.append(
            {"id": "chatcmpl-373", "object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 7}}
        )
    rows, bad, _, _ = read(tmp_path, lines)
    assert not bad and [
        (json.loads(row["messages"])[0]["content"], json.loads(row["completion"])["content"], row["completion_tokens"])
        for row in rows
    ] == [("q0", "a0", 7), ("q1", "a1", 7)]
