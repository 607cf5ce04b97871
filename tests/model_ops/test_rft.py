"""Reinforcement fine-tuning: what a step holds, that it learns, and that a killed run pays for nothing twice and ends with the same
weights. The model is random, and is rewarded for answers with a digit."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import write_target

from model_ops.answers import InProcessEngine, Rollout, RolloutLog, Sampled, SampledPrompt, read_sampled_prompts
from model_ops.graders import Grade
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models import load_tokenizer
from model_ops.models.model_directory import load_model
from model_ops.operations import rft
from model_ops.parallel import World
from model_ops.reinforcement.advantages import run_counts
from model_ops.reinforcement.held_out_rollouts import doubts
from model_ops.reinforcement.policy_loss import PolicyLoss, SampledTokens, grpo
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.rollout_batches import LearntRollout, group_documents, nothing_learnt, rollout_batches
from model_ops.reinforcement.rollout_groups import chunk_groups, learnt_groups, penalised_grade, round_numbers, scale_and_share
from model_ops.reinforcement.rollout_plan import RolloutPlan
from model_ops.reinforcement.rollout_watch import teach_nothing
from model_ops.reinforcement.round_asker import PromptPool

SETTINGS = {"grader": "verifier", "steps": 12, "learning_rate": 3e-3, "prompts_per_step": 4, "answers": 8, "max_new_tokens": 5,
    "max_length": 64, "precision": "float32", "overlong": "none", "held_out_prompts": 4, "held_out_answers": 8,
    "checkpoint_every": 1}  # fmt: skip


def write_prompts(folder, train=24, **verifier):
    folder.mkdir(parents=True)
    for split, numbers in (("train", range(train)), ("validation", range(100, 106))):
        rows = [
            {
                "row_id": f"p{i}",
                "messages": json.dumps([{"role": "user", "content": f"say {i}" + " again" * (i % 3)}]),
                "verifier": json.dumps(verifier or {"kind": "regex", "pattern": "[0-9]"}),
            }
            for i in numbers
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rft")
    write_target(folder / "model", layers=2, vocab_size=300)
    write_prompts(folder / "prompts")
    return folder


def run(start, output, progress=None, prompts="prompts", **settings):
    inputs = {"model": start / "model", "prompts": start / prompts}
    return rft.run(
        Job(operation="rft", inputs=inputs, output=output, settings={**SETTINGS, **settings}), progress or Progress()
    )


class Told(Progress):
    """Keeps what is said, and asks for a stop after a step."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.said, self.stop_at = [], stop_at

    def event(self, kind, **about):
        self.said.append(about.get("message", ""))

    def report(self, phase, done, total, unit, **numbers):
        self.stop_requested = phase == "rft" and done == self.stop_at


def test_a_training_says_steps_prompts_and_grades(start, tmp_path):
    stream = io.StringIO()
    run(start, tmp_path / "out", Progress(stream, interval_s=0), steps=3, batch_size=16)
    of_rft = [event for line in stream.getvalue().splitlines() if (event := json.loads(line)).get("phase") == "rft"]
    assert {event["event"] for event in of_rft} == {"progress"} and {event["total"] for event in of_rft} == {3}
    parts = [event["part"] for event in of_rft if event.get("part")]
    assert parts == 3 * ["rollouts 0 of 4 prompts", "rollouts 2 of 4 prompts"]
    last = [event for event in of_rft if event.get("part")][-1]
    assert last["done"] == 2 and 0 <= last["pass_rate"] == last["reward"] <= 1 and last["sampled_per_second"] > 0
    step = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()][-1]
    ended = [event for event in of_rft if "tokens_per_second" in event][-1]
    assert (ended["done"], ended["pass_rate"], ended["reward"]) == (3, step["pass_rate"], step["reward"])


@pytest.mark.parametrize(
    ("rate", "cut", "settings", "said"),
    [
        (0.5, 0.4, {}, []),
        (0.0, 0.6, {"overlong": "none"}, ["0% of the answers pass"]),
        (0.3, 0.6, {"overlong": "mask"}, ["60% of the answers are cut at max_new_tokens 5"]),
        (0.99, 0.0, {}, ["99% of the answers pass"]),
    ],
)
def test_a_start_from_which_little_is_learnt_is_doubted(rate, cut, settings, said):
    found = doubts({"validation_pass_rate": rate, "validation_cut": cut}, RftSettings.model_validate({**SETTINGS, **settings}))
    assert [words.removeprefix("before the first step ").partition(",")[0].partition(":")[0] for words, _ in found] == said


def test_a_run_and_a_check_say_of_one_start_the_same(start, tmp_path):
    write_prompts(tmp_path / "never", kind="regex", pattern="no answer holds this")
    settings = RftSettings.model_validate(SETTINGS).resolved()
    numbers = rft.measure_start(start / "model", tmp_path / "never", settings)
    assert numbers["validation_pass_rate"] == 0 and numbers["validation_cut"] > 0
    told = Told()
    rft.run(
        Job(operation="rft", inputs={"model": start / "model", "prompts": tmp_path / "never"}, output=tmp_path / "out",
            settings={**SETTINGS, "steps": 1}), told
    )  # fmt: skip
    [warned] = [said for said in told.said if "before the first step" in said and "pass" in said]
    assert "choose easier prompts" in warned
    numbers = rft.measure_start(start / "model", start / "prompts", settings)
    assert 0.02 < numbers["validation_pass_rate"] < 0.98 and not list(doubts(numbers, settings))


ADAPTER = {"learning_rate": 3e-2, "kl": 0.01, "loss": "cispo"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"method": "lora", **ADAPTER}, pytest.param({"method": "qlora", **ADAPTER}, marks=pytest.mark.thorough)],
    ids=["full", "lora", "qlora"],
)
def test_it_learns_what_the_verifier_likes(start, tmp_path, settings):
    if settings.get("method") == "qlora":
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install millrace[qlora]")
    found = run(start, tmp_path / "out", **settings)
    assert found["last_grade"] > found["first_grade"] + 0.2
    assert found["validation_pass_rate"] > found["before_validation_pass_rate"] + 0.2
    rows = pq.read_table(tmp_path / "out" / "rollouts.parquet").to_pylist()
    assert len(rows) == found["rollouts"] == 12 * 4 * 8
    assert [row["version"] for row in rows] == [row["step"] for row in rows] == [s for s in range(12) for _ in range(32)]
    passed = {row["row_id"] for row in rows if row["grade"] >= 1}
    assert found["never_passed_prompts"] == len({row["row_id"] for row in rows} - passed)
    assert {row["parts"][0] for row in rows} == {("verifier", 0.0), ("verifier", 1.0)}
    learnt = [row for row in rows if row["learnt"]]
    assert len(learnt) == found["learnt_rollouts"] and all(0 <= row["gap"] < 1e-4 for row in learnt)
    steps = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    taught = [line for line in steps if line["equal_groups"] < 1]
    assert len(steps) == 12 and all(line["canary_gap"] < 1e-4 for line in steps) and all(line["gap"] < 1e-4 for line in taught)
    assert steps[0]["reward"] == steps[0]["reward_verifier"] == pytest.approx(found["first_grade"])
    assert all(abs(line["effective"] - 1) < 1e-4 and line["outside"] == 0 for line in taught)
    assert ("kl" in steps[0]) == bool(settings) and (not settings or steps[0]["kl"] < 1e-6 < taught[-1]["kl"])


def test_a_killed_run_grades_nothing_twice_and_ends_with_the_same_weights(start, tmp_path, monkeypatch):
    calls = []
    graded = rft.Grader.grade
    monkeypatch.setattr(rft.Grader, "grade", lambda self, groups: calls.append(len(groups)) or graded(self, groups))
    short = {"steps": 5, "sync_steps": 2, "batch_size": 24, "held_out_prompts": 0, "temperature": 0.7}  # in the canary, too
    run(start, tmp_path / "whole", **short)
    whole, calls[:] = list(calls), []
    with pytest.raises(Stopped):
        run(start, tmp_path / "killed", Told(stop_at=3), **short)
    text = (tmp_path / "killed/.work/rollouts.jsonl").read_bytes()
    (tmp_path / "killed/.work/rollouts.jsonl").write_bytes(text + b'{"round": 9, "cut')
    run(start, tmp_path / "killed", **short)
    assert calls == whole == [3, 3, 2, 3, 3, 2, 3, 1], "groups of a chunk; the last round has one step"
    for name in ("model.safetensors", "rollouts.parquet"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("settings", "verifier", "said"),
    [
        ({}, {"kind": "number"}, "none of the 32 first answers has a grade: its rows bring nothing"),
        ({"max_new_tokens": 256, "max_length": 512}, {}, "max_new_tokens 256 leaves no room for a prompt in 256 tokens"),
    ],
)
def test_what_cannot_teach_is_refused_in_one_sentence(start, tmp_path, settings, verifier, said):
    write_prompts(start / tmp_path.name, train=4, **verifier)
    with pytest.raises(ModelError, match=said):
        run(start, tmp_path / "out", prompts=tmp_path.name, held_out_prompts=0, **settings)


def test_rounds_that_teach_nothing_warn_and_change_no_weight_by_a_gradient(start, tmp_path):
    write_prompts(start / "all", train=4, kind="regex", pattern=".*")
    told = Told()
    found = run(start, tmp_path / "equal", told, prompts="all", steps=5, weight_decay=0.0, held_out_prompts=0)
    assert found["equal_groups"] == 20 and found["learnt_rollouts"] == 0 and found["loss"] == 0
    before, after = (load_model(place).state_dict() for place in (start / "model", tmp_path / "equal"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    [warning] = [text for text in told.said if "rounds in a row" in text]
    assert warning.startswith("rft: 5 rounds in a row taught almost nothing (0 of 4") and "all as good" in warning
    told = Told()
    found = run(
        start, tmp_path / "cut", told, prompts="prompts", steps=5, overlong="mask", max_new_tokens=1, held_out_prompts=0
    )
    assert any("answers are cut: raise max_new_tokens" in text for text in told.said)
    told = Told()
    run(start, tmp_path / "few", told, prompts="prompts", steps=2, overlong="mask", max_new_tokens=1, held_out_prompts=0)
    [warning] = [text for text in told.said if "no answer was learnt" in text]
    assert "of 64 answers 64 were cut" in warning and "0 had no grade" in warning, "of a run too short for rounds in a row"


STEPS = """
def step(completions, completion_ids, trainer_state, **kwargs):
    state = {"at": trainer_state.global_step, "of": trainer_state.max_steps, "epoch": trainer_state.epoch}
    return [{"score": float(len(ids)), **state} for ids in completion_ids]

def held_out(completions, trainer_state, **kwargs):
    with open(__file__ + ".steps", "a") as file:
        file.write(f"{trainer_state.global_step}\\n")
    return [float(len(completion)) for completion in completions]
"""


def test_a_function_of_trl_knows_the_step_and_the_tokens(start, tmp_path):
    (tmp_path / "rewards.py").write_text(STEPS)
    by, told = f"{tmp_path / 'rewards.py'}", Told()
    given = {"epochs": 0.5, "steps": None, "grader": f"{by}:step", "held_out_grader": f"{by}:held_out", "answers": 4}
    run(start, tmp_path / "out", told, **given)
    rows = pq.read_table(tmp_path / "out" / "rollouts.parquet").to_pylist()
    assert {row["step"] for row in rows} == {0, 1, 2}
    for row in rows:
        at = {"step.at": row["step"], "step.of": 3, "step.epoch": row["step"] * 4 / 24}
        assert dict(row["parts"]) == {"step": row["tokens"], "step.score": row["tokens"], **at}
    steps = [int(line) for line in (tmp_path / "rewards.py.steps").read_text().split()]
    assert steps == sorted([0, 1, 2, 3] * 4), "held-out answers know the steps that were made"
    [note] = [text for text in told.said if "rewards.py:held_out" in text]
    assert note.startswith("rft.held_out_grader: rewards.py:held_out gets completions as text, which its source reads")


def test_a_grader_that_gives_one_grade_to_all_answers_is_named(start, tmp_path):
    (tmp_path / "rewards.py").write_text("def boolean(prompt, answer, columns):\n    return True\n")
    grader, told = {"parts": {"boolean": {"by": f"{tmp_path / 'rewards.py'}:boolean"}}}, Told()
    run(start, tmp_path / "out", told, grader=grader, steps=1, held_out_prompts=0)
    [warning] = [text for text in told.said if "no answer was learnt" in text]
    assert "`grader` rewards.py:boolean gave 1 to all 32 answers, and equal grades teach nothing" in warning
    assert "harder prompts" in warning and "max_new_tokens" not in warning
    two = rft.RftSettings(grader={"parts": {"a": {"by": "number"}, "b": {"by": "length"}}})
    counts = {"rollouts": 8, "cut_rollouts": 3, "ungraded_rollouts": 2, "equal_groups": 2, "asked_prompts": 2}
    said = rft.nothing_learnt(counts, [0.0] * 6, two)
    assert "`grader` number and length gave 0 to all 6 answers" in said and "3 answers were cut: raise max_new_tokens" in said
    assert "in 2 of 2 groups all grades were equal" in rft.nothing_learnt(counts, [0.0, 0.0, 1.0], two)
    assert "`environment` envs.py:Shop gave 1" in rft.nothing_learnt(
        counts, [1.0], rft.RftSettings(environment="/a/envs.py:Shop")
    )


def test_nine_prompts_of_ten_that_teach_nothing_are_a_silent_round():
    assert teach_nothing(1, 10) and teach_nothing(0, 1) and not teach_nothing(2, 10)


def test_answers_of_other_weights_are_refused_and_not_learnt_by_the_next_try_either(start, tmp_path, monkeypatch):
    sample = InProcessEngine.sample
    monkeypatch.setattr(
        InProcessEngine,
        "sample",
        lambda self, *asked: [replace(each, log_probs=each.log_probs - 1e-3) for each in sample(self, *asked)],
    )
    for _ in range(2):
        with pytest.raises(ModelError, match=r"round 0: the engine gave tokens .* nothing was learnt from this round"):
            run(start, tmp_path / "out", steps=2, held_out_prompts=0)
    assert RolloutLog(tmp_path / "out/.work/rollouts.jsonl").chunks == []
    monkeypatch.undo()
    assert run(start, tmp_path / "out", steps=2, held_out_prompts=0)["steps"] == 2


def rollout(prompt, tokens, grade=1.0, sampled=None, logs=None):
    tokens, whole = np.array(tokens, np.int32), np.ones(len(tokens), bool)
    logs = np.arange(len(tokens), dtype=np.float32) if logs is None else np.array(logs, np.float32)
    answer = Rollout.of(np.array(prompt, np.int32), Sampled(tokens, logs, 3, True), Grade(grade))
    return answer if sampled is None else replace(answer, sampled=whole & np.array(sampled, bool))


@pytest.mark.parametrize("shares", [True, False])
def test_a_group_s_document_computes_each_rollout_as_if_it_stood_alone(start, shares):
    model = load_model(start / "model")
    group = [rollout([5, 6, 7], [8, 9, 2]), rollout([5, 6, 7], [11, 12], sampled=[1, 0]), rollout([5, 7], [9, 2])]
    learnt = [LearntRollout(each, place, place - 1.0, 1.0, 1.0) for place, each in enumerate(group)]
    documents = list(group_documents("p", learnt, shares, most_tokens=100))
    assert len(documents) == (2 if shares else 3)
    [batch] = rollout_batches(documents, 100, {})
    nll, kept = token_nll(model, batch)
    owners = batch.owners[kept].tolist()
    assert sorted(owners) == [0, 0, 0, 1, 2, 2]
    for place, each in enumerate(group):
        mine = torch.tensor(owners) == place
        ids = torch.tensor([[*each.prompt, *each.tokens]])
        logits = model(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None], document_lengths=[ids.shape[1]]).logits[0]
        logs = logits[len(each.prompt) - 1 : -1].log_softmax(-1)[
            torch.arange(len(each.tokens)), torch.tensor(each.tokens).long()
        ]
        torch.testing.assert_close(-nll[mine], logs[torch.tensor(each.sampled)], rtol=0, atol=1e-5)
        assert batch.sampler[kept][mine].tolist() == each.log_probs[each.sampled].tolist()
        assert batch.advantages[kept][mine].tolist() == [place - 1.0] * int(each.sampled.sum())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_loss_is_the_mean_over_learnt_tokens_at_the_temperature_and_masks_leave_its_denominator(start, temperature):
    model = load_model(start / "model")

    def batch_with(logs):
        made = [LearntRollout(rollout([5, 6], [8, 9, 2], logs=logs), n, 1.5 - n, 1.0, 1.0) for n in range(2)]
        return rollout_batches(list(group_documents("p", made, True, 99)), 99, {"reward": (3.0, 4.0)})[0]

    own = -token_nll(model, batch_with([0, 0, 0]), temperature)[0][:3]
    batch = batch_with((own - torch.tensor([0.1, 1.0, 2.0])).tolist())
    nll, kept = token_nll(model, batch, temperature)
    plain, _ = token_nll(model, batch)
    assert (temperature == 1.0) == bool(torch.allclose(nll, plain))
    tokens = SampledTokens(-nll, batch.sampler[kept], batch.advantages[kept], batch.owners[kept], 2)
    ratio = tokens.log_ratio.exp()
    inside = (ratio >= 0.5) & (ratio <= 5.0)
    found = PolicyLoss("grpo", {}, "icepop", 0.0, temperature)(model, batch)
    assert inside.tolist() == 2 * [True, True, False]
    torch.testing.assert_close(found.terms["loss"].sum, (grpo(tokens) * inside).sum())
    assert found.terms["loss"].count == inside.sum() and found.metrics["reward"].sum / found.metrics["reward"].count == 0.75
    means = {name: float(mean.sum / mean.count) for name, mean in found.metrics.items()}
    logged = {
        "entropy": nll.mean(), "gap": tokens.log_ratio.abs().mean(), "gap_k3": (ratio - 1 - ratio.log()).mean(),
        "effective": ratio.sum() ** 2 / (6 * (ratio**2).sum()), "outside": 1 / 3, "corrected": 1 / 3, "unscored": 0,
    }  # fmt: skip
    assert {name: means[name] for name in logged} == {
        name: pytest.approx(float(value), abs=1e-5) for name, value in logged.items()
    }
    blind = replace(batch, sampler=torch.full_like(batch.sampler, torch.nan))
    unscored = PolicyLoss("grpo", {}, "none", 0.0, temperature)(model, blind).metrics["unscored"]
    assert unscored.sum == unscored.count == 6
    empty = rollout_batches([nothing_learnt("p", np.array([5, 6, 7], np.int32))], 99, {})[0]
    nothing = PolicyLoss("gspo", {}, "icepop", 0.0, 1.0)(model, empty)
    assert nothing.terms["loss"].sum == 0 and 0 < nothing.terms["loss"].count < 1e-3


def test_the_loss_is_float32_also_under_autocast(start):
    """`precision: bfloat16` computes a loss under autocast, where a product with @ would be bfloat16."""
    model = load_model(start / "model")
    made = [LearntRollout(rollout([5, 6], [8, 9, 2], logs=[-1, -2, -3]), n, 1.5 - n, 1 / 37, 1 / 37) for n in range(2)]
    batch = rollout_batches(list(group_documents("p", made, True, 99)), 99, {})[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = PolicyLoss("grpo", {}, "none", 0.0, 1.0)(model, batch)
    assert found.terms["loss"].sum.dtype == torch.float32


def test_a_stale_engine_is_found_before_anything_is_learnt(start, tmp_path, monkeypatch):
    synced = InProcessEngine.sync
    monkeypatch.setattr(InProcessEngine, "sync", lambda self, version: synced(self, version) if self._runner is None else None)
    with pytest.raises(ModelError, match=r"round 1: the engine gave tokens log-probabilities .* other weights"):
        run(start, tmp_path / "out", steps=3, held_out_prompts=0)


def test_a_reward_that_rises_while_held_out_answers_do_not_is_told():
    def told(rose, gained):
        counts, after = {"first_grade": 0.2, "last_grade": 0.2 + rose}, {"validation_pass_rate": 0.5 + gained}
        return rft.looks_reward_hacked(counts, {"before_validation_pass_rate": 0.5}, after)

    assert told(0.3, 0.0) and not told(0.3, 0.1) and not told(0.05, 0.0)
    assert not rft.looks_reward_hacked({"first_grade": 0.2, "last_grade": 0.9}, {}, {})
    assert not told(0.3, float("nan")), "no held-out answer has a grade"
    before, flat, better = {"before_validation_pass_rate": 0.5}, {"validation_pass_rate": 0.5}, {"validation_pass_rate": 0.6}
    assert rft.dominating_part({"right": 0.1, "brief": 0.9}, before, flat) == "brief"
    assert (
        rft.dominating_part({"right": 0.3, "brief": 0.7}, before, flat)
        is None
        is rft.dominating_part({"brief": 0.9}, before, better)
    )
    assert rft.dominating_part({}, before, flat) is None is rft.dominating_part({"brief": 0.9}, {}, {})


def plan_of(folder, teaches, prompts=12, **settings):
    """A plan without a model: the two answers to a prompt differ in their grades where `teaches` says so of its number."""

    def rollouts(asked, names, engine, seed):
        return [
            [replace(rollout([5, 6], [7 + n, 2], grade=float(n and teaches(int(prompt.row_id)))), attempt=n) for n in range(2)]
            for prompt in asked
        ]

    given = {"grader": "verifier", "answers": 2, "prompts_per_step": 4, "max_new_tokens": 8, "max_length": 32, **settings}
    plan = RolloutPlan(
        [SampledPrompt(str(n), "", [5, 6], [], None, {}) for n in range(prompts)],
        [SimpleNamespace(answers=2, rollouts=rollouts)],
        SimpleNamespace(sync=lambda version: None, exact=True),
        RolloutLog(folder / "log.jsonl"),
        torch.nn.Linear(1, 1),
        SimpleNamespace(taken_gaps=dict),
        RftSettings(**given),
        World.alone(torch.device("cpu")),
        shares=False,
        longest=8,
        progress=Progress(),
    )
    plan.asker.canary = lambda rollouts, number: 0.0
    return plan


@pytest.mark.parametrize("replacements", [0, 1, 2])
def test_prompts_that_teach_nothing_are_replaced_up_to_a_bound(tmp_path, replacements):
    def asked(name, teaches):
        plan = plan_of(tmp_path / name, teaches, steps=1, replacements=replacements)
        learnt, numbers = plan.round(0)
        return len(learnt), numbers["asked_prompts"][0], numbers["equal_groups"], [len(c.prompts) for c in plan.log.chunks]

    assert asked("all", lambda prompt: True) == (4, 4, (0, 4), [4])
    assert asked("none", lambda prompt: False)[:3] == (0, 4 * (1 + replacements), (4 * (1 + replacements),) * 2)
    learnt, count, (equal, groups), chunks = asked("half", lambda prompt: prompt % 2)
    assert learnt == count - equal and groups == count and (learnt == 4 or count == 4 * (1 + replacements))
    assert chunks[0] == 4 and (replacements == 0 or count > 4)


def test_the_steps_of_a_round_learn_each_group_once(tmp_path):
    plan = plan_of(tmp_path, lambda prompt: True, steps=2, sync_steps=2, prompts_per_step=3)
    owners = [{int(n) for batch in plan.step(index) for n in batch.owners.unique()} - {-1} for index in range(2)]
    assert not owners[0] & owners[1] and owners[0] | owners[1] == set(range(12)) and len(owners[0]) == 6
    assert [plan.step(index)[0].numbers["asked_prompts"] for index in range(2)] == [(6.0, 1.0), (0.0, 0.0)]


@pytest.mark.parametrize("replacements", [0, 1, 5])
def test_the_steps_of_a_round_divide_by_the_prompts_that_they_shall_learn(tmp_path, replacements):
    """Six, with two answers of two tokens to each, however many teach."""
    plan = plan_of(tmp_path, lambda prompt: prompt % 2, steps=2, sync_steps=2, prompts_per_step=3, replacements=replacements)
    steps = [plan.step(index) for index in range(2)]
    assert sum(float(batch.shares.sum()) for step in steps for batch in step) == pytest.approx(24)


def test_the_heaviest_micro_batch_holds_no_more_than_a_step(tmp_path):
    plan = plan_of(tmp_path, lambda prompt: True, steps=1)
    heaviest, step = plan.heaviest(), plan.step(0)
    assert len(heaviest.owners.unique()) - 1 == 4 * 2
    assert sum(batch.tokens for batch in step) <= heaviest.tokens <= 8 * (2 + 8 + 1)
    full = plan_of(tmp_path, lambda prompt: True, steps=1, micro_batch_tokens=32).heaviest()
    assert len(full.owners.unique()) - 1 == 3 and full.tokens <= 32
    plan = plan_of(tmp_path, lambda prompt: True, steps=1, micro_batch_tokens=32)
    plan._shares = True
    assert plan.heaviest().tokens == 2 + 8 + 2 * (1 + 8), "two answers go on from one prompt, each with its last token"


def test_one_row_of_each_attempt_is_its_last(tmp_path):
    plan = plan_of(tmp_path, bool, steps=1)
    plan.log.add_chunk(0, [0], ["0:0"], [[replace(rollout([5, 6], [7, 2], grade=1.0), attempt=number) for number in (0, 0, 1)]])
    rows = plan.log.rows(plan.log.chunks[0], plan.prompts, 1)
    assert [(row["answer"], row["last"]) for row in rows] == [(0, False), (0, True), (1, True)]


def test_what_is_said_of_a_round_counts_answers_and_prompts(tmp_path):
    plan = plan_of(tmp_path, bool, steps=1, overlong="mask")
    cut = replace(rollout([5, 6], [7], grade=0.0), ended=False, attempt=2)
    first = [rollout([5, 6], [7, 2]), replace(rollout([5, 6], [8, 9, 2], grade=None), attempt=1), cut]
    second = [rollout([5, 6], [7], grade=0.5), replace(rollout([5, 6], [8], grade=0.5), attempt=1)]
    plan.log.add_chunk(0, [0, 1], ["0:0", "0:1"], [first, second])
    groups = chunk_groups(plan.log.chunks[0], plan.settings, 8)
    assert [[each.number for each in members] for _, members in learnt_groups(groups, plan.prompts, plan.settings, 2)] == [
        [0]
    ], "neither cut nor without a grade"
    assert round_numbers(groups, 1.0, 1e-5) == {
        "reward": (2.0, 4.0),
        "pass_rate": (1.0, 4.0),
        "passed_once": (1.0, 2.0),
        "equal_groups": (1.0, 2.0),
        "ungraded": (1.0, 5.0),
        "cut": (1.0, 5.0),
        "answer_tokens": (8.0, 5.0),
        "asked_prompts": (2.0, 1.0),
        "canary_gap": (1e-5, 1.0),
    }
    counts = run_counts(plan.log, 1.0)
    named = ("asked_prompts", "rollouts", "sampled_tokens", "cut_rollouts", "ungraded_rollouts", "equal_groups", "first_grade")
    assert [counts[name] for name in named] == [2, 5, 8, 1, 1, 1, 0.5]
    kept_cuts = plan.settings.model_copy(update={"overlong": "none"})
    assert [[each.number for each in members] for _, members in learnt_groups(groups, plan.prompts, kept_cuts, 2)] == [[0, 2]]


@pytest.mark.parametrize(("aggregation", "of_all", "of_taught"), [("token", 10, 4), ("rollout", 4, 2), ("constant", 32, 16)])
def test_prompts_that_teach_nothing_stay_in_the_denominator_unless_others_took_their_place(
    tmp_path, aggregation, of_all, of_taught
):
    """As TRL's, which divides by the tokens of all answers: else a step grows as fewer prompts teach."""
    plan = plan_of(tmp_path, bool, steps=1, aggregation=aggregation, overlong="mask")
    taught = [rollout([5, 6], [7, 8, 2], grade=1.0), rollout([5, 6], [2], grade=0.0), rollout([5, 6], [9, 2], grade=None)]
    equal = [rollout([5, 6], tokens, grade=1.0) for tokens in ([7, 2], [7, 8, 9, 2], [7])]
    equal[2] = replace(equal[2], ended=False)
    numbered = [[replace(each, attempt=number) for number, each in enumerate(group)] for group in (taught, equal)]
    plan.log.add_chunk(0, [0, 1], ["0:0", "0:1"], numbered)
    groups = chunk_groups(plan.log.chunks[0], plan.settings, 8)
    for wanted, counted in ((2, of_all), (1, of_taught)):
        [(_, members)] = learnt_groups(groups, plan.prompts, plan.settings, wanted)
        assert [each.number for each in members] == [0, 1]
        assert sum(each.share * int(each.rollout.sampled.sum()) for each in members) == pytest.approx(counted)
        assert sum(each.scale for each in members) == {"token": 2, "rollout": 1 / 3 + 1, "constant": 2}[aggregation]


def test_a_document_of_a_group_holds_as_many_answers_as_fit():
    learnt = [LearntRollout(rollout([5, 6, 7], [8, 9, 2]), place, 1.0, 1.0, 1.0) for place in range(5)]
    sizes = [[len(each) for each in group_documents("p", learnt, True, most_tokens=most)] for most in (11, 10, 99)]
    assert sizes == [[10, 10, 6], [6] * 5, [22]], "3 tokens of the prompt, and of each answer 3, behind the prompt's last token"


def test_prompts_are_read_once_and_leave_room(start, tmp_path):
    tokenizer = load_tokenizer(start / "model")
    prompts, counts = read_sampled_prompts(start / "prompts", tokenizer, 64)
    longest = max(len(prompt.ids) for prompt in prompts)
    assert len(prompts) == 24 and set(counts.values()) == {0} and prompts[0].columns["pattern"] == "[0-9]"
    assert read_sampled_prompts(start / "prompts", tokenizer, longest)[1]["long_prompts"] == 0
    assert read_sampled_prompts(start / "prompts", tokenizer, longest - 1)[1]["long_prompts"] > 0
    rows = pq.read_table(start / "prompts/train.parquet")
    pq.write_table(pa.concat_tables([rows, rows]), tmp_path / "train.parquet")
    twice, counts = read_sampled_prompts(tmp_path, tokenizer, 64)
    assert len(twice) == 24 and counts["repeated_prompts"] == 24
    with pytest.raises(ModelError, match=r"no prompt that leaves room for answers \(long_prompts 24\): raise max_length"):
        read_sampled_prompts(start / "prompts", tokenizer, 3)


def test_rows_verify_held_out_answers_only_where_every_row_does():
    def by(*columns, **settings):
        prompts = [SampledPrompt("p", "", [5], [], None, each) for each in columns]
        return rft.held_out_grader(RftSettings(**{"grader": "rewards.py:grade", **settings}), prompts)

    verifies, bare = {"kind": "number", "answer": "4"}, {}
    assert [part.by for part in by(verifies, verifies)[0].parts.values()] == ["verifier"]
    grader, key = by(verifies, bare)
    assert ([part.by for part in grader.parts.values()], key) == (["rewards.py:grade"], "grader")
    assert [part.by for part in by(verifies, held_out_grader="exact")[0].parts.values()] == ["exact"]
    assert by(verifies, grader=None, environment="envs.py:Shop")[0] is None


def test_epochs_are_passes_over_the_prompts(tmp_path):
    steps = [len(plan_of(tmp_path / str(epochs), bool, epochs=epochs)) for epochs in (0.1, 1.0, 1.5)]
    assert steps == [1, 3, 5], "12 prompts, 4 to a step"


def test_aggregations_count_tokens_rollouts_or_the_longest_answer():
    def scales(**settings):
        return scale_and_share(4, RftSettings(grader="verifier", max_new_tokens=20, **settings))

    assert scales() == (1.0, 1.0)
    assert scales(aggregation="rollout") == scales(loss="gspo") == (0.25, 0.25)
    assert scales(loss="dr_grpo") == (1.0, 5.0)


def test_long_answers_cost_a_part_of_their_grade():
    settings = RftSettings(grader="verifier", max_new_tokens=20, overlong="penalty", overlong_tokens=10)
    made = {length: rollout([5], [6] * length, grade=1.0) for length in (5, 10, 15, 20)}
    assert {length: penalised_grade(each, settings, 20) for length, each in made.items()} == {5: 1.0, 10: 1.0, 15: 0.5, 20: 0.0}
    assert penalised_grade(rollout([5], [6] * 10), settings, 10) == 0.0, "of a round with shorter answers"
    assert penalised_grade(rollout([5], [6] * 20, grade=None), settings, 20) is None


def test_prompts_that_nobody_saw_come_first_and_those_without_news_seldom():
    pool = PromptPool(6, passing_grade=1.0, seed=0)
    first = pool.draw(0, 4)
    for prompt in first:
        pool.see(prompt, [1.0, 0.0])
    assert set(pool.draw(1, 2)) == set(range(6)) - set(first) and pool.draw(1, 2) == pool.draw(1, 2)
    for prompt, grades in enumerate([[1.0, 1.0], [0.0, 0.0], [1.0, None], [None], [0.2, 1.0], [0.0, 2.0]]):
        fresh = PromptPool(1, 1.0, 0)
        fresh.see(0, grades)
        assert np.isnan(fresh.rates[0]) if prompt == 3 else fresh.rates[0] == [1.0, 0.0, 1.0, None, 0.5, 0.5][prompt]
    fresh = PromptPool(2, 1.0, 0)
    for grades in ([1.0, 1.0], [0.0, 1.0]):
        fresh.see(0, grades)
    assert fresh.rates[0] == 0.75
    for _ in range(5):
        fresh.see(0, [1.0]), fresh.see(1, [0.0, 1.0])
    drawn = [fresh.draw(chunk, 1)[0] for chunk in range(300)]
    assert 0.1 < drawn.count(0) / 300 < 0.24, "a sixth"


def test_the_log_keeps_every_bit_and_forgets_a_line_that_was_cut(tmp_path):
    log = RolloutLog(tmp_path / "log.jsonl")
    made = [[rollout([5, 6], [7, 8, 2], logs=[-0.1, -1e-7, -3], sampled=[1, 0, 1]), rollout([5, 6], [9], grade=None)]]
    log.add_chunk(0, [4], ["0:4"], made)
    log.add_chunk(1, [2], ["1:2"], made)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(b'{"round": 2')
    again = RolloutLog(tmp_path / "log.jsonl")
    assert [(chunk.round, chunk.prompts, chunk.first) for chunk in again.chunks] == [(0, [4], 0), (1, [2], 2)]
    [[one, other]] = again.chunks[1].groups()
    for name in ("prompt", "tokens", "sampled", "log_probs", "versions"):
        assert getattr(one, name).tobytes() == getattr(made[0][0], name).astype(getattr(one, name).dtype).tobytes(), name
    assert other.grade == Grade(None) and again.chunks[0].numbers[0][0][:3:2] == (3, 2)
