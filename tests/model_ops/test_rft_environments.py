"""Reinforcement fine-tuning in an environment: what the environment says is no label, losses are those of the sampled tokens, and the
reward rises."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from test_rft import Told, rollout, write_prompts
from tiny_chats import write_rows
from tiny_models import write_target

from model_ops.answers.rollout import NOT_SAMPLED
from model_ops.answers.rollout_log import RolloutLog
from model_ops.jobs import Job, Progress, Stopped
from model_ops.models.model_directory import load_model, save_model
from model_ops.operations import rft, sft
from model_ops.reinforcement.advantages import ADVANTAGES, advantages_of, run_counts
from model_ops.reinforcement.held_out_rollouts import HeldOutRollouts
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.round_asker import RoundAsker

ENVS = """
from pathlib import Path

class Talk:
    "A user who says `more` after every answer, and likes letters and digits."
    def reset(self, row):
        with (Path(__file__).parent / "resets").open("a") as file:
            file.write("x")
        return "! " + row["goal"]
    def reply(self, message):
        return "1 2 3 more"
    def reward(self, messages):
        said = "".join(message["content"] for message in messages if message["role"] == "assistant")
        return sum(letter.isascii() and letter.isalnum() for letter in said)

class Box:
    "A box that a tool opens with its number."
    def reset(self, row):
        self.row, self.opened = row, False
    def open(self, box: int) -> str:
        '''Opens a box.'''
        self.opened = self.opened or box == self.row["box"]
        return "gold" if self.opened else "empty"
    def reward(self):
        return self.opened
"""
SETTINGS = {
    "steps": 8, "learning_rate": 6e-3, "prompts_per_step": 4, "answers": 8, "max_new_tokens": 5, "max_turns": 2, "max_length": 96,
    "precision": "float32", "overlong": "none", "held_out_prompts": 4, "held_out_answers": 4, "checkpoint_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environments")
    tokenizer = write_target(folder / "model", layers=2, vocab_size=300, tied=False)
    model = load_model(folder / "model")
    with torch.no_grad():  # turns end after some tokens, and not at their begin
        text = tokenizer.apply_chat_template([{"role": "user", "content": "say 1"}], tokenize=False, add_generation_prompt=True)
        begin = model.model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1]
        end = model.lm_head.weight[tokenizer.eos_token_id] * 60
        model.lm_head.weight[tokenizer.eos_token_id] = end - (end @ begin) / (begin @ begin) * begin
    save_model(model, tokenizer, folder / "model")
    write_prompts(folder / "prompts", goal="say digits")
    (folder / "envs.py").write_text(ENVS)
    return folder


def run(start, output, progress=None, model="model", prompts="prompts", environment="Talk", **settings):
    inputs = {"model": start / model, "prompts": start / prompts}
    given = {**SETTINGS, "environment": f"{start}/envs.py:{environment}", **settings}
    return rft.run(Job(operation="rft", inputs=inputs, output=output, settings=given), progress or Progress())


def test_it_learns_over_turns_from_the_sampled_tokens_alone(start, tmp_path):
    found = run(start, tmp_path / "out", seed=1, learning_rate=1.5e-3)
    assert found["last_grade"] > found["first_grade"] + 0.2
    assert found["validation_reward"] > found["before_validation_reward"] + 0.2
    rows = pq.read_table(tmp_path / "out" / "rollouts.parquet").to_pylist()
    assert len(rows) == 8 * 32 and {row["answer"] for row in rows} == set(range(8))
    lengths = {row["tokens"] for row in rows}
    assert min(lengths) >= 1 and 5 < max(lengths) <= 10, "of two turns, without what the environment said"
    steps = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["canary_gap"] < 1e-4 for line in steps), (
        "the model reads the very tokens that were sampled, in their contexts"
    )
    of_step = [row for row in rows if row["step"] == 0]
    total, count = 0.0, 0
    for group in [of_step[begin : begin + 8] for begin in range(0, 32, 8)]:
        grades = np.array([row["grade"] for row in group])
        if np.ptp(grades) > 0:
            advantages = (grades - grades.mean()) / (grades.std(ddof=1) + 1e-6)
            tokens = np.array([row["tokens"] for row in group])
            total, count = total + advantages @ tokens, count + tokens.sum()
    assert steps[0]["loss"] == pytest.approx(-total / count, abs=1e-4)


@pytest.mark.slow
def test_attempts_are_made_while_the_model_learns_and_no_turn_is_older_than_the_bound(start, tmp_path):
    found = run(start, tmp_path / "out", steps=14, max_staleness=1)
    assert found["last_grade"] > found["first_grade"] + 0.2 and found["rollouts"] == 14 * 32
    for chunk in RolloutLog(tmp_path / "out/.work/rollouts.jsonl").chunks:
        for each in [each for group in chunk.groups() for each in group]:
            assert chunk.round - 1 <= each.versions[each.sampled].min() <= each.versions.max() <= chunk.round
            assert (each.versions[~each.sampled] == NOT_SAMPLED).all()


def test_a_killed_run_resets_no_environment_twice_and_ends_with_the_same_weights(start, tmp_path):
    short = {"steps": 3, "held_out_prompts": 0}
    (start / "resets").unlink(missing_ok=True)
    run(start, tmp_path / "whole", **short)
    with pytest.raises(Stopped):
        run(start, tmp_path / "killed", Told(stop_at=2), **short)
    run(start, tmp_path / "killed", **short)
    assert len((start / "resets").read_text()) == 2 * 3 * 32
    assert (tmp_path / "killed/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_rollouts_of_one_attempt_count_once_and_have_one_advantage(name):
    whole = ADVANTAGES[name]([[1.0, 0.0, 0.5, None]], [[6, 2, 7, 1]])[0]
    (parts,) = advantages_of(name, [[1.0, 1.0, 1.0, 0.0, 0.5, 0.5, None]], [[1, 2, 3, 2, 3, 4, 1]], [[0, 0, 0, 1, 2, 2, 3]])
    np.testing.assert_allclose(parts, whole[[0, 0, 0, 1, 2, 2, 3]])
    assert np.isnan(parts[-1]) and advantages_of(name, [], [], []) == []


def test_an_attempt_of_several_rollouts_counts_once_in_every_number(tmp_path):
    groups = [[rollout([5], [6, 7], grade=1.0), rollout([5], [8], grade=1.0), replace(rollout([5], [9], grade=0.0), attempt=1)]]
    maker = SimpleNamespace(answers=2, rollouts=lambda *_: groups)
    found = HeldOutRollouts([None], maker, SimpleNamespace(sync=lambda version: None), 1.0, 0, lambda: 0)()
    assert found == {
        "validation_reward": 0.5,
        "validation_pass_rate": 0.5,
        "validation_pass_at_2": 1.0,
        "validation_answer_tokens": 2.0,
        "validation_cut": 0.0,
    }
    log, settings = RolloutLog(tmp_path / "log.jsonl"), RftSettings(environment="envs.py:Talk")
    log.add_chunk(0, [0], ["0:0"], groups)
    counts = run_counts(log, settings.passing_grade)
    assert (counts["first_grade"], counts["last_tokens"], counts["rollouts"]) == (0.5, 2.0, 3)
    engine = SimpleNamespace(settings=None)
    asker = RoundAsker([None], [maker], engine, log, settings, lambda rollouts, number: 0.0, Progress(), steps=1)
    asker.ask(0, 1, reads_canary=False)
    assert asker.pool.rates.tolist() == [0.5]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"grader": "verifier", "environment": "envs.py:Talk"}, "says how good an answer is: give one of them"),
        ({"agent": "agent.py:run", "environment": "envs.py:Talk"}, "says how good an answer is: give one of them"),
        ({}, "says how good an answer is: give one of them"),
        ({"environment": "envs.py:Talk", "overlong": "penalty"}, "an attempt of several turns has more"),
        ({"environment": "envs.py:Talk", "held_out_grader": "verifier"}, "held_out_grader grades single answers"),
        ({"environment": "Talk"}, "String should match"),
        ({"grader": "verifier", "max_length": 256}, "max_new_tokens 256 leaves no room for a prompt in max_length 256"),
    ],
)
def test_settings_that_contradict_each_other(settings, said):
    with pytest.raises(ValueError, match=said):
        RftSettings(**settings)


TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": \
{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_policy_that_calls_tools_gets_better_at_it(start, tmp_path):
    """A model that learnt to open boxes learns to open the one that is asked for."""
    from model_ops.operations.tiny_base import new_model, train_tokenizer
    from model_ops.operations.tiny_base_settings import TinyBaseSettings

    settings = TinyBaseSettings(
        vocab_size=512, hidden_size=64, layers=2, heads=2, kv_heads=1, head_dim=32, mlp_size=96, max_position_embeddings=256
    )
    calls = [f'<tool_call>{{"name": "open", "arguments": {{"box": {n}}}}}</tool_call> gold empty box {n}' for n in range(4)]
    tokenizer = train_tokenizer(calls * 50, settings)
    tokenizer.chat_template = TEMPLATE
    save_model(new_model(settings, tokenizer), tokenizer, tmp_path / "base")
    chats = [
        [
            {"role": "user", "content": f"box {n % 4}"},
            {"role": "assistant", "content": None, "tool_calls": [called(opened(n))]},
            {
                "role": "tool",
                "tool_call_id": "call00000",
                "name": "open",
                "content": "gold" if n % 4 == n // 4 % 4 else "empty",
            },
            {"role": "assistant", "content": "gold" if n % 4 == opened(n) else "empty"},
        ]
        for n in range(64)
    ]
    write_rows(tmp_path / "chats", "train", chats)
    given = {"steps": 120, "tokens_per_step": 1_024, "max_length": 128, "learning_rate": 3e-3, "precision": "float32"}
    inputs = {"model": tmp_path / "base", "dataset": tmp_path / "chats"}
    sft.run(Job(operation="sft", inputs=inputs, output=start / "caller", settings=given), Progress())
    rows = [
        {
            "row_id": f"b{n}",
            "messages": json.dumps([{"role": "user", "content": f"box {n}"}]),
            "verifier": json.dumps({"box": n}),
        }
        for n in range(4)
    ]
    (start / "boxes").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), start / "boxes/train.parquet")
    asked = {
        "steps": 30,
        "answers": 16,
        "max_new_tokens": 48,
        "max_turns": 2,
        "max_length": 200,
        "learning_rate": 1e-3,
        "held_out_prompts": 0,
    }
    found = run(start, tmp_path / "out", None, "caller", "boxes", "Box", **asked)
    assert 0.1 < found["first_grade"] < 0.7 and found["last_grade"] > found["first_grade"] + 0.2


def opened(n):
    """The box that is asked for (n % 4) in a third of the rows, any box in the others."""
    return n % 4 if n % 3 == 0 else n // 4 % 4


def called(box):
    return {"id": "call00000", "type": "function", "function": {"name": "open", "arguments": json.dumps({"box": box})}}
