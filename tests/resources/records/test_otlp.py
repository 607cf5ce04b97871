"""OpenTelemetry's GenAI spans and events in OTLP JSON, from fixtures written after the conventions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_example_formats import FIXTURES, fixture, said
from test_trace_formats import decided

from resources.records.formats import detect
from resources.records.providers.otlp import model_call_of
from resources.records.synonyms import Reader

TRACE = "5b8efff798038103d269b633813fc60c"


def found_in(tmp_path, name):
    rows, *rest = fixture(tmp_path, name)
    return {(row["request_id"].replace(f"{TRACE}-eee19b7ec3c1b", ""), row["choice_index"]): row for row in rows}, *rest


def test_spans_of_calls_are_interactions_and_every_other_span_is_counted(tmp_path):
    found, bad, _, report = found_in(tmp_path, "otlp_traces.jsonl")
    assert set(found) == {("resp-1", 0), ("003", 0), ("003", 1), ("004", 0), *((f"00{n}", 0) for n in (6, 7, 8, 9))}
    assert not bad and decided(tmp_path) == {
        "otlp_other": 1, "otlp_execute_tool": 1, "otlp_call_without_content": 1, "otlp_no_span_or_event": 1,
    }  # fmt: skip
    assert (report.total.read, report.total.rows, report.total.skipped) == (12, 8, 4)


def test_a_span_keeps_what_it_says(tmp_path):
    found, _, feedback, report = found_in(tmp_path, "otlp_traces.jsonl")
    row = found["resp-1", 0]
    assert row["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "weather in Oslo?"}, {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"t":7}'},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]  # fmt: skip
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
    assert row["prompt_tokens"] == 2 and decided(tmp_path) == {"otlp_other": 1}
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


values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(["key", "value", "stringValue", "arrayValue", "values", "parts", "role"]), inner, max_size=3)),
    max_leaves=8)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["attributes", "events", "status", "startTimeUnixNano", "eventName", "body"]), values))
def test_no_span_raises_whatever_it_holds(item):
    assert json.loads(model_call_of(json.dumps(item), Reader(frozenset())))["kind"]


TEXT = [{"role": "user", "parts": [{"type": "text", "content": "Why?"}]}]
SAID = [{"role": "assistant", "parts": [{"type": "text", "content": "Because."}], "finish_reason": "stop"}]
CALLED = [*TEXT, {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": "it"}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "content": "blue"}]}]  # fmt: skip


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


@pytest.mark.parametrize("item", [
    span(json.dumps(TEXT), json.dumps(SAID)),
    span(json.dumps(json.dumps(TEXT)), json.dumps(json.dumps(SAID))),
    span(json.dumps("Why?"), json.dumps("Because.")),
    span("Why?", "Because."),
    span(TEXT, SAID),
    span(json.dumps(TEXT), json.dumps(SAID), dict),
    span(TEXT, SAID, dict),
    span(TEXT, SAID, lambda told: {key: pair(key, value)["value"] for key, value in told.items()}),
    span(*(json.dumps([{"role": role, "parts": [{"type": "text", "text": text}]}]) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
    span(*(json.dumps([{"role": role, "parts": [{"text": text}]}]) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
    span(*(json.dumps([{"role": role, "parts": [text]}]) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
    span(*(json.dumps([{"role": role, "parts": json.dumps([{"type": "text", "content": text}])}])
           for role, text in (("user", "Why?"), ("assistant", "Because.")))),
    span(*(json.dumps([{"role": role, "content": [{"type": "text", "content": text}]}])
           for role, text in (("user", "Why?"), ("assistant", "Because.")))),
    span(*(json.dumps({"messages": [{"role": role, "content": text}]}) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
    span(json.dumps(["Why?"]), json.dumps(["Because."])),
])  # fmt: skip
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
