"""What a session's address answers, field by field: what it does not do is refused by its name, and no request is half answered."""

from __future__ import annotations

import json
import socket
import threading

import numpy as np
import pytest
from test_episode_conversation import CHATML, QWEN_3, tokenizer_of

from model_ops.answers import Sampled
from model_ops.environments import PolicySessions, SessionServer
from model_ops.environments.policy_sessions import SessionError
from model_ops.environments.session_apis import APIS, Answered

END = "<|im_end|>"
USER = [{"role": "user", "content": "q"}]
SCHEMA = {"type": "object", "properties": {}}
LOOK = {"name": "look", "description": "d", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": {**LOOK, "strict": True}}
FLAT_TOOL = {"type": "function", **LOOK, "strict": True}
CLAUDE_TOOL = {"name": "look", "description": "d", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
NEEDED = {"/chat/completions": {"messages": USER, "tools": [CHAT_TOOL]}, "/responses": {"input": "q", "tools": [FLAT_TOOL]},
    "/messages": {"messages": USER, "tools": [CLAUDE_TOOL], "max_tokens": 9}}  # fmt: skip
EVERYWHERE = {"model": "m", "stream": True, "temperature": 0.1, "top_p": 0.5, "top_k": 5, "seed": 1, "metadata": {"a": "b"}}
OPENAI = {"store": True, "user": "u", "safety_identifier": "u", "service_tier": "auto", "prompt_cache_key": "k"}
ANSWERED = {
    "/chat/completions": EVERYWHERE
    | OPENAI
    | {
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "stream_options": {"include_usage": True},
        "n": 1,
        "stop": [],
        "logprobs": False,
        "top_logprobs": 0,
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "audio": None,
        "functions": None,
        "prediction": {"type": "content", "content": "x"},
        "verbosity": "medium",
        "a_later_key": None,
    },
    "/responses": EVERYWHERE
    | OPENAI
    | {
        "max_output_tokens": 5,
        "include": ["reasoning.encrypted_content"],
        "truncation": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"summary": "auto"},
        "background": False,
        "max_tool_calls": 3,
        "tool_choice": {"type": "auto"},
        "previous_response_id": None,
    },
    "/messages": EVERYWHERE
    | {
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "stop_sequences": [],
        "thinking": {"type": "disabled"},
        "speed": "fast",
        "cache_control": {"type": "ephemeral"},
    },
}
REFUSED = {
    "/chat/completions": {
        "n": 2,
        "stop": "x",
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"5": -100},
        "presence_penalty": 2,
        "frequency_penalty": -1,
        "repetition_penalty": 1.2,
        "parallel_tool_calls": False,
        "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        "modalities": ["text", "audio"],
        "audio": {"voice": "x", "format": "wav"},
        "functions": [LOOK],
        "function_call": {"name": "look"},
        "web_search_options": {"search_context_size": "low"},
        "verbosity": "low",
        "moderation": {"model": "m"},
        "max_tokens": 0,
        "max_completion_tokens": "7",
        "reasoning_effort": "high",
        "chat_template_kwargs": {"enable_thinking": True},
        "documents": [{"text": "a"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "enable_thinking": False,
        "guided_json": {"type": "object"},
        "min_tokens": 5,
        "messages": [*USER, {"role": "assistant", "content": "{"}],
    },
    "/responses": {
        "conversation": "conv_1",
        "prompt": {"id": "pmpt_1"},
        "background": True,
        "previous_response_id": "resp_x",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        "parallel_tool_calls": False,
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "low"},
        "instructions": ["s"],
        "moderation": {"model": "m"},
        "messages": USER,
    },
    "/messages": {
        "stop_sequences": ["x"],
        "tool_choice": {"type": "tool", "name": "look"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"format": {"type": "json_schema", "schema": {}}},
        "container": "c",
        "mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}],
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "messages": [*USER, {"role": "assistant", "content": "{"}],
    },
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
PARTS = [
    ("/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}, "image_url"),
    (
        "/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "input_audio",
    ),
    ("/chat/completions", {"messages": [{"role": "assistant", "content": None, "audio": {"id": "a"}}, *USER]}, "audio"),
    (
        "/chat/completions",
        {
            "messages": [
                *USER,
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh"}}]},
                *USER,
            ]
        },
        "no function",
    ),
    ("/chat/completions", {"tools": [{"type": "custom", "custom": {"name": "sh"}}]}, "tools[0] is of the type custom"),
    ("/chat/completions", {"tools": [CHAT_TOOL, {"type": "function", "function": {}}]}, "tools[1] has no name"),
    ("/responses", {"tools": [{"type": "web_search"}]}, "tools[0] is of the type web_search"),
    ("/responses", {"tools": [{**FLAT_TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ("/responses", {"input": [{"type": "item_reference", "id": "msg_x"}, *USER]}, "msg_x"),
    ("/responses", {"input": [{"type": "compaction", "encrypted_content": "x"}, *USER]}, "compaction"),
    ("/responses", {"input": [{"type": "reasoning", "id": "rs_x", "summary": [], "encrypted_content": "x"}, *USER]}, "rs_x"),
    ("/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "of the type file"),
    ("/messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0] is of the type bash_20250124"),
    ("/messages", {"tools": [{**CLAUDE_TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
    ("/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "of the type image"),
    ("/messages", {"messages": [{"role": "user", "content": [{"type": "document", "title": "t", "source": {}}]}]}, "document"),
    (
        "/messages",
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]}
            ]
        },
        "of the type image",
    ),
    (
        "/messages",
        {"messages": [*USER, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, *USER]},
        "redacted",
    ),
]


@pytest.fixture
def sessions():
    return PolicySessions(tokenizer_of(CHATML, END), longest_context=10_000, max_turns=99)


def asked(sessions, path, body, earlier=None):
    session = sessions.begin("0:0:0", "row")
    return sessions.ask(session.key, *APIS[path].read({**NEEDED[path], **body}, earlier or {}))


@pytest.mark.parametrize("path", APIS)
def test_fields_that_change_no_answer_are_answered(sessions, path):
    bare, full = asked(sessions, path, {}), asked(sessions, path, ANSWERED[path])
    assert (full.talk.context[-40:] == bare.talk.context[-40:] and full.talk.row.request is None) or path == "/messages"
    assert full.most_tokens == {"/messages": 9}.get(path, 5), "the smaller of two limits"


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, fields in REFUSED.items() for name in fields])
def test_a_field_that_asks_for_something_else_is_refused_by_its_name(sessions, path, name):
    with pytest.raises(SessionError) as refused:
        asked(sessions, path, {name: REFUSED[path][name]})
    words = {"chat_template_kwargs": "enable_thinking", "reasoning": "reasoning_effort"}.get(name, name)
    assert (refused.value.status, words in str(refused.value), "\n" in str(refused.value)) == (400, True, False), refused.value
    assert refused.value.param.partition(".")[0] in (words, name)


@pytest.mark.parametrize(("path", "body", "words"), PARTS)
def test_what_the_model_cannot_be_shown_is_refused(sessions, path, body, words):
    with pytest.raises(SessionError) as refused:
        asked(sessions, path, body)
    assert words in str(refused.value)


def test_one_call_at_a_time_is_refused_only_where_there_are_tools(sessions):
    assert asked(sessions, "/chat/completions", {"parallel_tool_calls": False, "tools": []}).talk.row.tools is None


def test_tools_that_the_chat_template_does_not_write_are_refused():
    silent = PolicySessions(tokenizer_of(CHATML.replace("if tools", "if false"), END), longest_context=10_000, max_turns=9)
    with pytest.raises(SessionError, match="the chat template writes none"):
        asked(silent, "/chat/completions", {})


def test_the_chat_template_gets_what_it_reads_and_another_value_is_another_rollout():
    template = QWEN_3.replace(
        "<|im_start|>assistant\n{% endif %}",
        "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
    )
    sessions = PolicySessions(tokenizer_of(template, END), longest_context=10_000, max_turns=9)
    bodies = [
        ("/chat/completions", {"chat_template_kwargs": {"enable_thinking": False}, "tools": None}),
        ("/chat/completions", {"reasoning_effort": "none", "tools": None}),
        ("/responses", {"reasoning": {"effort": "none"}, "tools": None}),
        ("/messages", {"thinking": {"type": "disabled"}, "tools": None}),
    ]
    assert [asked(sessions, *each).talk._text.endswith("</think>\n\n") for each in bodies] == [True] * 4
    assert not asked(sessions, "/messages", {"thinking": {"type": "adaptive"}, "tools": None}).talk._text.endswith(
        "</think>\n\n"
    )
    session = sessions.begin("0:0:1", "row")
    for thinks, count in ((True, 1), (True, 1), (False, 2)):
        said = session.talks[0].messages if session.talks else []
        read = APIS["/messages"].read(
            {"messages": [*said, *USER], "thinking": {"type": "adaptive" if thinks else "disabled"}, "max_tokens": 9}, {}
        )
        turn = sessions.ask(session.key, *read)
        turn.answer(Sampled(np.array(ids_of(sessions, f"cat{END}")), np.zeros(4, np.float32), 0, True))
        assert len(session.talks) == count
    with pytest.raises(SessionError, match="reasoning_effort, which the request gives"):
        asked(sessions, "/chat/completions", {"reasoning_effort": "high", "tools": None})


def ids_of(sessions, text):
    return sessions._encoder.prompt(text)


@pytest.fixture
def address(sessions):
    """ask(path, body): the response's JSON of a policy that thinks, speaks and calls twice, then says `cat`."""
    session = sessions.begin("0:0:0", "row")
    texts = iter(['I look.<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>' + CALL_TEXT + END, *[f"cat{END}"] * 30])
    stop = threading.Event()

    def sample():
        while not stop.is_set():
            for turn in sessions.waiting(1):
                ids = np.array(ids_of(sessions, next(texts)))
                turn.answer(Sampled(ids, np.zeros(len(ids), np.float32), 0, True))

    policy = threading.Thread(target=sample)
    policy.start()
    with SessionServer(sessions) as server:
        yield Address(server, session)
    stop.set()
    policy.join()


CALL_TEXT = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


class Address:
    def __init__(self, server, session):
        self.port, self.key, self.session = int(server.base_url.split(":")[2].split("/")[0]), session.key, session

    def send(self, *pieces, connection=None):
        """(status, JSON or None) of what the bytes are answered with."""
        with connection or socket.create_connection(("127.0.0.1", self.port), timeout=20) as place:
            return self.exchange(place, *pieces)

    def exchange(self, place, *pieces):
        for piece in pieces:
            place.sendall(piece)
        file = place.makefile("rb")
        status = int(file.readline().split()[1])
        headers = dict(line.decode().rstrip().lower().split(": ", 1) for line in iter(file.readline, b"\r\n"))
        is_bodiless = status == 100 or pieces[0].startswith(b"HEAD")
        content = b"" if is_bodiless else file.read(int(headers["content-length"]))
        return status, json.loads(content) if content else None

    def head(self, *lines, path="/chat/completions", method="POST"):
        return "\r\n".join([f"{method} /v1{path} HTTP/1.1", "Host: x", f"x-api-key: {self.key}", *lines, "", ""]).encode()

    def ask(self, path, **body):
        content = json.dumps(body).encode()
        return self.send(self.head(f"Content-Length: {len(content)}", path=path), content)


def test_references_to_its_own_items_are_the_turn_that_the_policy_sampled(address):
    """As the AI SDK asks by default: earlier items by their ids, then the results of the calls."""
    _, first = address.ask("/responses", input="q", instructions="s", tools=[FLAT_TOOL])
    assert [item["type"] for item in first["output"]] == ["message", "function_call", "function_call"]
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    results = [{"type": "function_call_output", "call_id": item["call_id"], "output": "a cat"} for item in first["output"][1:]]
    items = [*USER, *references, *results]
    status, second = address.ask("/responses", input=items, instructions="s", tools=[FLAT_TOOL])
    assert (status, second["output"][0]["content"][0]["text"]) == (200, "cat")
    (talk,) = address.session.talks
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert [len(message.get("tool_calls", ())) for message in talk.messages] == [0, 0, 2, 0, 0, 0]
    assert len(talk.parts) == 1, "one rollout, token by token"


def test_reasoning_that_comes_without_its_text_is_what_the_policy_thought():
    thought = {"role": "assistant", "content": "cat", "reasoning_content": "hm"}
    first = APIS["/responses"].write(Answered(thought, "stop", 1, 1))
    reasoning, message = first["output"]
    earlier = {item["id"]: [item] for item in first["output"]}
    stripped = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
    for given in ({"type": "reasoning", "id": reasoning["id"], "summary": []}, stripped, reasoning):
        read = APIS["/responses"].read({"input": [*USER, given, message, *USER]}, earlier)
        assert read.messages[1] == thought


def test_a_response_goes_on_with_messages_of_the_system_and_without_old_instructions(address):
    _, first = address.ask("/responses", input=[{"role": "system", "content": "a"}, *USER], instructions="s")
    _, second = address.ask("/responses", input="r", instructions="t", previous_response_id=first["id"])
    _, _ = address.ask("/responses", input="u", previous_response_id=second["id"])
    said = [
        [message["content"] for message in talk.messages if message["role"] != "assistant"] for talk in address.session.talks
    ]
    assert said == [["s", "a", "q"], ["t", "a", "q", "r"], ["a", "q", "r", "u"]]


CONTENT = json.dumps({"messages": USER}).encode()
CHUNKED = "Transfer-Encoding: chunked"


def chunks(*pieces, trailer=b""):
    return b"".join(b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailer + b"\r\n"


@pytest.mark.parametrize("trailer", [b"", b"X-Sum: 1\r\n"])
def test_a_body_in_chunks_is_answered_and_the_connection_goes_on(address, trailer):
    with socket.create_connection(("127.0.0.1", address.port), timeout=20) as place:
        for _ in range(2):
            content = chunks(CONTENT[:5], CONTENT[5:], trailer=trailer)
            status, answer = address.exchange(place, address.head(CHUNKED), content[:9], content[9:])
            assert (status, answer["object"]) == (200, "chat.completion")


@pytest.mark.parametrize(
    ("lines", "content", "status"),
    [
        ([CHUNKED], b"x\r\n", 400),
        ([CHUNKED], b"-5\r\nabcde\r\n", 400),
        ([CHUNKED], b"2\r\nabcde\r\n", 400),
        ([CHUNKED], b"fffffffff\r\n", 413),
        ([CHUNKED, "Content-Length: 3"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding: gzip"], b"", 400),
        (["Content-Length: abc"], b"", 400),
        (["Content-Length: -1"], b"", 400),
        ([f"Content-Length: {1 << 40}"], b"", 413),
        (["Content-Length: 3", "Content-Encoding: gzip"], b"abc", 415),
        ([], b"", 411),
    ],
)
def test_a_body_whose_end_is_unclear_is_refused(address, lines, content, status):
    found, answer = address.send(address.head(*lines), content)
    assert (found, answer["error"]["type"], answer.keys()) == (status, "invalid_request_error", {"error"})


def test_a_client_that_waits_before_its_body_is_told_to_go_on(address):
    with socket.create_connection(("127.0.0.1", address.port), timeout=20) as place:
        head = address.head(f"Content-Length: {len(CONTENT)}", "Expect: 100-continue")
        assert address.exchange(place, head) == (100, None)
        assert address.exchange(place, CONTENT)[0] == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "POST"])
def test_other_paths_and_methods_are_not_there_in_the_form_of_the_api(address, method):
    status, answer = address.send(address.head("Content-Length: 2", path="/embeddings", method=method), b"{}")
    assert (status, answer["error"]["message"]) == (404, "there is only POST /chat/completions, /responses, /messages here")


def test_a_question_for_the_headers_has_no_body(address):
    assert address.send(address.head(path="/models", method="HEAD")) == (200, None)
    assert address.send(address.head(path="/other", method="HEAD")) == (404, None)


def test_errors_have_the_form_of_their_api(address):
    _, answer = address.ask("/messages", messages=USER, stop_sequences=["x"])
    text = "stop_sequences is given: answers end where the model ends them"
    assert answer == {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
    _, answer = address.ask("/responses", input="q", background=True)
    error = {"message": "background is true: the answer comes with its request", "type": "invalid_request_error"}
    assert answer == {"error": {**error, "param": "background", "code": "unsupported_parameter"}}
    for body in ({"messages": [5]}, {"messages": [{"role": "user", "content": 5}]}, {"messages": USER, "tools": {"a": 1}}):
        assert [address.ask(path, **body)[0] for path in APIS] == [400] * 3
    address.key = "other"
    status, answer = address.ask("/messages", messages=USER)
    assert (status, answer["error"]["type"]) == (401, "authentication_error")
