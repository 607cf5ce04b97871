"""A taskset of `verifiers`, unmodified: its tasks become rows, its harness asks the policy, its rewards are grades."""

from __future__ import annotations

import json
import os
import sys

import pytest
from test_agent_rollouts import play_rows
from test_environment_rollouts import END, sampled_text

from benchmarks.agents_environment import agents_python
from model_ops.environments import TASKSET_CHILD, write_taskset
from model_ops.jobs import ModelError

PYTHON = agents_python(make=False)
needs_verifiers = pytest.mark.skipif(PYTHON is None, reason="make it with `python -m benchmarks.agents_environment`")
TASKSET = '''
import verifiers.v1 as vf

class EchoData(vf.TaskData):
    answer: str

class EchoTask(vf.Task[EchoData]):
    @vf.reward(weight=2.0)
    async def same(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == self.data.answer)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)

class EchoConfig(vf.TasksetConfig):
    words: list[str] = ["cat", "dog"]

class EchoTaskset(vf.Taskset[EchoTask, EchoConfig]):
    def load(self):
        for word in self.config.words:
            yield EchoTask(EchoData(prompt=f"Say {word}.", system_prompt="Be brief.", answer=word), self.config.task)
        yield EchoTask(EchoData(name="asks twice", answer="bird"), self.config.task)

class EchoEnv(vf.SingleAgentEnv):
    """A user speaks first where the task has no prompt, and asks again."""
    async def run(self, task, agents):
        if task.data.prompt is not None:
            return await agents.agent.run(task)
        async with agents.agent.interaction(task) as interaction:
            for said in ("Hello.", "Say bird."):
                await interaction.turn(said)

__all__ = ["EchoTaskset", "EchoEnv"]
'''


@pytest.fixture
def taskset(tmp_path, monkeypatch):
    (tmp_path / "echo_words.py").write_text(TASKSET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # where a user's package is installed
    return {"taskset": {"id": "echo-words", "words": ["cat", "dog"]}}


@pytest.mark.slow
@needs_verifiers
def test_a_taskset_is_played_as_it_is(taskset, tmp_path):
    assert write_taskset(taskset, tmp_path / "tasks.jsonl", 10, str(PYTHON)) == 3
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert rows[0]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say cat."}]
    assert rows[2]["messages"] == [{"role": "user", "content": "asks twice"}]
    assert rows[0]["env"]["agent"] == {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}, "no shell for the model"
    records = {name: {"env": row["env"], "task": row["task"]} for name, row in zip("abc", rows, strict=True)}
    texts = {"a": [f"cat{END}"], "b": [f"cat{END}"], "c": [f"Hi{END}", f"bird{END}"]}
    found = play_rows(TASKSET_CHILD, "play", records, texts, tmp_path, python=str(PYTHON), seconds=120.0)
    grades = {name: (each.grade.value, dict(each.grade.parts), each.grade.problem) for name, (each,) in found.items()}
    assert grades == {
        "a": (2.0, {"same": 2.0, "turns": 1.0, "score": 2.0}, ""),
        "b": (0.0, {"same": 0.0, "turns": 1.0, "score": 0.0}, ""),
        "c": (2.0, {"same": 2.0, "turns": 2.0, "score": 2.0}, ""),
    }
    assert sampled_text(found["c"][0]) == f"Hi{END}bird{END}", "both turns are one rollout"


def test_an_interpreter_without_the_library_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"cannot be read by .*python.*: ModuleNotFoundError: No module named 'verifiers'"):
        write_taskset({"taskset": {"id": "echo-words"}}, tmp_path / "tasks.jsonl", 1, sys.executable)
    with pytest.raises(ModelError, match="cannot be run: give the interpreter"):
        write_taskset({"taskset": {"id": "echo-words"}}, tmp_path / "tasks.jsonl", 1, os.fspath(tmp_path))
    assert not (tmp_path / "tasks.jsonl").exists()
