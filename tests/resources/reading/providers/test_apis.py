"""The providers' APIs as OpenAI chats: laws that hold for any content."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_ops.chat_apis import anthropic_api
from model_ops.chat_apis.blocks import UnknownBlock, finish_reason
from resources.records.providers import gemini_api
from resources.records.providers.bedrock_bodies import converse_chat
from resources.records.providers.calls import call_of, provider_chat_of
from resources.records.providers.streams import joined

arguments = st.dictionaries(st.text(max_size=4), st.none() | st.integers(-9, 9) | st.text(max_size=4), max_size=3)
words = st.text(min_size=1, max_size=6)
blocks = st.lists(
    st.tuples(st.just("text"), words)
    | st.tuples(st.just("thought"), words)
    | st.tuples(st.just("call"), st.tuples(st.sampled_from(["f", "g"]), arguments)),
    max_size=6,
)


def anthropic(said):
    kinds = {
        "text": lambda place, text: {"type": "text", "text": text},
        "thought": lambda place, text: {"type": "thinking", "thinking": text},
        "call": lambda place, call: {"type": "tool_use", "id": f"t{place}", "name": call[0], "input": call[1]},
    }
    content = [kinds[kind](place, value) for place, (kind, value) in enumerate(said)]
    return anthropic_api.chat({"messages": [{"role": "user", "content": "q"}]}, {"content": content, "stop_reason": "end_turn"})


def gemini(said):
    kinds = {
        "text": lambda text: {"text": text},
        "thought": lambda text: {"text": text, "thought": True},
        "call": lambda call: {"functionCall": {"name": call[0], "args": call[1]}},
    }
    parts = [kinds[kind](value) for kind, value in said]
    return gemini_api.chat({"contents": "q"}, {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})


def converse(said):
    kinds = {
        "text": lambda place, text: {"text": text},
        "thought": lambda place, text: {"reasoningContent": {"reasoningText": {"text": text}}},
        "call": lambda place, call: {"toolUse": {"toolUseId": f"t{place}", "name": call[0], "input": call[1]}},
    }
    content = [kinds[kind](place, value) for place, (kind, value) in enumerate(said)]
    return converse_chat(
        {"messages": [{"role": "user", "content": [{"text": "q"}]}]},
        {"output": {"message": {"content": content}}, "stopReason": "end_turn"},
    )


@pytest.mark.parametrize("api", [anthropic, gemini, converse])
@given(said=blocks)
def test_nothing_of_an_answer_is_lost_and_every_call_has_an_id_of_its_own(api, said):
    chat = api(said)
    (choice,) = chat["choices"]
    message, calls = choice["message"], choice["message"].get("tool_calls", [])
    assert chat["messages"] == [{"role": "user", "content": "q"}]
    assert (message["content"] or "") == "".join(value for kind, value in said if kind == "text")
    assert message.get("reasoning_content", "") == "\n".join(value for kind, value in said if kind == "thought")
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] == [
        value for kind, value in said if kind == "call"
    ]
    assert len({call["id"] for call in calls}) == len(calls)
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")


@given(said=blocks)
def test_a_stream_gives_what_the_whole_response_gives(said):
    whole = {"text": "text", "thought": "thinking", "call": "tool_use"}
    events = [{"type": "message_start", "message": {"id": "m"}}]
    for place, (kind, value) in enumerate(said):
        block = {"type": whole[kind]} | ({"id": f"t{place}", "name": value[0], "input": {}} if kind == "call" else {})
        written = json.dumps(value[1]) if kind == "call" else value
        key = {"text": "text", "thought": "thinking", "call": "partial_json"}[kind]
        events.append({"type": "content_block_start", "index": place, "content_block": block})
        events += [{"type": "content_block_delta", "index": place, "delta": {key: piece}} for piece in written]
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
    found = anthropic_api.chat({"messages": [{"role": "user", "content": "q"}]}, joined(events))
    assert found["choices"] == anthropic(said)["choices"] and found["error"] is None


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "role",
                    "content",
                    "text",
                    "parts",
                    "input",
                    "toolUse",
                    "toolResult",
                    "functionCall",
                    "functionResponse",
                    "name",
                    "source",
                    "messages",
                    "contents",
                    "candidates",
                    "output",
                    "message",
                    "usage",
                    "tools",
                    "system",
                    "config",
                    "error",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)
records = st.dictionaries(
    st.sampled_from(
        [
            "request",
            "response",
            "input",
            "output",
            "modelInput",
            "messages",
            "call_type",
            "parameters",
            "operation",
            "timestamp",
        ]
    ),
    values,
    max_size=4,
)


@given(records)
def test_no_record_raises_whatever_it_holds(record):
    for form in ("anthropic", "gemini", "bedrock"):
        assert isinstance(json.loads(call_of(json.dumps(record), form)), dict)
    assert isinstance(json.loads(provider_chat_of(json.dumps(record))), dict)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "index",
                    "delta",
                    "message",
                    "messageStart",
                    "contentBlockDelta",
                    "candidates",
                    "content_block",
                    "contentBlockStart",
                    "metadata",
                    "usage",
                ]
            ),
            values,
            max_size=4,
        ),
        max_size=5,
    )
)
def test_no_stream_raises_whatever_it_holds(found):
    assert joined(found) is None or isinstance(joined(found), dict)


def test_results_of_one_name_answer_the_calls_of_that_name_in_their_order():
    calls = [{"functionCall": {"name": name, "args": {"n": number}}} for number, name in enumerate("fgf")]
    results = [
        {"functionResponse": {"name": name, "response": {"n": number}}} for number, name in ((1, "g"), (0, "f"), (2, "f"))
    ]
    contents = [
        {"role": "model", "parts": calls[:2]},
        {"role": "function", "parts": results[:2]},
        {"role": "model", "parts": calls[2:]},
        {"role": "user", "parts": results[2:]},
    ]
    messages = gemini_api.chat({"contents": [{"parts": [{"text": "q"}]}, *contents]}, {})["messages"]
    asked = {call["id"]: call["function"]["arguments"] for message in messages for call in message.get("tool_calls", [])}
    assert {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"} == asked
    assert len(asked) == 3


@pytest.mark.parametrize(("given_reason", "calls", "expected"), [
    ("end_turn", False, "stop"), ("tool_use", True, "tool_calls"), ("max_tokens", False, "length"),
    ("refusal", False, "content_filter"), ("FinishReason.MAX_TOKENS", False, "length"), ("STOP", True, "tool_calls"),
    ("SAFETY", False, "content_filter"), ("guardrail_intervened", False, "content_filter"),
    ("MALFORMED_FUNCTION_CALL", False, "malformed_function_call"), ("pause_turn", False, "pause_turn"),
    ("model_context_window_exceeded", False, "length"), (None, False, None),
])  # fmt: skip
def test_reasons_why_a_model_stopped(given_reason, calls, expected):
    assert finish_reason(given_reason, {"tool_calls": [1]} if calls else {}) == expected


def test_a_message_with_results_and_texts_is_several_messages_and_a_system_block_stays_the_systems():
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "text", "text": "one"},
        {"type": "text", "text": "two"},
        {"type": "mid_conv_system", "content": [{"type": "text", "text": "now be kind"}]},
    ]
    assert anthropic_api.turn("user", content).messages() == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "system", "content": "now be kind"},
    ]


@pytest.mark.parametrize("part", [{"type": "hologram"}, {"type": None}, {}])
def test_an_unknown_block_is_named(part):
    with pytest.raises(UnknownBlock, match="a content block of the type"):
        anthropic_api.turn("user", [part])
