"""Steps that a student answers by itself: which ones, from which prompts, with which weights, and that they teach."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stop_after import StopAfter
from tiny_models import run_job, tiny_model

from model_ops.answers import InProcessEngine, Sampled
from model_ops.documents import Branch, Document, PackedPlan
from model_ops.jobs import Job, Progress, Stopped
from model_ops.objectives.distillation import OnPolicyPlan, SampledBatch, answer_starts, drawn_prompt, sampled_steps
from model_ops.objectives.on_policy_settings import OnPolicySettings
from model_ops.operations import StudentSettings, distill

SETTINGS = {"steps": 8, "learning_rate": 3e-3, "tokens_per_step": 512, "max_length": 128, "checkpoint_every": 2, "layers": 2}


def document(name="r", targets=(4, 5, 9), length=12, branches=()):
    mask = np.zeros(length, bool)
    mask[list(targets)] = True
    return Document(name, np.arange(100, 100 + length), mask, branches=branches)


def test_sampled_steps_follow_share_and_after():
    assert sampled_steps(100, OnPolicySettings(share=0.0), 0) == frozenset()
    assert sampled_steps(100, OnPolicySettings(share=1.0, after=0.3), 0) == frozenset(range(30, 100))
    some = sampled_steps(4_000, OnPolicySettings(share=0.25, after=0.5), 7)
    assert min(some) >= 2_000 and 400 < len(some) < 600
    assert some == sampled_steps(4_000, OnPolicySettings(share=0.25, after=0.5), 7)


def test_a_prompt_is_the_text_before_one_of_the_answers():
    seen = {tuple(drawn_prompt(document(), np.random.default_rng(seed))) for seed in range(20)}
    assert seen == {tuple(range(100, 104)), tuple(range(100, 109))}
    assert drawn_prompt(document(targets=()), np.random.default_rng(0)) is None


def test_a_branch_s_prompt_holds_the_trunk_before_it():
    """Tokens 0 to 7 are the trunk; the branch at 5 has tokens 8 to 11, of which the last two are the answer."""
    each = document(targets=(6, 7, 10, 11), branches=(Branch(5, 4),))
    assert list(answer_starts(each)) == [(0, 0, 6), (5, 8, 10)]
    prompts = {tuple(drawn_prompt(each, np.random.default_rng(seed))) for seed in range(20)}
    assert prompts == {tuple(range(100, 106)), (100, 101, 102, 103, 104, 108, 109)}


def plan(**changes):
    settings = StudentSettings(**SETTINGS | {"steps": 6, "tokens_per_step": 64, "max_length": 20}).resolved()
    on_policy = OnPolicySettings(**{"share": 1.0, "after": 0.5, **changes})
    asked = []

    def sample(prompts, names, seed):
        asked.append((prompts, names, seed))
        return [Sampled(np.full(30, 7, np.int32), np.zeros(30, np.float32), 0, False) for _ in prompts]

    packed = PackedPlan([document(f"r{i}") for i in range(9)], settings)
    engine = SimpleNamespace(sync=lambda version: None, sample=sample)
    return OnPolicyPlan(packed, engine, on_policy, 20), packed, asked


def test_sampled_steps_hold_the_student_s_answers_and_learn_nothing_else():
    mixed, packed, asked = plan()
    assert [type(batch).__name__ for index in range(6) for batch in mixed.step(index)] == ["Batch"] * 3 + ["SampledBatch"] * 3
    (batch,) = mixed.step(4)
    prompts, names, _ = asked[-1]
    assert isinstance(batch, SampledBatch) and len(prompts) == len(packed.documents_of(4)) == len(batch.document_lengths)
    assert set(names) == {f"4:{place}" for place in range(len(prompts))}
    assert batch.document_lengths == [20] * len(prompts)  # answers are cut where prompt and answer are as long as allowed
    learnt = batch.labels[batch.labels != -100]
    assert (learnt == 7).all() and len(learnt) == sum(20 - len(prompt) for prompt in prompts)


def test_the_sampler_answers_with_the_student_s_present_weights():
    student = tiny_model(vocab_size=96)
    settings = OnPolicySettings(share=1.0, max_new_tokens=6)

    def answers(engine, seed):
        engine.sync(0)
        prompts = [np.array(prompt) for prompt in ([5, 6, 7], [8, 9, 10, 11])]
        return [answer.tokens.tolist() for answer in engine.sample(prompts, ["a", "b"], seed)]

    engine = InProcessEngine(student, {2}, settings)
    first = answers(engine, 0)
    assert answers(engine, 0) == first != answers(engine, 1)
    other = tiny_model(vocab_size=96, seed=5)
    with torch.no_grad():
        for mine, new in zip(student.parameters(), other.parameters(), strict=True):
            mine.copy_(new)
    assert answers(engine, 0) == answers(InProcessEngine(other, {2}, settings), 0) != first


@pytest.fixture(scope="module")
def teacher(tiny_model, chats, tmp_path_factory):
    from model_ops.operations import sft

    output = tmp_path_factory.mktemp("teacher")
    run_job(
        sft, output, {"model": tiny_model, "dataset": chats}, steps=15, learning_rate=1e-2, tokens_per_step=512, max_length=128
    )
    return output


def job(teacher, chats, output, **changes):
    return Job(
        operation="distill",
        output=output,
        inputs={"teacher": teacher, "dataset": chats},
        settings={**SETTINGS, "on_policy": {"share": 1.0, "after": 0.5, "max_new_tokens": 12}, **changes},
    )


def test_a_student_learns_where_it_answers_by_itself(teacher, chats, tmp_path):
    distill.run(job(teacher, chats, tmp_path, steps=24), Progress())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["sampled_kl"] is None and line["kl"] > 0 for line in lines[:12])
    assert all(line["kl"] is None for line in lines[12:])
    sampled = [line["sampled_kl"] for line in lines[12:]]
    assert sum(sampled[-4:]) < sum(sampled[:4])


def test_a_stopped_run_samples_the_same_text_again(teacher, chats, tmp_path):
    distill.run(job(teacher, chats, tmp_path / "whole"), Progress())

    with pytest.raises(Stopped):
        distill.run(job(teacher, chats, tmp_path / "cut"), StopAfter(6, "distill"))
    distill.run(job(teacher, chats, tmp_path / "cut"), Progress())
    from safetensors.torch import load_file

    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({"preset": "quick"}, 0.0), ({}, 0.0), ({"preset": "thorough"}, 1.0),
        ({"preset": "thorough", "base": "/models/small"}, 1.0), ({"preset": "thorough", "on_policy": {"share": 0.25}}, 0.25),
        ({"preset": "thorough", "mesh": {"dp_shard": 2}}, 0.0), ({"preset": "thorough", "teacher": "cache"}, 0.0),
        ({"preset": "thorough", "teacher": "answers"}, 0.0), ({"preset": "thorough", "label_weight": 1.0}, 0.0),
    ],
)  # fmt: skip
def test_the_thorough_preset_samples_the_second_half_where_it_can(given, share):
    resolved = StudentSettings(**given).resolved()
    assert (resolved.on_policy.share, resolved.on_policy.after) == (share, 0.5)
    assert StudentSettings(**resolved.model_dump()).resolved() == resolved


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mesh": {"dp_shard": 2}}, "leave mesh out"),
        ({"label_weight": 1.0}, "label_weight is 1"),
        ({"beta": 1.5}, "less than or equal to 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        StudentSettings(**{"on_policy": {"share": 0.5}, **changes})
