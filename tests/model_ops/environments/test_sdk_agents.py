"""Agents that are written with the official libraries of OpenAI and Anthropic, as their pages show it: no line is for this server."""

from __future__ import annotations

import pytest
from test_agent_rollouts import play_rows
from test_environment_rollouts import END, call, sampled_text

from benchmarks.agents_environment import agents_python

PYTHON = agents_python(make=False)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="make it with `python -m benchmarks.agents_environment`"),
]
AGENTS = '''
import json
import anthropic, openai
from openai import AsyncOpenAI, OpenAI

LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}
TOOLS = [{"type": "function", "function": LOOK}]

def result(call):
    return {"role": "tool", "tool_call_id": call.id, "content": f"a {json.loads(call.function.arguments)['at']}"}

def chat(row, base_url, api_key):
    client, messages = OpenAI(base_url=base_url, api_key=api_key), [{"role": "user", "content": "q"}]
    assert [each.id for each in client.models.list()] == ["policy"]
    while True:
        completion = client.chat.completions.create(
            model="gpt-5", messages=messages, tools=TOOLS, tool_choice="auto", parallel_tool_calls=True, temperature=0.2, top_p=0.9,
            seed=1, max_completion_tokens=200, n=1, user="me", metadata={"a": "b"}, store=False,
        )
        message = completion.choices[0].message
        messages.append(message)
        assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
        if not message.tool_calls:
            return float(message.content == "cat" and completion.choices[0].finish_reason == "stop")
        messages += [result(call) for call in message.tool_calls]

def streamed(row, base_url, api_key):
    client, messages = OpenAI(base_url=base_url, api_key=api_key), [{"role": "user", "content": "q"}]
    while True:
        with client.chat.completions.stream(
            model="gpt-5", messages=messages, tools=TOOLS, stream_options={"include_usage": True}
        ) as stream:
            kinds = {event.type for event in stream}
            completion = stream.get_final_completion()
        message = completion.choices[0].message
        messages.append(message)
        assert completion.usage.completion_tokens > 0
        if not message.tool_calls:
            assert "content.delta" in kinds, kinds
            return float(message.content == "cat")
        assert "tool_calls.function.arguments.done" in kinds, kinds
        messages += [result(call) for call in message.tool_calls]

async def raw_stream(row, base_url, api_key):
    """Adds the deltas by hand, as many agents do."""
    client, messages = AsyncOpenAI(base_url=base_url, api_key=api_key), [{"role": "user", "content": "q"}]
    while True:
        text, calls = "", {}
        async for chunk in await client.chat.completions.create(model="gpt-5", messages=messages, tools=TOOLS, stream=True):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for part in delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": {"name": part.function.name, "arguments": ""}})
                call["function"]["arguments"] += part.function.arguments or ""
        if not calls:
            return float(text == "cat")
        messages += [{"role": "assistant", "content": text, "tool_calls": list(calls.values())}]
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": f"a {json.loads(call['function']['arguments'])['at']}"} for call in calls.values()]

def responses(row, base_url, api_key):
    client = OpenAI(base_url=base_url, api_key=api_key)
    tools = [{"type": "function", "strict": False, **LOOK}]
    found = client.responses.create(model="gpt-5", input="q", tools=tools)
    while calls := [item for item in found.output if item.type == "function_call"]:
        said = [{"type": "function_call_output", "call_id": call.call_id, "output": f"a {json.loads(call.arguments)['at']}"} for call in calls]
        with client.responses.stream(model="gpt-5", input=said, previous_response_id=found.id, tools=tools) as stream:
            kinds = [event.type for event in stream]
            found = stream.get_final_response()
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    return float(found.output_text == "cat" and found.usage.output_tokens > 0)

def messages(row, base_url, api_key, stream=False):
    client, said = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=api_key), [{"role": "user", "content": "q"}]
    tools = [{"name": "look", "description": "Looks.", "input_schema": LOOK["parameters"]}]
    while True:
        asked = {"model": "claude", "max_tokens": 200, "messages": said, "tools": tools, "tool_choice": {"type": "auto"}}
        if stream:
            with client.messages.stream(**asked) as events:
                texts = "".join(events.text_stream)
                message = events.get_final_message()
            assert texts == "".join(block.text for block in message.content if block.type == "text")
        else:
            message = client.messages.create(**asked)
        if message.stop_reason != "tool_use":
            return float(message.content[0].text == "cat" and message.stop_reason == "end_turn" and message.usage.output_tokens > 0)
        said.append({"role": "assistant", "content": message.content})
        said.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"a {block.input['at']}"} for block in message.content if block.type == "tool_use"
        ]})

def messages_streamed(row, base_url, api_key):
    return messages(row, base_url, api_key, stream=True)

def refused(row, base_url, api_key):
    """Errors have the classes that an agent catches, and are not asked again."""
    def caught(kind, ask):
        try:
            ask()
        except kind as error:
            return error
        raise AssertionError(f"no {kind}")
    ask = OpenAI(base_url=base_url, api_key=api_key).chat.completions.create
    user = [{"role": "user", "content": "q"}]
    error = caught(openai.BadRequestError, lambda: ask(model="m", messages=user, stop=["x"]))
    assert "stop is given" in error.message and error.type == "invalid_request_error"
    error = caught(openai.BadRequestError, lambda: ask(model="m", messages=[{"role": "user", "content": "q " * 9_000}]))
    assert error.code == "context_length_exceeded" and "maximum context length" in error.message
    other = OpenAI(base_url=base_url, api_key="other")
    caught(openai.AuthenticationError, lambda: other.chat.completions.create(model="m", messages=user))
    caught(openai.NotFoundError, lambda: OpenAI(base_url=base_url, api_key=api_key).embeddings.create(model="m", input="q"))
    claude = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=api_key)
    error = caught(anthropic.BadRequestError, lambda: claude.messages.create(model="m", max_tokens=9, messages=user, stop_sequences=["x"]))
    assert "stop_sequences is given" in error.message
    return float(ask(model="m", messages=user).choices[0].message.content == "cat")
'''
PARALLEL = call("look", at="cat").removesuffix(END) + call("look", at="dog")


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    file = tmp_path_factory.mktemp("agents") / "agents.py"
    file.write_text(AGENTS)
    return file


@pytest.mark.parametrize("function", ["chat", "streamed", "raw_stream", "responses", "messages", "messages_streamed"])
def test_an_agent_of_a_library_acts_over_turns_with_parallel_calls(agents, tmp_path, function):
    texts = {"a": [f"I look.\n{call('look', at='mat')}", PARALLEL, f"cat{END}"]}
    [rollout] = play_rows(agents, function, {"a": {}}, texts, tmp_path, python=str(PYTHON), seconds=120.0)["a"]
    assert (rollout.grade.problem, rollout.grade.value, rollout.ended) == ("", 1.0, True)
    assert sampled_text(rollout) == "".join(texts["a"]), "three turns are one rollout, token by token"
    assert set(rollout.log_probs[rollout.sampled]) == {-0.5}


def test_errors_are_those_that_the_libraries_know(agents, tmp_path):
    [rollout] = play_rows(agents, "refused", {"a": {}}, {"a": [f"cat{END}"]}, tmp_path, python=str(PYTHON), seconds=120.0)["a"]
    assert (rollout.grade.problem, rollout.grade.value) == ("", 1.0)
