"""Messages in OTLP attributes, in the forms that instrumentations and exporters write."""

import json

import pytest

from resources.records.providers.otlp import model_call_of
from resources.records.synonyms import Reader

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
        span(*(json.dumps([{"role": role, "parts": [{"type": "text", "text": text}]}]) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
        span(*(json.dumps([{"role": role, "parts": [{"text": text}]}]) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
        span(*(json.dumps([{"role": role, "parts": [text]}]) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
        span(*(json.dumps([{"role": role, "parts": json.dumps([{"type": "text", "content": text}])}])
               for role, text in (("user", "Why?"), ("assistant", "Because.")))),
        span(*(json.dumps([{"role": role, "content": [{"type": "text", "content": text}]}])
               for role, text in (("user", "Why?"), ("assistant", "Because.")))),
        span(*(json.dumps({"messages": [{"role": role, "content": text}]}) for role, text in (("user", "Why?"), ("assistant", "Because.")))),
        span(json.dumps(["Why?"]), json.dumps(["Because."])),
    ],
)  # fmt: skip
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
