"""What preference training changed on held-out pairs, measured with two tiny models."""

import json
import math

import numpy as np
import pytest
import torch
from judge_server import completion, judge_server
from preference_rows import pair, write_preferences
from tiny_models import write_target

from model_ops.evaluation import preference_change as module
from model_ops.evaluation.measurement import find
from model_ops.evaluation.preference_change import _share_of_gains, preference_change
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.jobs import Job, Progress
from model_ops.models import load_model, load_tokenizer
from model_ops.preferences import read_preferences

SETTINGS = EvaluateSettings(max_new_tokens=6, prompts=12, parents={"preferences": "sft"})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("pairs")
    for seed, name in enumerate(("target", "sft")):
        write_target(root / name, layers=2, seed=seed, max_position_embeddings=512)
    pairs = [pair(i) for i in range(14)]
    turned = [{**each, "chosen": each["rejected"], "rejected": each["chosen"]} for each in pairs[::3]]
    write_preferences(root / "preferences", [*turned, *(each for each in pairs if pairs.index(each) % 3)], split="test")
    return root


def job(place, tmp_path, **inputs):
    named = {"preferences": place / "preferences", "target": place / "target", "sft": place / "sft"}
    return Job(operation="evaluate", output=tmp_path, inputs={**named, **inputs})


def log_prob(directory, document, begin, stop):
    """By transformers alone: of the targets of one segment."""
    ids = torch.tensor(document.input_ids[begin:stop].astype(np.int64))[None]
    logs = load_model(directory, attention="sdpa").eval()(ids).logits[0, :-1].double().log_softmax(-1)
    taken = logs.gather(1, ids[0, 1:, None])[:, 0]
    return float(taken.detach()[torch.tensor(document.targets[begin + 1 : stop])].sum())


def test_of_every_pair_the_answer_that_gained_is_found(place, tmp_path):
    found = preference_change(job(place, tmp_path), SETTINGS, Progress())
    documents = read_preferences(
        place / "preferences", "test", load_tokenizer(place / "sft"), 4_096, rows="pairs", shares=False
    ).documents
    gains = {}
    for document in documents:
        cut, whole = document.segments[0].length, len(document)
        sides = [
            [log_prob(place / name, document, begin, stop) for begin, stop in ((0, cut), (cut, whole))]
            for name in ("target", "sft")
        ]
        gains[document.row_id] = sides[0][0] - sides[1][0] - (sides[0][1] - sides[1][1])
    accuracy = find(found.measurements, "preference_accuracy", of="target", against="sft")
    assert accuracy.n == 14 and accuracy.value == pytest.approx(np.mean([gain > 0 for gain in gains.values()]))
    assert 0 < accuracy.value < 1 and accuracy.low <= accuracy.value <= accuracy.high
    lines = [json.loads(line) for line in (tmp_path / "preference_pairs.jsonl").read_text().splitlines()]
    assert [line["change"] for line in lines] == sorted(line["change"] for line in lines) and len(lines) == 10
    assert all(line["change"] == pytest.approx(gains[line["row_id"]], abs=1e-3) for line in lines)
    assert lines[0]["rejected"].startswith("def add_") and lines[0]["reason"] == "edited" and "target" in lines[0]
    assert "set evaluation.tasks.judge" in found.not_measured["win_rate"]


def test_a_model_beside_itself_has_not_moved(place, tmp_path):
    found = preference_change(job(place, tmp_path, sft=place / "target"), SETTINGS, Progress())
    values = {each.what: each.value for each in found.measurements}
    assert values == {"preference_accuracy": 0.5, "length_ratio": 1.0, "divergence_from_parent": pytest.approx(0, abs=1e-6)}


def test_divergence_is_that_of_the_targets_own_samples(place, tmp_path, monkeypatch):
    """With samples that are given, it is the mean over their tokens of the difference of log-probabilities."""
    found = preference_change(job(place, tmp_path), SETTINGS, Progress())
    kl = find(found.measurements, "divergence_from_parent", of="target", against="sft")
    assert kl.value > 0 and kl.low < kl.value < kl.high and kl.unit == "nats per token"
    kept = json.loads((tmp_path / ".work/preference-answers-target-1.json").read_text())["value"]
    nll = [json.loads((tmp_path / f".work/preference-sampled-{role}.json").read_text())["value"] for role in ("target", "sft")]
    tokens = sum(len(each["tokens"]) for each in kept.values())
    assert kl.value == pytest.approx((sum(nll[0].values()) - sum(nll[1].values())) / tokens, rel=1e-6) and kl.n == 12


def test_a_judge_counts_wins(place, tmp_path):
    def first_is_longer(body, number):
        return completion(json.dumps({"better": "A" if number % 2 else "B"}))

    with judge_server(first_is_longer) as (address, seen):
        settings = SETTINGS.model_validate(SETTINGS.model_dump() | {"tasks": {"judge": {"base_url": address, "model": "j"}}})
        found = preference_change(job(place, tmp_path), settings, Progress())
    wins = find(found.measurements, "win_rate", of="target", against="sft")
    assert wins is not None and 0 <= wins.low <= wins.value <= wins.high <= 1 and "win_rate" not in found.not_measured
    assert len(seen) == 24


@pytest.mark.parametrize(("wins", "value"), [([1, 1, 0, -1], 0.625), ([-1, -1], 0.0), ([0, 0], 0.5)])
def test_a_tie_is_half_a_win(wins, value):
    assert module._win_rate(wins)[0] == value


def test_the_interval_of_the_pairs_is_over_sessions():
    gains = [1.0, 1.0, 1.0, -1.0, 1.0, -1.0]
    apart = _share_of_gains(gains, ["a", "b", "c", "d", "e", "f"])
    ends = pytest.approx((max(0, 4 / 6 - 2.571 * (4 / 18 / 5) ** 0.5), 1.0), rel=1e-3)
    assert apart == (pytest.approx(4 / 6), ends, 6)
    many = _share_of_gains(gains * 9, ["a", "b", "c", "d", "e", "f"] * 9)
    assert many == (pytest.approx(4 / 6), ends, 54), "nine times the same pairs say no more"
    assert _share_of_gains(gains, ["a"] * 6) == (pytest.approx(4 / 6), None, 6)


def test_ratio_of_lengths_has_the_interval_of_its_influences():
    """By the delta method, in plain numbers: r = 12 / 9, residuals a - r b."""
    value, (low, high), count = module._ratio(np.array([4.0, 4.0, 4.0]), np.array([2.0, 3.0, 4.0]))
    assert value == pytest.approx(4 / 3) and count == 3 and low < value < high
    residuals = np.array([4 - 4 / 3 * b for b in (2, 3, 4)]) / 9 / (1 - np.array([2, 3, 4]) / 9)
    reach = 4.303 * math.sqrt(2 / 3 * float((residuals**2).sum()))
    assert high - value == pytest.approx(reach, rel=1e-3)


def test_without_pairs_or_preference_model_nothing_is_measured(place, tmp_path):
    write_preferences(tmp_path / "empty", [pair(0, rejected=pair(0)["chosen"])], split="test")
    found = preference_change(job(place, tmp_path / "one", preferences=tmp_path / "empty"), SETTINGS, Progress())
    assert not found.measurements and "no test pair" in found.not_measured["held-out pairs"]
    without = SETTINGS.model_copy(update={"parents": {}})
    assert preference_change(job(place, tmp_path / "two"), without, Progress()) == module.Findings()
