"""Agents that ask the policy at an address, as any server: what is one rollout, what is another, and agents that fail."""

from __future__ import annotations

import time

import pytest
from test_environment_rollouts import END, Script, call, sampled_text
from test_episode_conversation import CHATML, tokenizer_of

from model_ops.answers import RolloutLog, SampledPrompt
from model_ops.environments import AgentRollouts, EnvironmentProcesses, PolicySessions, SessionServer
from model_ops.graders import Grade
from model_ops.jobs import Progress, Stopped

AGENT = """
import asyncio, json, os, time, urllib.request, urllib.error, socket
from pathlib import Path
from urllib.parse import urlparse

TOOLS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}}]

def ask(base_url, api_key, messages, **more):
    body = json.dumps({"model": "any", "messages": messages, "temperature": 0.1, **more}).encode()
    request = urllib.request.Request(base_url + "/chat/completions", body, {"Authorization": f"Bearer {api_key}"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return json.loads(error.read())

def run(row, base_url, api_key):
    how, user = row["how"], {"role": "user", "content": "q"}
    if how == "nothing":
        return 1
    if how == "long":
        error = ask(base_url, api_key, [{"role": "user", "content": "q" * 20_000}])["error"]
        Path(__file__).with_name("code").write_text(str(error["code"]))
        return 0.0
    if how == "hang":
        time.sleep(300)
    if how == "refused":
        found = [ask(base_url, api_key, [user], n=2), ask(base_url, "other", [user]), ask(base_url, api_key, "text"),
                 ask(base_url, api_key, [user], response_format={"type": "json_object"}),
                 ask(base_url, api_key, [user], tools=[{"type": "function"}])]
        assert all("error" in each for each in found), found
        return {"refused": 4, "n": float("n is not 1" in found[0]["error"]["message"])}
    if how == "leave":
        place = urlparse(base_url)
        body = json.dumps({"messages": [user]})
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(f"POST /v1/chat/completions HTTP/1.1\\r\\nAuthorization: Bearer {api_key}\\r\\n"
                               f"Content-Length: {len(body)}\\r\\n\\r\\n{body}".encode())
        time.sleep(1)
        return 1
    first = ask(base_url, api_key, [user], tools=TOOLS)
    message = first["choices"][0]["message"]
    if how == "die":
        os._exit(1)
    if how == "raise":
        raise KeyError("a secret")
    if how == "forget":
        return None
    if how == "branch":
        second = ask(base_url, api_key, [user, message, {"role": "user", "content": "a"}], tools=TOOLS)
        third = ask(base_url, api_key, [user, message, {"role": "user", "content": "b"}], tools=TOOLS)
        return 0.5
    if how == "other tools":
        ask(base_url, api_key, [user, message, {"role": "user", "content": "a"}], tools=None)
        return 0.5
    if how == "edit":
        ask(base_url, api_key, [{"role": "user", "content": "another"}, message, {"role": "user", "content": "b"}], tools=TOOLS)
        return 0.5
    if how == "gives up":
        messages = [user]
        while True:
            messages += [ask(base_url, api_key, messages, tools=TOOLS)["choices"][0]["message"], user]
    if how == "endless":
        messages = [user]
        while "error" not in (said := ask(base_url, api_key, messages, tools=TOOLS)):
            messages += [said["choices"][0]["message"], user]
        return float(len(messages))
    assert first["choices"][0]["finish_reason"] == "tool_calls" and first["usage"]["completion_tokens"] > 5
    message = {**message, "content": None, "refusal": None, "audio": None}      # as a client's library sends it back
    told = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": [{"type": "text", "text": "a cat"}]}
    second = ask(base_url, api_key, [user, message, told], tools=TOOLS, max_completion_tokens=3 if how == "short" else None)
    return {"score": float(second["choices"][0]["message"]["content"] == "cat"), "length": second["choices"][0]["finish_reason"] == "length"}

async def later(row, base_url, api_key):
    return await asyncio.to_thread(run, row, base_url, api_key)
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    (folder / "agent.py").write_text(AGENT)
    return folder


class Talker(Script):
    """A policy that calls a tool first, and says `cat` or, without tools in the question, `dog`, later."""

    def sample(self, prompts, names, seed):
        self.texts = {name.rsplit(":", 2)[0]: [call("look"), f"cat{END}", f"dog{END}", f"dog{END}"] for name in names}
        return super().sample(prompts, names, seed)


def play(folder, hows, tmp_path, *, function="run", seconds=20.0, answers=1, engine=None, template=CHATML, progress=None):
    tokenizer = tokenizer_of(template, END)
    engine = engine or Talker(tokenizer, {})
    columns = {how: {"how": how} for how in hows}
    file = folder / "agent.py"
    return played(
        file, function, columns, engine, tokenizer, tmp_path, seconds=seconds, answers=answers, progress=progress
    ), engine


def play_rows(file, function, records, texts, tmp_path, **more):
    """{row: its rollouts}, of a policy that says `texts`. records: what the agent is told of each row."""
    tokenizer = tokenizer_of(CHATML, END)
    columns = {name: {"record": record} for name, record in records.items()}
    return played(file, function, columns, Script(tokenizer, texts), tokenizer, tmp_path, **more)


def played(file, function, columns, engine, tokenizer, tmp_path, *, seconds=20.0, answers=1, progress=None, python=None):
    prompts = [
        SampledPrompt(f"row-{name}", "", [1], [{"role": "user", "content": "q"}], None, each) for name, each in columns.items()
    ]
    sessions = PolicySessions(tokenizer, longest_context=10_000, max_turns=4)
    with EnvironmentProcesses(file, function, seconds, "agent", python) as processes, SessionServer(sessions) as server:
        log = RolloutLog(tmp_path / "attempts.jsonl")
        maker = AgentRollouts(processes, sessions, server.base_url, log, progress or Progress(), answers=answers)
        return dict(zip(columns, maker.rollouts(prompts, list(columns), engine, seed=0), strict=True))


@pytest.mark.parametrize("function", ["run", "later"])
def test_turns_that_go_on_are_one_rollout(agent, tmp_path, function):
    found, engine = play(agent, ["well", "short"], tmp_path, function=function, answers=3)
    assert [(each.grade.value, each.ended) for each in found["well"]] == [(1.0, True)] * 3
    assert [(each.grade.parts["length"], each.ended) for each in found["short"]] == [(1.0, False)] * 3, "3 tokens of an answer"
    assert sampled_text(found["well"][0]) == call("look") + f"cat{END}"
    tokenizer, first = tokenizer_of(CHATML, END), found["well"][0]
    between = tokenizer.decode(first.tokens[~first.sampled])
    assert between == "\n<|im_start|>tool\na cat<|im_end|>\n<|im_start|>assistant\n"
    assert set(first.log_probs[first.sampled]) == {-0.5} and set(first.log_probs[~first.sampled]) == {0.0}
    assert max(map(len, engine.asked)) > 1, "what is asked at the same time is sampled together"


OTHER_APIS = """
import json, urllib.request

def ask(base_url, api_key, path, **body):
    request = urllib.request.Request(base_url + path, json.dumps({"model": "any", **body}).encode(), {"x-api-key": api_key})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()

def responses(row, base_url, api_key):
    tools = [{"type": "function", "name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}]
    first = json.loads(ask(base_url, api_key, "/responses", instructions="s", input="q", tools=tools))
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "a cat"}
    said = ask(base_url, api_key, "/responses", instructions="s", input=[result], tools=tools, stream=True,
               previous_response_id=first["id"])
    *_, last = [json.loads(line.removeprefix("data: ")) for line in said.splitlines() if line.startswith("data: ")]
    assert last["type"] == "response.completed" and last["response"]["status"] == "completed"
    return float(last["response"]["output"][0]["content"][0]["text"] == "cat")

def messages(row, base_url, api_key):
    tools = [{"name": "look", "description": "d", "input_schema": {"type": "object", "properties": {}}}]
    asked = {"system": "s", "tools": tools, "max_tokens": 99}
    first = json.loads(ask(base_url, api_key, "/messages", messages=[{"role": "user", "content": "q"}], **asked))
    (block,) = first["content"]
    assert first["stop_reason"] == "tool_use" and block["input"] == {}
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "a cat"}]}
    whole = [{"role": "user", "content": "q"}, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    said = ask(base_url, api_key, "/messages", messages=whole, stream=True, **asked)
    events = [json.loads(line.removeprefix("data: ")) for line in said.splitlines() if line.startswith("data: ")]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert [event["type"] for event in events][-2:] == ["message_delta", "message_stop"]
    return float(text == "cat")
"""


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_other_apis_give_the_same_rollout(tmp_path, api):
    (tmp_path / "agent.py").write_text(OTHER_APIS)
    found, _ = play(tmp_path, ["any"], tmp_path, function=api)
    (one,) = found["any"]
    between = tokenizer_of(CHATML, END).decode(one.tokens[~one.sampled])
    assert (one.grade.value, one.grade.problem, one.ended) == (1.0, "", True)
    assert sampled_text(one) == call("look") + f"cat{END}"
    assert between == "\n<|im_start|>tool\na cat<|im_end|>\n<|im_start|>assistant\n"


def test_another_branch_is_a_further_rollout_of_the_attempt(agent, tmp_path):
    found, _ = play(agent, ["branch"], tmp_path)
    one, other = found["branch"]
    assert (one.grade.value, other.grade.value, one.attempt, other.attempt) == (0.5, 0.5, 0, 0)
    tokenizer = tokenizer_of(CHATML, END)
    assert sampled_text(one) == call("look") + f"cat{END}" and sampled_text(other) == f"dog{END}"
    assert tokenizer.decode(other.prompt).endswith("<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n")


def test_the_same_messages_with_other_tools_are_a_further_rollout(agent, tmp_path):
    one, other = play(agent, ["other tools"], tmp_path)[0]["other tools"]
    decode = tokenizer_of(CHATML, END).decode
    assert sampled_text(one) == call("look") and '"name": "look"' in decode(one.prompt)
    assert len(other.tokens) and not decode(other.prompt).startswith(decode(one.prompt)[:30])


def test_a_history_that_the_agent_edits_is_a_further_rollout(agent, tmp_path):
    found, _ = play(agent, ["edit"], tmp_path)
    one, other = found["edit"]
    assert sampled_text(one) == call("look") and sampled_text(other) == f"cat{END}"
    assert "another" in tokenizer_of(CHATML, END).decode(other.prompt)


def test_an_agent_that_fails_leaves_no_grade(agent, tmp_path):
    hows = ["nothing", "hang", "die", "raise", "forget", "leave", "refused", "endless", "gives up", "long"]
    found, _ = play(agent, [*hows, "well", "short", "branch"], tmp_path, seconds=4.0)
    problems = {how: rollouts[-1].grade.problem for how, rollouts in found.items() if rollouts[-1].grade.problem}
    assert {how: found[how][-1].grade for how in ("gives up", "long")} == {"gives up": Grade(), "long": Grade()}, "no failures"
    assert not any(each.ended for how in ("gives up", "long") for each in found[how])
    assert (agent / "code").read_text() == "context_length_exceeded"
    line = 1 + AGENT.split("\n").index('        raise KeyError("a secret")')
    assert problems == {
        "nothing": "asked the model nothing",
        "hang": "took longer than 4 s",
        "die": "ended its process",
        "raise": f"raised KeyError in line {line}",
        "leave": "closed its connection before the answer",
        "refused": "asked the model nothing",
    }
    values = {how: rollouts[-1].grade.value for how, rollouts in found.items()}
    assert values == dict.fromkeys(hows, None) | {"endless": 7.0, "well": 1.0, "short": 1.0, "branch": 0.5}
    assert not found["endless"][-1].ended, "more turns than are allowed"


def test_the_time_in_which_the_model_answers_is_not_the_agent_s(agent, tmp_path):
    class Slow(Talker):
        def sample(self, prompts, names, seed):
            time.sleep(3)
            return super().sample(prompts, names, seed)

    found, _ = play(agent, ["well", "hang"], tmp_path, seconds=2.0, engine=Slow(tokenizer_of(CHATML, END), {}))
    assert [found[how][0].grade.problem for how in ("well", "hang")] == ["", "took longer than 2 s"]


def test_a_training_that_stops_ends_its_agents(agent, tmp_path):
    class Stopping(Talker):
        def sample(self, prompts, names, seed):
            raise Stopped("killed")

    with pytest.raises(Stopped):
        play(agent, ["well", "hang"], tmp_path, engine=Stopping(tokenizer_of(CHATML, END), {}))
    assert not (tmp_path / "attempts.jsonl").read_bytes(), "an agent that was stopped has not failed"
