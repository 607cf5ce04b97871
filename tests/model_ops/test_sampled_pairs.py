"""Preference training on the model's own answers: which pairs are made, that they teach, and that a killed run pays for nothing
twice and ends with the same weights."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from stop_after import StopAfter
from tiny_chats import write_rows

from model_ops.answers import read_sampled_prompts
from model_ops.graders import GradedAnswer, Grader
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models.model_directory import load_model, load_tokenizer, save_model
from model_ops.operations import PreferenceTuningSettings, preference, sft
from model_ops.parallel import World
from model_ops.preferences import SampledPairPlan, answer_masks
from model_ops.preferences.sampled_rounds import NO_END, TIES, UNGRADED, SampledPair, best_and_worst

WORDS = ("yes", "no", "maybe")
SAMPLING = {"prompts": "rl_prompts", "prompts_per_step": 6, "sync_steps": 2, "max_new_tokens": 8, "grader": "verifier"}
SETTINGS = {"steps": 6, "learning_rate": 1e-3, "max_length": 128, "precision": "float32", "checkpoint_every": 1}


def question(i):
    return f"is it {i % 7} or {i % 5} today, {i}?"


def write_prompts(folder, count=48, **verifier):
    folder.mkdir(parents=True)
    rows = [
        {
            "row_id": f"p{i}",
            "messages": json.dumps([{"role": "user", "content": question(i)}]),
            "verifier": json.dumps(verifier or {"kind": "exact", "answer": "maybe"}),
        }
        for i in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    return folder


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """A model that answers yes, no or maybe, and its prompts."""
    from model_ops.operations.tiny_base import new_model, train_tokenizer
    from model_ops.operations.tiny_base_settings import TinyBaseSettings

    folder = tmp_path_factory.mktemp("sampled")
    settings = TinyBaseSettings(
        vocab_size=512, hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=48, max_position_embeddings=256
    )
    tokenizer = train_tokenizer([f"{question(i)} yes no maybe" for i in range(200)], settings)
    save_model(new_model(settings, tokenizer), tokenizer, folder / "base")
    chats = [[{"role": "user", "content": question(i)}, {"role": "assistant", "content": WORDS[i % 3]}] for i in range(120)]
    write_rows(folder / "chats", "train", chats)
    given = {"steps": 80, "tokens_per_step": 1_024, "max_length": 128, "learning_rate": 3e-3, "precision": "float32"}
    inputs = {"model": folder / "base", "dataset": folder / "chats"}
    sft.run(Job(operation="sft", inputs=inputs, output=folder / "start", settings=given), Progress())
    write_prompts(folder / "prompts")
    return folder


def run(start, output, sampling=None, progress=None, prompts="prompts", **settings):
    given = {**SETTINGS, "on_policy": {**SAMPLING, **(sampling or {})}, **settings}
    inputs = {"model": start / "start", "prompts": start / prompts}
    return preference.run(Job(operation="preference", inputs=inputs, output=output, settings=given), progress or Progress())


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def said(*texts):
    return [GradedAnswer(text, {"content": text}) for text in texts]


def test_the_best_whole_answer_is_chosen_and_the_worst_of_all_rejected():
    answers = said("a", "b", "c", "d")
    whole, cut_best = [True] * 4, [True, True, True, False]
    assert best_and_worst([0.5, 1.0, 0.0, 1.0], answers, whole, 0.0) == [1, 2]
    assert best_and_worst([0.5, 0.4, 0.3, 1.0], answers, cut_best, 0.0) == [0, 2]
    assert best_and_worst([0.5, 0.4, 0.3, 0.1], answers, cut_best, 0.0) == [0, 3]
    assert best_and_worst([None, 0.4, None, 0.1], answers, whole, 0.0) == [1, 3], "no grade is not 0"


def test_prompts_without_a_pair_say_why():
    answers = said("a", "b", "a")
    assert best_and_worst([1.0, 1.0, 1.0], answers, [True] * 3, 0.0) == TIES
    assert best_and_worst([1.0, 0.9, 0.8], answers, [True] * 3, 0.2) == TIES
    assert best_and_worst([1.0, 0.8, 0.9], answers, [True] * 3, 0.1) == [0, 1]
    assert best_and_worst([1.0, None, 0.0], answers, [True] * 3, 0.0) == TIES, "equal texts, whatever a judge said"
    assert best_and_worst([1.0, None, None], answers, [True] * 3, 0.0) == UNGRADED
    assert best_and_worst([1.0, 0.0, None], answers, [False, False, True], 0.0) == NO_END


def test_it_learns_what_the_grader_likes(start, tmp_path):
    found = run(start, tmp_path / "out", {"prompts_per_step": 8}, steps=30)
    assert found["last_grade"] > found["first_grade"] + 0.25
    assert found["sampled_answers"] == 4 * found["sampled_prompts"] == 4 * 8 * 30
    assert found["pairs"] + found[TIES] + found[NO_END] + found[UNGRADED] == found["sampled_prompts"]
    rows = pq.read_table(tmp_path / "out" / "sampled.parquet").to_pylist()
    assert len(rows) == found["sampled_answers"] and {row["step"] for row in rows} == set(range(0, 30, 2))
    sides = [row["side"] for row in rows]
    assert sides.count("chosen") == sides.count("rejected") == found["pairs"]
    chosen = {(row["step"], row["row_id"]): row["grade"] for row in rows if row["side"] == "chosen"}
    assert all(chosen[row["step"], row["row_id"]] > row["grade"] for row in rows if row["side"] == "rejected")
    assert {row["parts"][0] for row in rows} == {("verifier", 0.0), ("verifier", 1.0)}


def test_a_function_of_trl_knows_the_step_and_the_tokens(start, tmp_path):
    (tmp_path / "rewards.py").write_text(
        "def step(completions, completion_ids, trainer_state, **kwargs):\n"
        "    return [{'score': sum(ids), 'at': trainer_state.global_step, 'of': trainer_state.max_steps, 'n': len(ids)}\n"
        "            for ids in completion_ids]\n"
    )
    run(start, tmp_path / "out", {"grader": f"{tmp_path / 'rewards.py'}:step"}, steps=4)
    rows = pq.read_table(tmp_path / "out" / "sampled.parquet").to_pylist()
    assert {row["step"] for row in rows} == {0, 2}
    parts = [dict(row["parts"]) for row in rows]
    assert [(part["step.at"], part["step.of"], part["step.n"]) for part in parts] == [(r["step"], 4, r["tokens"]) for r in rows]


COUNTING = """
from pathlib import Path

def grade(answer, columns):
    with Path({calls!r}).open("a") as file:
        file.write("x")
    if Path({broken!r}).exists():
        raise SystemExit
    return len(answer) + (answer == columns["answer"])
"""


def test_a_killed_run_pays_for_nothing_twice_and_ends_with_the_same_weights(start, tmp_path, monkeypatch):
    calls, broken = tmp_path / "calls", tmp_path / "broken"
    (tmp_path / "rewards.py").write_text(COUNTING.format(calls=str(calls), broken=str(broken)))
    by = {"grader": f"{tmp_path}/rewards.py:grade"}
    found = run(start, tmp_path / "whole", by)
    paid = len(calls.read_text())
    assert paid == found["sampled_answers"]
    calls.unlink()

    with pytest.raises(Stopped):  # within a round, whose answers are not those of the weights at which it goes on
        run(start, tmp_path / "cut", by, progress=StopAfter(3))
    log = tmp_path / "cut" / ".work" / "sampled.jsonl"

    def dies(self, groups):
        raise KeyboardInterrupt  # after the answers, before their grades

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Grader, "grade", dies)
        run(start, tmp_path / "cut", by)
    with log.open("ab") as file:
        file.write(b'{"key": "2:1:0", "roll')  # the line that the kill cut short
    again = run(start, tmp_path / "cut", by)
    assert again["resumed_from"] == 4 and len(calls.read_text()) == paid
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert log.read_bytes() == (tmp_path / "whole" / ".work" / "sampled.jsonl").read_bytes()
    tables = [pq.read_table(tmp_path / name / "sampled.parquet") for name in ("cut", "whole")]
    assert tables[0].equals(tables[1])


def test_graders_that_say_nothing_stop_the_training(start, tmp_path):
    later = f"import os\n\ndef later(answer):\n    with open('{tmp_path}/asked', 'a') as file:\n        file.write('x')\n"
    later += f"    return len(answer) if os.path.getsize('{tmp_path}/asked') < 60 else 0.25\n\n"
    (tmp_path / "rewards.py").write_text(
        later
        + "def same(answer):\n    return 1\n\ndef nothing(answer):\n    return None\n\ndef fails(answer):\n    raise ValueError(answer)\n"
    )
    for function, sentence in (
        (
            "same",
            "none of 48 prompts gave a better and a worse answer .ties 48, mean grade 1.: choose prompts that the model answers well "
            "sometimes, or raise on_policy.answers, temperature or max_new_tokens$",
        ),
        ("later", "none of .* .ties .*, mean grade 0.2.*; `steps: [24]` ends before that$"),
        ("nothing", "none of 48 prompts gave a better and a worse answer .ungraded_prompts 48.: the grader gave hardly any"),
        ("fails", r"the grader failed on \d+ of \d+ answers: \d+ times fails: raised ValueError in line 15 .rows p\d"),
    ):
        with pytest.raises(ModelError, match=sentence):
            run(start, tmp_path / function, {"grader": f"{tmp_path}/rewards.py:{function}"})


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_reference_stays_the_start_and_the_newest_weights_answer(start, tmp_path, monkeypatch, method):
    """The batches that the trainer gets, against a model read anew; and the model that answers, against the one that is saved."""
    base, seen, step = load_model(start / "start"), [], SampledPairPlan.step

    def kept(plan, index, *ranks):
        batches = step(plan, index, *ranks)
        seen.append((index, batches))
        monkeypatch.setattr(SampledPairPlan, "newest", plan, raising=False)
        return batches

    monkeypatch.setattr(SampledPairPlan, "step", kept)
    found = run(start, tmp_path / "out", method=method, learning_rate={"full": 3e-3, "lora": 2e-2}[method])
    assert found["steps"] == 6 and [index for index, _ in seen] == list(range(6))
    for _, batches in seen:
        for batch in batches:
            with torch.no_grad():
                nll, labels = token_nll(base, batch)
            np.testing.assert_allclose(batch.reference[labels].numpy(), -nll.numpy(), atol=1e-5)
            pairs = [bool(chosen) for chosen in batch.desirable]
            assert pairs == [True, False] * (len(pairs) // 2)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["margin"] == 0.0 == lines[0]["kl"] and lines[-1]["kl"] > 0

    rounds = SampledPairPlan.newest.rounds
    prompts = [prompt.ids for prompt in rounds.prompts[:4]]
    rounds._engine.sync(6)
    answers = rounds._engine.sample([np.array(prompt) for prompt in prompts], list("abcd"), 0)
    saved = load_model(tmp_path / "out")
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer.tokens.tolist()])
        with torch.no_grad():
            ours, theirs = rounds._engine._twin(ids).logits, saved(ids).logits
        torch.testing.assert_close(ours, theirs, atol=0.15, rtol=0)
        with torch.no_grad():
            assert (base(ids).logits - theirs).abs().max() > 2e-1


def test_a_pair_s_document_holds_the_sampled_tokens_and_no_other_target(start, tmp_path, monkeypatch):
    documents = []
    make = SampledPairPlan._document

    def kept(plan, pair):
        documents.append((pair, make(plan, pair)))
        return documents[-1][1]

    monkeypatch.setattr(SampledPairPlan, "_document", kept)
    run(start, tmp_path / "out", steps=2)
    for pair, document in documents:
        masks = answer_masks(document)
        for tokens, mask in zip((pair.chosen, pair.rejected), masks, strict=True):
            assert document.input_ids[mask].tolist() == tokens.tolist()


def test_prompts_of_preference_rows_bring_their_chosen_answer(start, tmp_path):
    tokenizer = load_tokenizer(start / "start")
    asked = json.dumps([{"role": "user", "content": "2 + 2?"}])
    rows = [
        {"row_id": name, "prompt": prompt, "tools": None, "chosen": json.dumps([{"role": "assistant", "content": "4"}]), "reason": "edited"}
        for name, prompt in (("a", asked), ("b", asked), ("c", json.dumps([{"role": "user", "content": "x" * 500}])))
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    (prompt,), counts = read_sampled_prompts(tmp_path, tokenizer, 64)
    assert prompt.row_id == "a" and prompt.columns["chosen"]["content"] == "4" and prompt.columns["reason"] == "edited"
    assert counts == {"repeated_prompts": 1, "unrenderable_prompts": 0, "long_prompts": 1}
    states = [{"kind": "record", "record": {"seed": seed}} for seed in (1, 2, 2)]
    games = [{"row_id": f"g{n}", "messages": asked, "verifier": json.dumps(state)} for n, state in enumerate(states)]
    (tmp_path / "games").mkdir()
    pq.write_table(pa.Table.from_pylist(games), tmp_path / "games/train.parquet")
    played, counts = read_sampled_prompts(tmp_path / "games", tokenizer, 64)
    assert [each.row_id for each in played] == ["g0", "g1"] and counts["repeated_prompts"] == 1, "each record is a state"
    with pytest.raises(ModelError, match=r"no prompt that leaves room for answers .*long_prompts 3"):
        read_sampled_prompts(tmp_path, tokenizer, 2)
    pq.write_table(pa.Table.from_pylist([{**rows[0], "prompt": "no json"}]), tmp_path / "train.parquet")
    with pytest.raises(ModelError, match="a column of row a is not JSON text"):
        read_sampled_prompts(tmp_path, tokenizer, 64)
    with pytest.raises(ModelError, match="cannot be read as Parquet"):
        read_sampled_prompts(tmp_path / "absent", tokenizer, 64)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"loss": "kto"}, "kto needs all rows before"),
        ({"rows": "pairs"}, "nothing reads rows"),
        ({"on_policy": {**SAMPLING, "answers": 1}}, "greater than or equal to 2"),
        ({"on_policy": {**SAMPLING, "grader": "unknown"}}, "no grader is called so"),
        (
            {"on_policy": {**SAMPLING, "max_new_tokens": 300}, "max_length": 256},
            "leaves no room for a prompt in max_length 256",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        PreferenceTuningSettings.model_validate({"on_policy": SAMPLING, **given})


def test_the_heaviest_micro_batch_holds_no_more_pairs_than_a_step(start):
    tokenizer = load_tokenizer(start / "start")
    prompts = read_sampled_prompts(start / "prompts", tokenizer, 256)[0]

    def pairs(steps, sync_steps):
        sampling = {**SAMPLING, "prompts_per_step": 2, "sync_steps": sync_steps}
        settings = PreferenceTuningSettings(**{**SETTINGS, "steps": steps}, on_policy=sampling).resolved()
        rounds = SimpleNamespace(prompts=prompts, settings=settings.on_policy)
        plan = SampledPairPlan(rounds, torch.nn.Linear(1, 1), settings, World.alone(torch.device("cpu")), True, False)
        plan._held = (
            1,
            [plan._document(SampledPair(prompts[0], np.array([1]), np.array([2])))] * (2 * sync_steps + sync_steps - 1),
        )
        return len(plan.heaviest().row_ids), sum(len(batch.row_ids) for batch in plan.step(sync_steps))

    assert pairs(steps=6, sync_steps=2) == (3, 2), "of five pairs the first step has two, the second one three"
    assert pairs(steps=4, sync_steps=3) == (8, 8), "the last round has one step"
