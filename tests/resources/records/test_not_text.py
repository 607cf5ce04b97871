"""What stands where text may stand and is none: placeholders of loggers, bodies in texts, calls of custom tools."""

import base64
import json
from urllib.parse import quote

import pytest
from test_formats import read

from model_ops.chat_apis.blocks import WHOLE, finish_reason_of
from model_ops.chat_apis.responses_api import chat_of
from resources.records.field_mapping import FieldMapping, unread
from resources.records.mapped_records import mapped_format

BODY = {
    "id": "x",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Neon gas, of nine."}}],
}


def pair(question, answer, **request):
    message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
    return {
        "request": {"model": "m", "messages": [{"role": "user", "content": question}], **request},
        "response": {"created": 1780300800, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]},
    }


def test_placeholders_of_loggers_are_no_text(tmp_path):
    hidden = [
        pair("redacted-by-litellm", "a"),
        pair("q", "redacted-by-litellm"),
        pair("default-message-value", "a"),
        pair("q", "[REDACTED]"),
        pair("... <Truncated in logs> ...", "a"),
        pair("[Filtered]", "a"),
        pair("q", "***"),
        pair("__REDACTED__", "a"),
        pair([{"type": "text", "text": "<redacted by policy>"}], "a"),
        pair("q", "[Scrubbed due to 'password']"),
        pair("begin... (litellm_truncated 120 chars) ...", "a"),
        pair("[This value has been dropped because this span's size exceeds the 5MB size limit.]", "a"),
        pair("q", "[object Object]"),
        pair("<truncated due to size exceeding limit>", "a"),
        pair("You are... <Truncated in logs> ...nces.\n", "a"),
        pair("Tell me of the sea ... (litellm_truncated 1234 chars) ...and the end", "a"),
        pair("The sea<Truncated in logs>", "a"),
    ]
    tool = {"type": "tool_use", "id": "t1", "name": "note", "input": {"text": "***"}}
    shown = [
        pair("What does [REDACTED] mean?", "That a word was removed."),
        pair("label it", "filtered"),
        pair("q", "**Hidden** gems."),
        pair("Why does LM Studio write <Truncated in logs> in its log?", "It says `... <Truncated in logs> ...` to be short."),
        pair(
            "What is '... (litellm_truncated 35 chars) ...' in it?", 'It writes "... (litellm_truncated 35 chars) ..." there.'
        ),
        pair("Why is it [object Object]?", "A text was made of an object."),
        pair("Why <Truncated in logs>", "It says (litellm_truncated 3 chars)."),
        {
            "request": {
                "model": "claude",
                "max_tokens": 9,
                "messages": [
                    {"role": "user", "content": "Hide it"},
                    {"role": "assistant", "content": [tool]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]},
                ],
            },
            "response": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude",
                "stop_reason": "end_turn",
                "content": [{"type": "text", "text": "It is hidden."}],
            },
            "timestamp": 1780300800,
        },
    ]
    rows, bad, _, report = read(tmp_path, [*hidden, *shown])
    assert len(rows) == len(shown) and not bad and report.total.skipped == len(hidden)


def test_structures_in_a_text_are_not_what_somebody_said(tmp_path):
    refused = [
        pair(json.dumps([{"lc": 1, "type": "constructor", "id": ["langchain"], "kwargs": {}}]), "a"),
        pair("q", "[AIMessage(content='x')]"),
        pair("[{'role': 'user', 'content': 'hi'}]", "a"),
        pair("q", "content='x' additional_kwargs={} response_metadata={}"),
        pair(json.dumps({"messages": [{"role": "user", "content": "hi"}]}), "a"),
    ]
    meant = [
        pair("q", json.dumps(answer))
        for answer in (
            {"candidates": [{"name": "Ann", "score": 7}]},
            {"candidates": ["Ann"]},
            {"choices": ["a", "b"]},
            {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
        )
    ]
    rows, bad, _, _ = read(tmp_path, meant)
    assert len(rows) == len(meant) and not bad
    rows, bad, _, _ = read(tmp_path, [*refused, pair('{"city": "Oslo"}', '{"role": "user", "age": 7}'), pair("q", "[1, 2]")])
    assert len(rows) == 2 and [row["error_code"] for row in bad] == ["wrong_type"] * len(refused)


def test_custom_tools_and_older_functions_are_tools(tmp_path):
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}],
    }
    older = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    rows, bad, _, _ = read(
        tmp_path,
        [
            pair(
                "a",
                called,
                tools=[{"type": "custom", "custom": {"name": "run", "description": "d", "format": {"type": "text"}}}],
            ),
            pair("b", older, functions=[{"name": "f", "parameters": {}}]),
        ],
    )
    call = json.loads(rows[0]["completion"])["tool_calls"][0]
    assert not bad and call["type"] == "function" and call["function"]["name"] == "run"
    assert json.loads(call["function"]["arguments"]) == {"input": "print(1)"}
    tools = [json.loads(row["tools"])[0] for row in rows]
    assert [tool["type"] for tool in tools] == ["function"] * 2 and [tool["function"]["name"] for tool in tools] == ["run", "f"]
    assert tools[0]["function"]["parameters"]["required"] == ["input"]


def test_prompt_tokens_far_beyond_the_messages(tmp_path):
    def counted(tokens, question, **request):
        record = pair(question, "a", **request)
        record["response"]["usage"] = {"prompt_tokens": tokens}
        return record

    picture = [{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]
    rows, *_ = read(
        tmp_path,
        [
            counted(900, "short"),
            counted(400, "brief"),
            counted(5000, "long " * 1200),
            counted(3000, picture),
            counted(3000, "漢字" * 1000),
            counted(900, "small", tools=[{"type": "function", "function": {"name": "f"}}]),
        ],
    )
    assert ["context" in json.loads(row["params"]) for row in rows] == [True, False, False, False, False, False]
    assert json.loads(rows[0]["params"])["context"]["elsewhere"].startswith("900 prompt tokens")


@pytest.mark.parametrize(
    "text",
    [
        '{"id": "x", "choices": [{"mess',
        "[{'role': 'user'}]",
        '"{\\"id\\": \\"x',
        "<html><body>502</body></html>",
        "<!DOCTYPE html>",
        '{"lc": 1, "kwargs": {}}',
        '[[{"role": "user"}]]',
        'data: {"x": 1}',
        "event: ping",
        "{",
        '[{"a": 1}, {"b"',
        repr(json.dumps(BODY).encode()),
        "<openai.AsyncStream object at 0x7f3a1c2b5d90>",
        "<coroutine object f at 0x7f3a>",
        "<Response [200 OK]>",
        "[object Object]",
        "ChatCompletion(id='c', choices=[Choice(finish_reason='stop', index=0)], created=1780300800)",
        "Message(id='msg_1', content=[TextBlock(text='Neon.', type='text')])",
        "[TextBlock(citations=None, text='Neon.')]",
        '{"message": "Endpoint request timed out"}',
        '{"Message": "User is not authorized"}',
        '{"detail": "Not authenticated"}',
        '{"detail": [{"loc": ["body"], "msg": "field required"}]}',
        '{"statusCode": 429, "message": "Rate limit is reached."}',
        '{"status": 503, "title": "x", "detail": "busy"}',
        "{'detail': 'Not Found'}",
        '{"errorMessage": "x", "errorType": "Timeout"}',
        "<Error><Code>SlowDown</Code><Message>Please reduce.</Message></Error>",
        "<center><h1>502 Bad Gateway</h1></center>",
        "<title>504 Gateway Time-out</title>",
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + json.dumps(BODY),
        quote(json.dumps(BODY)),
        base64.b64encode(json.dumps(BODY).encode()).decode(),
        base64.b64encode(json.dumps(BODY, indent=1).encode()).decode(),
        base64.b64encode(json.dumps(BODY).encode()).decode()[:41],
        "\ufeff" + json.dumps(BODY)[:40],
        json.dumps(BODY) + " ...[truncated]",
        "data: Hello\n\ndata: world\n\n",
    ],
)
def test_a_body_that_is_none_is_no_text(text):
    assert unread(text)
    for fields, record in (
        (FieldMapping(request="q", response="a"), {"q": text, "a": "yes"}),
        (FieldMapping(request="q", response="a"), {"q": "hi", "a": text}),
    ):
        assert isinstance(mapped_format(record, fields), str)
    assert not isinstance(mapped_format({"q": text, "a": text}, FieldMapping(prompt="q", answer="a")), str)


@pytest.mark.parametrize("text", [
    "hi", '{"city": "Oslo"}', "[1, 2]", '"so" is a word', "[Scene: night] Go", "<b>bold</b>", "{x} is a set", "data is plural",
    '{"colour": "red"}\n\nThat is the record.', '{"id": 1}\n{"id": 2}', "['Cash', 'Card']", "{'name': 'Ann', 'age': 7}",
    '{"question": "Which?", "choices": ["a", "b"]}', "b is a letter: b'x'", "data: the plural of datum. It is a mass noun too.",
    "Event: dinner at eight\nPlace: the hall", "[1] is red.", '{"message": "Your parcel is late."}',
    '{"status": "open", "detail": "a door", "code": 7}', "%7B%22a%22%3A1%7D", "HTTP/1.1 404 means that there is no page.",
    "<h1>404 ways to cook</h1>", "eyJhIjogMX0=", "<div>Red</div>", "[object Object] is what JavaScript prints.",
    "{name}, thank you", '{"candidates": ["Ann", "Bob"]}',
])  # fmt: skip
def test_texts_of_people_and_models_stay(text):
    assert not unread(text) and not isinstance(
        mapped_format({"q": text, "a": text}, FieldMapping(request="q", response="a")), str
    )


def test_a_body_behind_a_byte_order_mark_is_read():
    _, found = mapped_format({"q": "hi", "a": "\ufeff" + json.dumps(BODY)}, FieldMapping(request="q", response="a"))
    assert found["response"]["choices"] == BODY["choices"]


def test_bodies_that_were_encoded_twice_are_read():
    asked, said = (
        {"messages": [{"role": "user", "content": "hi"}]},
        {"choices": [{"message": {"role": "assistant", "content": "yes"}}]},
    )
    _, found = mapped_format(
        {"q": json.dumps(json.dumps(asked)), "a": json.dumps(json.dumps(said))}, FieldMapping(request="q", response="a")
    )
    assert found["request"]["messages"] == asked["messages"] and found["response"]["choices"] == said["choices"]


@pytest.mark.parametrize(("written", "reason"), [
    ("STOP", "stop"), ("end_turn", "stop"), ("eos_token", "stop"), ("tool-calls", "tool_calls"),
    ("FINISH_REASON_MAX_TOKENS", "length"), ("model_length", "length"), ("FinishReason.SAFETY", "content_filter"),
    ("abort", "abort"), ("pause_turn", "pause_turn"), ("OTHER", "other"), ("in_progress", "in_progress"),
    ('{"type":"stop","matched":151645}', "stop"), ('{"type": "length", "length": 9}', "length"), ("1", "stop"), (2, "length"),
    (9, "9"), ("", None), ("null", None), (None, None),
])  # fmt: skip
def test_one_list_says_what_a_finish_reason_means(written, reason):
    assert finish_reason_of(written) == reason and (reason in WHOLE) == (reason in ("stop", "tool_calls"))


def answered(number, output, **response):
    return {
        "timestamp": 1780300000 + number,
        "request": {"model": "m", "input": f"q{number}", "tools": [{"type": "custom", "name": "run"}]},
        "response": {"id": f"resp_{number}c1f39a7be2d04", "object": "response", "output": [output], **response},
    }


@pytest.mark.parametrize("text", ["print(1)", "*** Begin Patch\n*** End Patch", '{"a": 1}', ""])
def test_the_input_of_a_custom_tool_of_the_responses_api_is_an_argument(tmp_path, text):
    [row], bad, _, _ = read(
        tmp_path, [answered(0, {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": text})]
    )
    call = json.loads(row["completion"])["tool_calls"][0]["function"]
    assert not bad and json.loads(call["arguments"]) == {"input": text}
    assert json.loads(row["tools"])[0]["function"]["name"] == "run"
    history = json.loads(chat_of(json.dumps({"input": [{"type": "function_call", "name": "f", "arguments": '{"a": 1}'}]})))[
        "messages"
    ]
    assert history[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_an_answer_of_the_responses_api_without_status_may_be_incomplete(tmp_path):
    def message(status):
        return {"type": "message", "status": status, "content": [{"type": "output_text", "text": "The Bay of"}]}

    rows, *_ = read(
        tmp_path,
        [
            answered(0, message("incomplete")),
            answered(1, message("completed")),
            answered(2, message(None)),
            answered(3, message("incomplete"), status=None),
        ],
    )
    assert [row["finish_reason"] for row in rows] == ["incomplete", "stop", "stop", "incomplete"]
