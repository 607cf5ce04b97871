"""Asynchronous reinforcement fine-tuning: weights that are exchanged in flight, what may be asked when, and engines that end. Kills of
whole trainings are in test_rft_kills.py."""

from __future__ import annotations

import json
import math
import os
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from test_rft import run, write_prompts
from tiny_models import write_target
from transformers import DynamicCache

from model_ops.answers import engine_processes
from model_ops.answers.engine_processes import EngineProcess, EngineStart, InFlightEngine, PolicyFile, PolicyProbe
from model_ops.answers.rollout import Rollout, Sampled, SampledPrompt
from model_ops.answers.rollout_log import RolloutLog
from model_ops.graders import Grade
from model_ops.jobs import ModelError, Progress, Stopped
from model_ops.models.model_directory import load_model
from model_ops.parallel import World
from model_ops.reinforcement.advantages import run_counts, staleness_counts
from model_ops.reinforcement.policy_loss import CORRECTIONS, PolicyLoss, SampledTokens
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.reinforcement.rollout_batches import LearntRollout, group_documents, rollout_batches
from model_ops.reinforcement.rollout_plan import RolloutPlan


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asynchronous")
    write_target(folder / "model", layers=2, vocab_size=300)
    write_prompts(folder / "prompts")
    return folder


def another(model, seed):
    """The model with other weights."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def probe_of(model, temperature, ids=(5, 6, 7, 8)):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1] / temperature
    return PolicyProbe(torch.tensor(ids), logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]])


def into(gaps):
    return lambda version, gap, exact: gaps.__setitem__(version, gap)


@dataclass
class Sampling:
    temperature: float = 0.7
    max_new_tokens: int = 9
    batch_size: int = 8


def test_running_answers_go_on_with_new_weights_and_every_token_has_its_version_and_the_samplers_log_probability(
    start, tmp_path
):
    old, new = (load_model(start / "model", attention="sdpa") for _ in range(2))
    another(new, seed=1)
    file, gaps, forwards = PolicyFile(tmp_path / "policy.safetensors"), {}, 0
    file.write(old, 3, probe_of(old, 0.7))
    engine = InFlightEngine(load_model(start / "model"), {299}, Sampling(), PolicyFile(file.path), into(gaps))
    forward = engine.forward

    def counted(*given):
        nonlocal forwards
        forwards += 1
        if forwards == 5:
            file.write(new, 4, probe_of(new, 0.7))
        return forward(*given)

    engine.forward = counted
    prompts, found = [[5, 6, 7], [9, 8, 7, 6, 5]], {}
    engine.answer(prompts, ["a", "b"], 0, found.__setitem__)
    assert gaps.keys() == {3, 4} and all(gap < 1e-5 for gap in gaps.values())
    for prompt, answer in zip(prompts, (found[0], found[1]), strict=True):
        tokens = answer.tokens.tolist()
        assert len(tokens) == 9 and answer.versions.tolist() == [3] * 4 + [4] * 5 and answer.version == 3
        # the first forward reads the prompt, each other one a token; the fifth and later ones are of the new weights
        cache, before = DynamicCache(config=old.config), [*prompt, *tokens[:3]]
        with torch.no_grad():
            early = old(input_ids=torch.tensor([before]), past_key_values=cache, use_cache=True).logits[0, len(prompt) - 1 :]
            late = new(
                input_ids=torch.tensor([tokens[3:8]]),
                position_ids=torch.arange(len(before), len(before) + 5)[None],
                past_key_values=cache,
                use_cache=True,
            ).logits[0]
        logs = (torch.cat([early, late]) / 0.7).log_softmax(-1)[range(9), tokens]
        torch.testing.assert_close(torch.tensor(answer.log_probs), logs, rtol=0, atol=2e-5)
    engine.answer(prompts, ["c", "d"], 0, found.__setitem__)
    assert found[0].versions.tolist() == [4] * 9 and len(gaps) == 2, "no exchange without a new file"


def test_an_engine_with_other_weights_or_another_temperature_is_seen_at_the_exchange(start, tmp_path):
    model = load_model(start / "model", attention="sdpa")
    gaps = {}
    engine = InFlightEngine(
        load_model(start / "model"), {299}, Sampling(), PolicyFile(tmp_path / "policy.safetensors"), into(gaps)
    )
    for version, probe in enumerate((probe_of(another(load_model(start / "model"), 2), 0.7), probe_of(model, 1.0))):
        PolicyFile(tmp_path / "policy.safetensors").write(model, version, probe)
        engine.answer([[5]], ["a"], 0, lambda *_: None)
        assert gaps[version] > 1e-3


def test_half_written_weights_are_never_read_and_a_full_disk_is_one_sentence(start, tmp_path, monkeypatch):
    model, file = load_model(start / "model", attention="sdpa"), PolicyFile(tmp_path / "policy.safetensors")
    file.write(model, 0, probe_of(model, 1.0))
    reader, mine = PolicyFile(file.path), load_model(start / "model")
    assert reader.read_into(mine)[0] == 0

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine_processes, "save_file", full)
    with pytest.raises(ModelError, match=r"weights of step 1 cannot be written .*No space left on device.*: free disk space"):
        file.write(another(model, 1), 1, probe_of(model, 1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"] and reader.read_into(mine) is None


FAKE = """
import json, os, sys
from pathlib import Path
plan, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
life = len(list(folder.glob("life-*")))
(folder / f"life-{life}").touch()
json.loads(sys.stdin.readline())
for line in sys.stdin:
    asked = json.loads(line)
    with (folder / "asked").open("a") as file:
        file.write(json.dumps(asked["names"]) + "\\n")
    print(json.dumps({"version": life, "gap": plan["gap"], "exact": True}), flush=True)
    for place, name in list(enumerate(asked["names"]))[:plan["lives"][life] if life < len(plan["lives"]) else None]:
        reply = {"place": place, "tokens": [ord(name)], "log_probs": [-0.5], "versions": [life], "ended": True}
        print(json.dumps(reply), flush=True)
    if life < len(plan["lives"]):
        os.write(1, b'{"place": 0, "tok')
        os.kill(os.getpid(), 9)
    print(json.dumps({"done": True}), flush=True)
"""


def fake_engine(tmp_path, monkeypatch, lives, gap=0.0):
    (tmp_path / "fake.py").write_text(FAKE)
    plan = json.dumps({"lives": lives, "gap": gap})
    monkeypatch.setattr(EngineProcess, "COMMAND", (sys.executable, str(tmp_path / "fake.py"), plan, str(tmp_path)))
    begun = EngineStart("base", {}, "policy", [2], 1.0, 5, 8, 1, "cpu")
    return EngineProcess(begun, tmp_path / "engine.log", most_gap=1e-4)


def sampled_by(engine):
    try:
        return engine.sample([np.array([1], np.int32)] * 4, list("abcd"), seed=0)
    finally:
        engine.end()


def test_a_killed_engine_is_started_again_and_asked_for_its_unfinished_answers_only(tmp_path, monkeypatch):
    found = sampled_by(fake_engine(tmp_path, monkeypatch, lives=[1, 0, 0, 2]))
    assert [answer.tokens.tolist() for answer in found] == [[ord(name)] for name in "abcd"]
    asked = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked == [list("abcd"), list("bcd"), list("bcd"), list("bcd"), ["d"]]
    assert [answer.version for answer in found] == [0, 3, 3, 4], "what it gave before its end is kept"


def test_an_engine_that_ends_again_and_again_stops_with_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"ended 3 times in a row without an answer: .*engine\.log has what it wrote"):
        sampled_by(fake_engine(tmp_path, monkeypatch, lives=[0] * 9))
    assert len((tmp_path / "asked").read_text().splitlines()) == 3


def test_answers_of_an_engine_that_took_other_weights_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"an engine that took the weights of step 0 gives tokens .* up to 0\.001 .*report it"):
        sampled_by(fake_engine(tmp_path, monkeypatch, lives=[], gap=1e-3))


def test_a_closed_engine_stops_and_is_not_started_again(tmp_path, monkeypatch):
    engine = fake_engine(tmp_path, monkeypatch, lives=[])
    engine.close()
    with pytest.raises(Stopped):
        sampled_by(engine)
    assert not list(tmp_path.glob("life-*"))


class FakeEngines:
    """Samples with the version that was published last."""

    exact, gap = False, 0.0

    def __init__(self):
        self.version, self.closed = -1, False

    def sync(self, version):
        self.version = version

    def close(self):
        self.closed = True


class FakeMaker:
    """Answers take a while, in which weights may be exchanged, and so do grades. fails_at: call that raises."""

    answers = 2

    def __init__(self, equal=0.0, fails_at=None):
        self.drawn, self.equal, self.fails_at, self.asked = random.Random(5), equal, fails_at, []

    def rollouts(self, prompts, names, engine, seed):
        self.asked += [prompt.row_id for prompt in prompts]
        if self.fails_at is not None and len(self.asked) > self.fails_at:
            raise ModelError("the grader is gone")
        begun = engine.version
        time.sleep(self.drawn.random() * 0.02)
        versions = np.array([begun, begun, engine.version])
        time.sleep(self.drawn.random() * 0.01)
        if engine.closed:
            raise Stopped
        found = []
        for prompt in prompts:
            equal = self.drawn.random() < self.equal
            each = Sampled(np.array([7, 8, 9], np.int32), np.zeros(3, np.float32), begun, True, versions)
            found.append([Rollout.of(prompt.tokens, each, Grade(float(n and not equal)), n) for n in range(2)])
        return found


def planned(start, log, makers, **settings):
    prompts = [SampledPrompt(f"p{n}", "", [5, 6, n % 200 + 7], [], None, {}) for n in range(400)]
    given = {"steps": 12, "prompts_per_step": 4, "answers": 2, "batch_size": 6, "max_new_tokens": 5, "max_staleness": 2}
    chosen = RftSettings(grader="verifier", precision="float32", **{**given, **settings}).resolved()
    model = load_model(start / "model")
    loss = PolicyLoss("grpo", {}, "tis", 0.0, 1.0, chosen.max_staleness)
    rest = {"world": World.alone(torch.device("cpu")), "shares": True, "longest": 5, "progress": Progress()}
    plan = RolloutPlan(prompts, makers, FakeEngines(), log=log, model=model, loss=loss, settings=chosen, **rest)
    plan.asker.canary = lambda rollouts, number: math.nan  # log-probabilities of a FakeMaker are made up
    return plan


def learnt_by(plan, first=0, last=None, pause_s=0.012):
    """Ages of the tokens of each step."""
    ages, drawn = [], random.Random(3)
    for index in range(first, len(plan) if last is None else last):
        [batch] = plan.step(index)
        ages.append(batch.ages[batch.owners >= 0].tolist())
        if ages[-1]:
            oldest, mean = batch.numbers["largest_staleness"][0], batch.numbers["staleness"]
            assert oldest == max(ages[-1]) and mean[0] / mean[1] == pytest.approx(np.mean(ages[-1]))
        time.sleep(drawn.random() * pause_s)
    plan.state()
    return ages


@pytest.mark.parametrize("staleness", [1, 2, 5])
@pytest.mark.parametrize("equal", [0.0, 0.4])
def test_no_token_is_older_than_the_bound_and_nothing_that_was_sampled_is_left(start, tmp_path, staleness, equal):
    plan = planned(
        start,
        log := RolloutLog(tmp_path / "log.jsonl"),
        [FakeMaker(equal), FakeMaker(equal)],
        max_staleness=staleness,
        replacements=1,
    )
    ages = learnt_by(plan)
    plan.close()
    flat = [age for of_step in ages for age in of_step]
    assert max(flat) <= staleness and min(flat) >= 0 and max(flat) >= 1, "it samples ahead"
    rounds = Counter(chunk.round for chunk in log.chunks for _ in chunk.prompts)
    assert set(rounds) == set(range(12)) and all(4 <= count <= 8 for count in rounds.values())
    for number in range(12):
        groups = [group for chunk in log.of_round(number) for group in chunk.numbers]
        useful = sum(group[0].grade.value != group[1].grade.value for group in groups)
        assert useful >= 4 or len(groups) == 8, "equal groups are replaced, up to the cap"
    teach = sum(group[0].grade.value != group[1].grade.value for chunk in log.chunks for group in chunk.numbers)
    assert sum(outcome.learnt for outcome in log.outcomes.values()) == 2 * teach == run_counts(log, 1.0)["learnt_rollouts"]
    assert staleness_counts(log, 1)["largest_staleness"] <= staleness
    prompts = [prompt for chunk in log.chunks for prompt in chunk.prompts]
    assert len(set(prompts)) == len(prompts), "threads ask different prompts"


def test_rounds_are_asked_ahead_by_the_bound_and_no_further(start, tmp_path):
    plan = planned(start, log := RolloutLog(tmp_path / "log.jsonl"), [FakeMaker(), FakeMaker()], max_staleness=3)
    learnt_by(plan, last=2)
    until_s = time.monotonic() + 5
    while len({chunk.round for chunk in log.chunks}) < 5 and time.monotonic() < until_s:
        time.sleep(0.01)
    time.sleep(0.1)
    rounds = Counter(chunk.round for chunk in log.chunks for _ in chunk.prompts)
    plan.close()
    assert rounds == dict.fromkeys(range(1 + 3 + 1), 4), "steps 0 and 1 began, so rounds up to 4 are asked"
    assert not [thread for thread in threading.enumerate() if thread.name == "rollouts"]


def test_a_run_that_continues_learns_what_was_sampled_ahead_and_samples_the_rest(start, tmp_path):
    plan = planned(start, RolloutLog(tmp_path / "log.jsonl"), [FakeMaker(), FakeMaker()])
    learnt_by(plan, last=5)
    time.sleep(0.05)
    plan.close()
    before = (tmp_path / "log.jsonl").read_bytes()
    ahead = [chunk for chunk in RolloutLog(tmp_path / "log.jsonl").chunks if chunk.round >= 5]
    assert ahead, "something was sampled ahead"
    makers = [FakeMaker(), FakeMaker()]
    plan = planned(start, log := RolloutLog(tmp_path / "log.jsonl"), makers)
    ages = learnt_by(plan, first=3)  # its checkpoint was two steps before
    plan.close()
    assert (tmp_path / "log.jsonl").read_bytes().startswith(before)
    assert max(age for of_step in ages for age in of_step) <= 2
    rounds = Counter(chunk.round for chunk in log.chunks for _ in chunk.prompts)
    assert rounds == dict.fromkeys(range(12), 4) and sum(outcome.learnt for outcome in log.outcomes.values()) == 12 * 4 * 2
    assert sum(len(maker.asked) for maker in makers) == 12 * 4 - sum(
        len(chunk.prompts) for chunk in log.chunks[: before.count(b'"round"')]
    )


def test_what_ends_a_thread_ends_the_training(start, tmp_path):
    plan = planned(start, RolloutLog(tmp_path / "log.jsonl"), [FakeMaker(), FakeMaker(fails_at=6)])
    with pytest.raises(ModelError, match="the grader is gone"):
        learnt_by(plan)
    plan.close()


def test_gaps_are_measured_by_age(start):
    model = load_model(start / "model")
    answer = Sampled(
        np.array([8, 9, 11, 2], np.int32), np.array([-5, -6, -4, -5.5], np.float32), 3, True, np.array([3, 3, 4, 5])
    )
    made = [
        LearntRollout(Rollout.of(np.array([5, 6], np.int32), answer, Grade(1.0)), n, n - 0.5, 1.0, 1.0, step=5)
        for n in range(2)
    ]
    [batch] = rollout_batches(list(group_documents("p", made, True, 99)), 99, {})
    found = PolicyLoss("grpo", {}, "tis", 0.0, 1.0, oldest=3)(model, batch).metrics
    ids = torch.tensor([[5, 6, 8, 9, 11, 2]])
    logs = model(input_ids=ids, position_ids=torch.arange(6)[None], document_lengths=[6]).logits[0, 1:-1].log_softmax(-1)
    moved = logs[range(4), ids[0, 2:]].detach() - torch.tensor([-5, -6, -4, -5.5])
    for age, places in {0: [3], 1: [2], 2: [0, 1], 3: []}.items():
        mine = moved[places]
        mean = {name: found[f"{name}_age_{age}"] for name in ("gap", "gap_k3", "outside", "effective")}
        assert all(float(each.count) == 2 * len(places) for each in mean.values())
        torch.testing.assert_close(mean["gap"].sum, 2 * mine.abs().sum(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mean["gap_k3"].sum, 2 * (mine.exp() - 1 - mine).sum(), rtol=1e-4, atol=1e-4)
        assert float(mean["outside"].sum) == 2 * int(((mine.exp() < 0.5) | (mine.exp() > 5)).sum())
        if places:
            ratios = mine.exp().repeat(2)
            torch.testing.assert_close(mean["effective"].sum, ratios.sum() ** 2 / (ratios**2).sum(), rtol=1e-4, atol=1e-5)
    assert not any("age" in name for name in PolicyLoss("grpo", {}, "none", 0.0, 1.0)(model, batch).metrics)


def test_stale_answers_are_corrected_unless_somebody_says_otherwise():
    def by(**settings):
        return RftSettings(grader="verifier", **settings).corrected_by

    assert by() == "none" and by(max_staleness=1) == "tis"
    assert by(max_staleness=1, correction="none") == "none" and by(correction="icepop") == "icepop"
    likelier = SampledTokens(torch.log(torch.tensor([3.0, 40.0])), torch.zeros(2), -torch.ones(2), torch.tensor([0, 1]), 2)
    bounded = CORRECTIONS["tis"](likelier) * likelier.log_ratio.exp()
    assert bounded.tolist() == pytest.approx([2.0, 2.0]), "what the clip of a loss leaves without bound"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_staleness": 1, "sync_steps": 2}, "both say how old answers may be"),
        ({"engines": 2}, "max_staleness is 0: set it, or leave engines out"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        RftSettings(grader="verifier", **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"method": "lora", "learning_rate": 3e-2, "loss": "cispo", "engines": 2}], ids=["full", "lora"]
)
def test_it_learns_while_an_engine_samples_and_its_log_probabilities_are_those_of_the_versions(
    start, tmp_path, monkeypatch, settings
):
    published = PolicyFile.write

    def kept(self, model, version, probe):
        published(self, model, version, probe)
        os.link(self.path, tmp_path / f"{version}.safetensors")

    monkeypatch.setattr(PolicyFile, "write", kept)
    given = {"temperature": 0.8, "steps": 16, "max_staleness": 2, **settings}
    found = run(start, tmp_path / "out", **given)
    assert found["last_grade"] > found["first_grade"] + 0.2
    assert found["validation_pass_rate"] > found["before_validation_pass_rate"] + 0.2
    assert found["rollouts"] == 16 * 4 * 8 and 0 < found["largest_staleness"] <= 2
    steps = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert all(line["largest_staleness"] <= 2 and line["canary_gap"] < 1e-4 for line in steps)
    assert {f"gap_age_{age}" for age in range(3)} <= steps[-1].keys() and "corrected" in steps[-1]
    checked = 0
    for chunk in RolloutLog(tmp_path / "out/.work/rollouts.jsonl").chunks:
        for each in [each for group in chunk.groups() for each in group]:
            assert chunk.round - each.versions.min() <= 2 and (np.diff(each.versions) >= 0).all()
            if len(set(each.versions)) == 1 and checked < 40 and not settings:
                model = load_model(start / "model", attention="sdpa")
                copied = PolicyFile(tmp_path / f"{each.versions[0]}.safetensors").read_into(model)
                assert copied[0] == each.versions[0]
                ids = torch.tensor([[*each.prompt, *each.tokens]])
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, len(each.prompt) - 1 : -1] / 0.8
                logs = logits.log_softmax(-1)[range(len(each.tokens)), each.tokens.tolist()]
                torch.testing.assert_close(torch.tensor(each.log_probs), logs, rtol=0, atol=1e-4)
                checked += 1
    assert settings or checked == 40


def test_a_cut_answer_keeps_the_versions_of_its_first_tokens():
    answer = Sampled(np.array([7, 8, 9], np.int32), np.array([-1, -2, -3], np.float32), 4, True, np.array([4, 4, 5]))
    cut, plain = answer.cut(2), Sampled(answer.tokens, answer.log_probs, 4, True).cut(1)
    assert cut.tokens.tolist() == [7, 8] and cut.log_probs.tolist() == [-1, -2] and not cut.ended
    assert cut.token_versions.tolist() == [4, 4] and plain.token_versions.tolist() == [4]
