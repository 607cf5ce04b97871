"""Attempts in environments of a user's file: tools and their schemas, limits, and what becomes of an environment that raises, hangs
or dies."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from test_episode_conversation import CHATML, tokenizer_of

import model_ops.environments.environment_processes as environment_processes
import model_ops.graders.functions as functions
from benchmarks.template_kinds import user
from model_ops.answers import RolloutLog, Sampled, SampledPrompt
from model_ops.environments import EnvironmentProcesses, EnvironmentRollouts
from model_ops.jobs import ModelError, Progress, Stopped

ENVS = """
import asyncio, os, random, time
from pathlib import Path
from typing import Literal, Optional

class Counter:
    def reset(self, row):
        self.row, self.total = row, 0
        with (Path(__file__).parent / "resets").open("a") as file:
            file.write(row["row_id"] + " ")
        if row.get("fails") == "reset":
            raise OSError("a secret")
        return f" Count to {row['goal']}." if "goal" in row else None

    async def add(self, number: int, times: Optional[int] = 1, how: Literal["up", "down"] = "up", tags: list[str] = ()) -> dict:
        '''Adds a number
        to the total.

        Args:
            number (int): What is
                added
            times: How often

        Returns:
            the total
        '''
        await asyncio.sleep(0)
        self.total += number * times
        return {"total": self.total}

    def fail(self, how: str) -> str:
        '''Fails.'''
        if how == "hang": time.sleep(300)
        if how == "die": os._exit(1)
        if how == "value": raise ValueError("there is no such way")
        if how == "slow": return str(time.sleep(1.2))
        if how == "bytes": return "half of a character: \\udcff"
        if how == "fork" and os.fork() == 0: time.sleep(300)
        raise KeyError("a secret")

    def reward(self):
        if self.row.get("fails") == "reward":
            return float("nan")
        return {"score": float(self.total == self.row.get("goal")), "total": self.total}

    def _hidden(self): ...

class Trl:
    "As TRL has them: keywords to reset, get_reward."
    def reset(self, goal, **row): self.goal, self.last = goal, None
    def guess(self, number: int) -> str:
        '''Guesses a number.

        Args:
            number: The guess.
        '''
        self.last = number
        return "right" if number == self.goal else "wrong"
    def get_reward(self): return float(self.last == self.goal)

class Talker:
    def reset(self, row):
        self.said, self.drawn = [], random.random()
        return [{"role": "user", "content": "first"}]
    async def reply(self, message):
        self.said.append(message["content"])
        return None if message["content"] == "bye" else f"you said {message['content']}"
    def reward(self, messages): return {"score": len(self.said) + sum(message["role"] == "user" for message in messages) / 10, "drawn": self.drawn}

class NoText:
    def reset(self, row): return row
    def tool(self, x: int): return x

class NoReward:
    def reset(self, row): return None
"""
END = "<|im_end|>"


@pytest.fixture
def envs(tmp_path):
    (tmp_path / "envs.py").write_text(ENVS)
    return tmp_path


class Script:
    """An engine whose policy says the next of its texts for each prompt, by the prompt's name."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.asked = tokenizer, texts, []

    def sync(self, version):
        pass

    def sample(self, prompts, names, seed):
        self.asked.append(dict(zip(names, map(self.tokenizer.decode, prompts), strict=True)))
        found = []
        for name in names:
            prompt, _, turn = name.rsplit(":", 2)
            text = self.texts[prompt][int(turn)]
            ids = np.array(self.tokenizer.encode(text, add_special_tokens=False), np.int32)
            found.append(Sampled(ids, np.full(len(ids), -0.5, np.float32), 0, text.endswith(END)))
        return found


def call(name, **arguments):
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + f"</tool_call>{END}"


def play(folder, name, texts, columns=None, *, seconds=20.0, answers=1, max_turns=4, engine=None, log="attempts.jsonl", **more):
    """({prompt: its rollouts}, the engine)."""
    tokenizer = tokenizer_of(CHATML, END)
    engine = engine or Script(tokenizer, texts)
    columns = columns or {}
    prompts = [SampledPrompt(f"row-{each}", "", [1], [user("q")], None, columns.get(each, {})) for each in texts]
    with EnvironmentProcesses(folder / "envs.py", name, seconds) as processes:
        maker = EnvironmentRollouts(
            processes,
            tokenizer,
            RolloutLog(folder / log),
            more.get("progress", Progress()),
            answers=answers,
            max_turns=max_turns,
            longest_context=more.get("longest_context", 10_000),
        )
        found = maker.rollouts(prompts, list(texts), engine, seed=0)
    return dict(zip(texts, found, strict=True)), engine


def sampled_text(rollout):
    return tokenizer_of(CHATML, END).decode(rollout.tokens[rollout.sampled])


def test_tools_are_described_by_their_hints_and_docstrings(envs):
    with EnvironmentProcesses(envs / "envs.py", "Counter", 20.0) as processes:
        about = processes.about
    add, fail = (tool["function"] for tool in about.tools)
    assert (add["name"], add["description"], fail["name"]) == ("add", "Adds a number\nto the total.", "fail")
    assert add["parameters"] == {
        "type": "object",
        "properties": {
            "number": {"type": "integer", "description": "What is added"},
            "times": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 1, "description": "How often"},
            "how": {"type": "string", "enum": ["up", "down"], "default": "up"},
            "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        },
        "required": ["number"],
    }
    assert (about.replies, about.rewards) == (False, True)


def test_attempts_act_hear_and_are_graded(envs):
    texts = {
        "right": [call("add", number="2"), call("add", number=1, times=3), f"done{END}"],
        "wrong": [f"nothing{END}"],
        "mistakes": [
            f"<tool_call>{{add}}</tool_call>{END}",
            call("sub", number=1),
            call("add", nummer=1),
            call("fail", how="value"),
            f"I cannot{END}",
        ],
        "two": [call("add", number=1).replace(END, "") + call("add", number=4), f"done{END}"],
    }
    found, engine = play(envs, "Counter", texts, {each: {"goal": 5} for each in texts}, max_turns=5)
    (right,), (wrong,), (mistakes,), (two,) = found.values()
    assert [each.grade.value for each in (right, wrong, mistakes, two)] == [1.0, 0.0, 0.0, 1.0]
    assert right.grade.parts == {"score": 1.0, "total": 5.0} and all(each[0].ended for each in found.values())
    assert [sampled_text(each) for each in (right, mistakes)] == ["".join(texts["right"]), "".join(texts["mistakes"])]
    assert [sorted(asked) for asked in engine.asked][:2] == [
        ["mistakes:0:0", "right:0:0", "two:0:0", "wrong:0:0"],
        ["mistakes:0:1", "right:0:1", "two:0:1"],
    ], "attempts that go on are sampled together"
    assert "q Count to 5.<|im_end|>" in engine.asked[0]["right:0:0"]
    heard = engine.asked[-1]["mistakes:0:4"]
    assert [part.partition(END)[0] for part in heard.split("<|im_start|>tool\n")[1:]] == [
        '{"error": "the call cannot be read: give its name and arguments in the form that you were told"}',
        '{"error": "there is no tool sub; there are add, fail"}',
        '{"error": "number: Field required; nummer: Extra inputs are not permitted"}',
        '{"error": "there is no such way"}',
    ]
    assert '{"total": 1}<|im_end|>\n<|im_start|>tool\n{"total": 5}' in engine.asked[1]["two:0:1"]


def test_an_environment_that_fails_leaves_no_grade(envs):
    ways = {
        "raise": "a tool raised KeyError in line 39",
        "hang": "a tool took longer than 2 s",
        "die": "a tool ended its process",
        "fork": "a tool raised KeyError in line 39",
        "bytes": "said what the chat template refuses",
    }
    texts = {each: [call("fail", how=each), f"on{END}"] for each in ways} | {f"fine {n}": [f"on{END}"] for n in range(8)}
    texts |= {"reset": [f"on{END}"], "reward": [f"on{END}"]}
    texts["two slow calls"] = [call("fail", how="slow").replace(END, "") + call("fail", how="slow"), f"on{END}"]
    found, _ = play(envs, "Counter", texts, {each: {"fails": each} for each in ("reset", "reward")}, seconds=2.0)
    problems = {name: rollouts[0].grade.problem for name, rollouts in found.items()}
    assert problems == dict.fromkeys(texts, "") | ways | {
        "reset": "reset raised OSError in line 12",
        "reward": "answered a number that is not finite (NaN or infinity)",
    }
    values = {name: rollouts[0].grade.value for name, rollouts in found.items()}
    assert values == {name: None if problems[name] else 0.0 for name in texts}
    assert len(found["reset"][0].tokens) == 0 and sampled_text(found["die"][0]) == texts["die"][0]
    if sys.platform == "linux":
        deadline = time.monotonic() + 20  # a killed process ends when the machine lets it run
        while (left := processes_with(str(envs))) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, "no process is left"


def processes_with(text):
    """Command lines that hold the text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return [line for line in found if text.encode() in line]


def test_an_environment_that_mostly_fails_stops_the_training(envs):
    texts = {str(n): [f"on{END}"] for n in range(16)}
    with pytest.raises(
        ModelError, match=r"environment envs.py:Counter failed on 8 of 16 .* 8 times reset raised OSError .*rows row-0"
    ):
        play(envs, "Counter", texts, {str(n): {"fails": "reset"} for n in range(0, 16, 2)})


def test_limits_cut_an_attempt_and_it_is_graded(envs):
    texts = {"turns": [call("add", number=1)] * 9, "tokens": ["on and on"], "room": [call("add", number=1)] * 9}
    found, engine = play(envs, "Counter", {"turns": texts["turns"], "tokens": texts["tokens"]}, max_turns=2)
    assert [(each.ended, each.grade.parts["total"]) for (each,) in found.values()] == [(False, 2.0), (False, 0.0)]
    context = len(tokenizer_of(CHATML, END).encode(engine.asked[1]["turns:0:1"], add_special_tokens=False))
    ((room,),) = play(envs, "Counter", {"room": texts["room"]}, longest_context=context - 1, log="room")[0].values()
    assert not room.ended and sampled_text(room) == texts["room"][0]
    ((room,),) = play(envs, "Counter", {"room": texts["room"]}, longest_context=context, log="fits")[0].values()
    assert sampled_text(room) == texts["room"][0] * 2, "a context of so many tokens is answered"


def test_an_environment_of_trl_and_a_user_who_replies(envs):
    found, _ = play(envs, "Trl", {"trl": [call("guess", number=3), f"3{END}"]}, {"trl": {"goal": 3}})
    assert found["trl"][0].grade.value == 1.0
    texts = {"talk": [f"hello{END}", f"more{END}", f"bye{END}"]}
    texts["other"] = texts["talk"]
    found, engine = play(envs, "Talker", texts, log="talk", answers=2)
    drawn = [[each.grade.parts["drawn"] for each in group] for group in found.values()]
    assert drawn[0][0] == drawn[0][1] != drawn[1][0] == drawn[1][1], "all attempts at a prompt meet the same world"
    assert (found["talk"][0].grade.value, found["talk"][0].ended) == (3.4, True)
    assert engine.asked[0]["talk:0:0"].count("<|im_start|>user") == 2
    assert engine.asked[-1]["talk:0:2"].endswith("user\nyou said more<|im_end|>\n<|im_start|>assistant\n")


def test_a_killed_run_resets_no_finished_attempt_again(envs):
    texts = {"short": [f"on{END}"], "long": [call("add", number=1), call("add", number=2), f"on{END}"]}

    class Killed(Script):
        def sample(self, prompts, names, seed):
            if "long:0:1" in names:
                raise Stopped("killed")
            return super().sample(prompts, names, seed)

    with pytest.raises(Stopped):
        play(envs, "Counter", texts, answers=2, engine=Killed(tokenizer_of(CHATML, END), texts))
    with (envs / "attempts.jsonl").open("ab") as file:
        file.write(b'{"key": "long:')  # a line that the kill cut short
    found, engine = play(envs, "Counter", texts, answers=2)
    assert sorted((envs / "resets").read_text().split()) == ["row-long"] * 4 + ["row-short"] * 2
    assert {name.split(":")[0] for asked in engine.asked for name in asked} == {"long"}
    whole, _ = play(envs, "Counter", texts, answers=2, log="whole")
    for one, other in zip([*found["short"], *found["long"]], [*whole["short"], *whole["long"]], strict=True):
        assert {name: np.asarray(value).tolist() for name, value in vars(one).items()} == {
            name: np.asarray(value).tolist() for name, value in vars(other).items()
        }
    assert [each.attempt for each in found["long"]] == [0, 1]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("class E:\n  pass", "E", "envs.py:E has no method reset"),
        ("class E:\n  def reset(self, row): ...\n  def f(self, x): 'F.'", "E", "whose parameter x has no name or no type hint"),
        ("class E:\n  def reset(self, row): ...\n  def f(self, x: int): ...", "E", "a tool f without a docstring"),
        ("class E:\n  def reset(self, row): ...\n  def f(self, x: open): 'F.'", "E", "a type hint that JSON does not know"),
        ("class E:\n  def reset(self, row): ...", "E", "has no method reward"),
        ("class E:\n  def __init__(self): 1 / 0", "E", "cannot be made: it raised ZeroDivisionError in line 2"),
        ("import nothing_like_it", "E", "cannot be loaded: it raised ModuleNotFoundError of nothing_like_it in line 1"),
        ("", "E", "has no function E"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(tmp_path, text, name, message):
    (tmp_path / "envs.py").write_text(text)
    with pytest.raises(ModelError, match=message):
        play(tmp_path, name, {"a": [f"on{END}"]})


def test_a_template_without_tools_is_refused(envs, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "CHATML", CHATML.replace("m.tool_calls or []", "[]"))
    with pytest.raises(ModelError, match="has tools, and the model's chat template does not write calls"):
        play(envs, "Counter", {"a": [f"on{END}"]})


SLOW = """
import time
time.sleep(1.5)
class Slow:
    def __init__(self): time.sleep(1.5)
    def reset(self, row): ...
    def reward(self): time.sleep(row_seconds)
"""


@pytest.mark.thorough
def test_loading_and_making_have_time_of_their_own_and_a_call_has_not(tmp_path, monkeypatch):
    (tmp_path / "envs.py").write_text(SLOW.replace("row_seconds", "300"))
    found, _ = play(tmp_path, "Slow", {"a": [f"on{END}"]}, seconds=1.0)
    assert [each.grade.problem for each in found["a"]] == ["reward took longer than 1 s"]
    monkeypatch.setattr(environment_processes, "MAKING_SECONDS", 0.5)
    late = "envs.py:Slow cannot be made: it took longer than 1 s; import or do less there, or raise rft.seconds above that"
    with pytest.raises(ModelError, match=late):
        play(tmp_path, "Slow", {"a": [f"on{END}"]}, seconds=1.0)
    monkeypatch.setattr(functions, "STARTING_SECONDS", 0.3)
    with pytest.raises(ModelError, match=r"envs.py:Slow cannot be loaded: it took longer than 0.5 s; .* raise rft.seconds"):
        play(tmp_path, "Slow", {"a": [f"on{END}"]}, seconds=0.5)
