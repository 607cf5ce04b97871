"""A conversation with thoughts, parallel calls and their results, logged turn by turn in each provider's form: every request
repeats the answers before it, and the dataset recognises them (sql/composing/datasets.sql)."""

import json

import pyarrow as pa
import pytest

from resources.composing.seeds import SEEDS
from resources.curating.cleaning import MACROS
from resources.lake.sql_files import run, workbench
from tests.resources.records.test_formats import litellm, read

QUESTION, MORE = "Which city is warmer?", "And Rome?"
CALLS = [("c1", "weather", {"city": "Oslo", "days": 1}), ("c2", "weather", {"city": "Bergen", "days": 2.0})]
RESULTS = ["15 degrees", "20 degrees"]
ANSWER, LAST = "Bergen is warmer.", "Rome is warmest."
CURATED = pa.schema(
    [
        (name, pa.string())
        for name in ("interaction_id", "session_id", "messages", "completion", "reasoning", "request", "text", "tools")
    ]
    + [
        ("token_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("was_cut", pa.bool_()),
    ]
)


def anthropic(thoughts=True):
    def thought(text):
        return [{"type": "thinking", "thinking": text, "signature": "s"}] if thoughts else []

    called = [{"type": "text", "text": "I look."}, *({"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in CALLS)]
    results = [
        {"type": "tool_result", "tool_use_id": i, "content": [{"type": "text", "text": text}]}
        for (i, _, _), text in zip(CALLS, RESULTS, strict=True)
    ]
    talk = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": [*thought("two"), *called]},
        {"role": "user", "content": results},
        {"role": "assistant", "content": [*thought("hm"), {"type": "text", "text": ANSWER}]},
        {"role": "user", "content": [{"type": "text", "text": MORE, "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "text", "text": LAST}]},
    ]
    return [
        (
            {"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": talk[:end]},
            {"type": "message", "role": "assistant", "content": talk[end]["content"], "stop_reason": "end_turn"},
        )
        for end in (1, 3, 5)
    ]


def gemini():
    talk = [
        {"role": "user", "parts": [{"text": QUESTION}]},
        {
            "role": "model",
            "parts": [
                {"text": "two", "thought": True},
                {"text": "I look."},
                *({"functionCall": {"name": n, "args": a}, "thoughtSignature": "s"} for _, n, a in CALLS),
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"is": text}}} for text in RESULTS]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": ANSWER, "thoughtSignature": "s"}]},
        {"parts": [{"text": MORE}]},
        {"role": "model", "parts": [{"text": LAST}]},
    ]
    return [
        (
            {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": talk[:end]},
            {"candidates": [{"content": talk[end], "finishReason": "STOP"}]},
        )
        for end in (1, 3, 5)
    ]


def converse():
    def thought(text):
        return {"reasoningContent": {"reasoningText": {"text": text, "signature": "s"}}}

    called = ({"toolUse": {"toolUseId": i, "name": n, "input": a}} for i, n, a in CALLS)
    talk = [
        {"role": "user", "content": [{"text": QUESTION}]},
        {"role": "assistant", "content": [thought("two"), {"text": "I look."}, *called]},
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": i, "content": [{"text": text}]}}
                for (i, _, _), text in zip(CALLS, RESULTS, strict=True)
            ],
        },
        {"role": "assistant", "content": [thought("hm"), {"text": ANSWER}]},
        {"role": "user", "content": [{"text": MORE}, {"cachePoint": {"type": "default"}}]},
        {"role": "assistant", "content": [{"text": LAST}]},
    ]
    return [
        (
            {"modelId": "m", "system": [{"text": "Be brief."}], "messages": talk[:end]},
            {"output": {"message": talk[end]}, "stopReason": "end_turn"},
        )
        for end in (1, 3, 5)
    ]


def pairs(calls):
    return [
        {"timestamp": 1780300000 + turn, "session_id": "s", "request_id": f"r{turn}", "request": request, "response": response}
        for turn, (request, response) in enumerate(json.loads(json.dumps(calls)))
    ]


def anthropic_events(content):
    """An answer's blocks as stream events, in small pieces."""
    deltas = {
        "text": ("text_delta", "text"),
        "thinking": ("thinking_delta", "thinking"),
        "tool_use": ("input_json_delta", "partial_json"),
    }
    yield {"type": "message_start", "message": {"type": "message", "role": "assistant", "content": []}}
    for index, block in enumerate(content):
        kind, key = deltas[block["type"]]
        whole = json.dumps(block["input"], indent=1) if "input" in block else block[key]
        yield {"type": "content_block_start", "index": index, "content_block": {**block, key: "", "input": {}}}
        for begin in range(0, len(whole), 3):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: whole[begin : begin + 3]}}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}


def streamed():
    return [(request, list(anthropic_events(response["content"]))) for request, response in anthropic()]


def proxied():
    """LiteLLM's /v1/messages: the request as it came, the answer in OpenAI's shape with arguments as Python writes them."""
    for turn, (request, response) in enumerate(anthropic()):
        blocks = response["content"]
        message = {
            "role": "assistant",
            "content": "".join(block.get("text", "") for block in blocks),
            "reasoning_content": "".join(block.get("thinking", "") for block in blocks),
            "tool_calls": [
                {
                    "id": block["id"],
                    "type": "function",
                    "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
                }
                for block in blocks
                if block["type"] == "tool_use"
            ]
            or None,
        }
        yield litellm(
            id=f"l{turn}",
            trace_id="s",
            call_type="anthropic_messages",
            messages=request["messages"],
            startTime=1780300000.5 + turn,
            model_parameters={"system": request["system"], "max_tokens": 9},
            response={"id": f"msg_{turn}", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]},
        )


FORMS = {
    "anthropic": pairs(anthropic()),
    "without thoughts": pairs(anthropic(thoughts=False)),
    "streamed": pairs(streamed()),
    "gemini": pairs(gemini()),
    "converse": pairs(converse()),
    "litellm": list(proxied()),
}


def conversations(rows):
    """The rows' training conversations, and which rows another one contains."""
    curated = [
        {
            "interaction_id": row["interaction_id"],
            "session_id": row["session_id"],
            "messages": row["messages"],
            "completion": row["completion"],
            "reasoning": row["reasoning"],
            "ts": row["ts"],
            "was_cut": False,
        }
        for row in rows
    ]
    with workbench() as connection:
        connection.register("curated", pa.Table.from_pylist(curated, CURATED))
        for macro in MACROS:
            run(connection, macro)
        connection.register("seeds", SEEDS.empty_table())
        for step in ("conversations", "prefixes", "contained_rows"):
            run(connection, f"composing/datasets/{step}")
        contained = {row["interaction_id"] for row in connection.table("contained_rows").to_arrow_table().to_pylist()}
        longest = [
            {"row_id": row["interaction_id"], "origin": "interaction", "copies": 1}
            for row in curated
            if row["interaction_id"] not in contained
        ]
        connection.register("sampled", pa.Table.from_pylist(longest))
        run(connection, "composing/datasets/sampled_texts")
        return [json.loads(row["messages"]) for row in connection.table("sampled_texts").to_arrow_table().to_pylist()]


@pytest.mark.parametrize("form", FORMS)
def test_a_turn_that_later_requests_repeat_is_learnt_once_and_in_its_place(tmp_path, form):
    rows, bad, _, _ = read(tmp_path, FORMS[form])
    assert not bad and len(rows) == 3 and {row["session_id"] for row in rows} == {"s"}
    (chat,) = conversations(rows)
    assert [message["role"] for message in chat] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert [message["weight"] for message in chat if message["role"] == "assistant"] == [1, 1, 1]
    assert [message.get("reasoning_content") for message in chat if message["role"] == "assistant"] == (
        [None] * 3 if form == "without thoughts" else ["two", "hm", None]
    )


@pytest.mark.parametrize("form", FORMS)
def test_texts_calls_and_results_survive(tmp_path, form):
    rows, *_ = read(tmp_path, FORMS[form])
    called = json.loads(rows[0]["completion"])
    assert called["content"] == "I look."
    told = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in called["tool_calls"]]
    assert told == [(name, given) for _, name, given in CALLS]
    talk = json.loads(rows[2]["messages"])
    identities = [call["id"] for call in talk[2]["tool_calls"]]
    assert [message["tool_call_id"] for message in talk[3:5]] == identities and len(set(identities)) == 2
    assert [text in message["content"] for text, message in zip(RESULTS, talk[3:5], strict=True)] == [True, True]
    assert [message["content"] for message in (talk[0], talk[1], talk[5], talk[6])] == ["Be brief.", QUESTION, ANSWER, MORE]
    assert json.loads(rows[2]["completion"])["content"] == LAST


def test_an_earlier_answer_that_was_changed_is_no_part_of_the_conversation(tmp_path):
    calls = pairs(anthropic())
    calls[1]["request"]["messages"][1]["content"][-1]["input"]["city"] = "Tromso"
    chats = sorted(conversations(read(tmp_path, calls)[0]), key=len)
    assert [[message["weight"] for message in chat if message["role"] == "assistant"] for chat in chats] == [[0, 1], [1, 0, 1]]
