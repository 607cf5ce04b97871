"""The noise of recovery: small between a model and its rounded form, wide between two models."""

import json
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import write_target
from transformers import AutoModelForCausalLM

from model_ops.documents.likelihood import RowLoss, mean_loss
from model_ops.evaluation.likelihoods import recovery_interval
from model_ops.evaluation.measurement import HELD_OUT_PROMPTS
from model_ops.evaluation.reward_change import about_prompts, reward_change
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer


def rows(loss_of, count=200, seed=0):
    draw = random.Random(seed)
    lengths = [draw.randint(5, 200) for _ in range(count)]
    return [RowLoss(f"r{row}", loss_of(row) * tokens, tokens) for row, tokens in enumerate(lengths)]


def hard(row):
    return random.Random(row).uniform(0.5, 4.0)


def test_what_makes_a_row_hard_for_both_models_is_no_noise():
    reference, served = rows(hard), rows(lambda row: hard(row) + random.Random(-row).gauss(0, 0.001))
    recovery = math.exp(mean_loss(reference) - mean_loss(served))
    low, high = recovery_interval(reference, served)
    assert low < recovery < high and high - low < 0.001


def test_a_difference_between_models_is_outside_the_noise_and_order_is_of_no_matter():
    reference, served = rows(lambda row: hard(row) + 0.1), rows(lambda row: hard(row) + random.Random(-row).gauss(0, 0.1))
    low, high = recovery_interval(reference, served)
    assert 1.08 < low < math.exp(0.1) < high < 1.13
    assert recovery_interval(reference[::-1], served) == (low, high)


def test_the_same_model_twice_has_no_noise():
    assert recovery_interval(rows(hard), rows(hard)) == (1.0, 1.0)


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30])
def test_few_rows_of_equal_models_lie_beyond_1_as_rarely_as_95_percent_promises(count):
    """At either end in 2.5 % of cases: 100 of 4,000, with a standard deviation of 10. Rows of unequal length take a little
    more."""
    draw, beyond, trials = random.Random(count), [0, 0], 4_000
    for _ in range(trials):
        lengths = [draw.randint(50, 150) for _ in range(count)]
        reference = [RowLoss(f"r{row}", 2.0 * tokens, tokens) for row, tokens in enumerate(lengths)]
        served = [RowLoss(row.row_id, row.nll_sum + draw.gauss(0, 0.02) * row.tokens, row.tokens) for row in reference]
        low, high = recovery_interval(reference, served)
        beyond[0] += low > 1
        beyond[1] += high < 1
    spread = (0.025 * 0.975 / trials) ** 0.5
    for missed in beyond:
        assert 0.025 - 3 * spread < missed / trials < 0.035 + 2 * spread


def test_few_rows_of_equal_length_have_the_interval_of_a_paired_t_test():
    differences = [0.01, -0.02, 0.03, 0.0, 0.005]
    reference = [RowLoss(f"r{row}", 200.0, 100) for row in range(5)]
    served = [RowLoss(f"r{row}", 200.0 - 100 * by, 100) for row, by in enumerate(differences)]
    reach = 2.776 * 0.018027756 / math.sqrt(5)  # standard deviation of the differences
    assert recovery_interval(reference, served) == pytest.approx((math.exp(0.005 - reach), math.exp(0.005 + reach)), rel=1e-6)


def test_one_row_has_no_interval_and_rows_without_target_tokens_do_not_count():
    empty = RowLoss("empty", 0.0, 0)
    assert recovery_interval([RowLoss("a", 2.0, 1)], [RowLoss("a", 2.1, 1)]) is None
    assert recovery_interval([RowLoss("a", 2.0, 1), empty], [RowLoss("a", 2.1, 1), empty]) is None


def test_a_wide_interval_of_two_rows_is_a_finite_number():
    reference, served = [RowLoss("a", 900.0, 1), RowLoss("b", 1.0, 1)], [RowLoss("a", 1.0, 1), RowLoss("b", 900.0, 1)]
    low, high = recovery_interval(reference, served)
    assert 0 <= low < 1 < high < math.inf


def test_models_that_read_different_rows_cannot_be_compared():
    with pytest.raises(ModelError, match="no test row in common"):
        recovery_interval([RowLoss("a", 1.0, 1)], [RowLoss("b", 1.0, 1)])


SETTINGS = EvaluateSettings(max_new_tokens=3, parents={"prompts": "sft"})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("rewards")
    for seed, name in enumerate(("target", "sft")):
        write_target(root / name, layers=2, seed=seed, max_position_embeddings=512)
    return root


def measured(place, output, verifier, settings=SETTINGS, **inputs):
    folder = output / "prompts"
    folder.mkdir(parents=True)
    rows = [
        {
            "row_id": f"p{number}",
            "messages": json.dumps([{"role": "user", "content": f"say {number}"}]),
            "verifier": json.dumps(verifier),
        }
        for number in range(9)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "validation.parquet")
    pq.write_table(pa.Table.from_pylist(rows).slice(0, 0), folder / "test.parquet")
    named = {"prompts": folder, "target": place / "target", "rft": place / "target", "sft": place / "sft", **inputs}
    return reward_change(Job(operation="evaluate", output=output, inputs=named), settings, Progress())


def test_the_gain_is_the_difference_of_passed_answers_with_its_interval(place, tmp_path):
    [gain] = measured(place, tmp_path, {"kind": "regex", "pattern": "[Qn]"}).measurements
    kept = {role: json.loads((tmp_path / f".work/rewards-{role}.json").read_text())["value"] for role in ("target", "sft")}
    differences = [kept["target"][name][0] - kept["sft"][name][0] for name in kept["target"]]
    assert {grade for by_row in kept.values() for grade, _, _ in by_row.values()} == {0.0, 1.0}
    assert gain.value == pytest.approx(sum(differences) / 9) and gain.low <= gain.value <= gain.high
    assert (gain.what, gain.of, gain.against, gain.n, gain.on) == ("rft_gain", "target", "sft", 9, HELD_OUT_PROMPTS)


def test_passed_answers_are_kept_to_be_read_and_the_report_says_who_graded_the_training(place, tmp_path):
    settings = SETTINGS.model_copy(update={"rft_graders": ["length", "verifier"]})
    trained_on = measured(place, tmp_path, {"kind": "regex", "pattern": "."}, settings=settings).summary
    lines = [json.loads(line) for line in (tmp_path / "passed_answers.jsonl").read_text().splitlines()]
    assert trained_on["passed"] == trained_on["scored"] == len(lines) == 9 and trained_on["is_trained_on"]
    assert [[line["row_id"], line["gain"]] for line in lines] == trained_on["least"]
    assert {line["row_id"]: line["prompt"] for line in lines} == {f"p{number}": f"say {number}" for number in range(9)}
    other = measured(place, tmp_path / "none", {"kind": "regex", "pattern": "$x"}).summary
    assert other == {"passed": 0, "scored": 0, "is_trained_on": False, "least": []}


def test_a_model_beside_itself_gained_nothing_and_rows_without_a_verifier_say_so(place, tmp_path):
    same = measured(place, tmp_path / "same", {"kind": "regex", "pattern": "[Qn]"}, sft=place / "target")
    assert [each.value for each in same.measurements] == [0.0]
    found = measured(place, tmp_path / "none", {})
    assert not found.measurements and "no held-out row of rl_prompts brings" in found.not_measured[HELD_OUT_PROMPTS]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    home = tmp_path_factory.mktemp("base") / "model"
    write_target(home, layers=2, seed=3, max_position_embeddings=512)
    return home


def log_p(base, answer, prompt):
    """Of the prompt's tokens after the answer, the mean."""
    tokenizer, model = load_tokenizer(base), AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before, asked = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (answer, prompt))
    before += tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    logits = model(torch.tensor([before + asked])).logits[0].log_softmax(-1)
    return sum(logits[len(before) + at - 1, token].item() for at, token in enumerate(asked)) / len(asked)


def test_an_answer_is_compared_with_those_to_other_prompts(base):
    passed = {"a": ("two and two", "it is four"), "b": ("say hello", "hello"), "c": ("name a city", "Paris")}
    found = {each.row_id: each for each in about_prompts(base, passed, Progress())}
    answers = ["it is four", "hello", "Paris"]
    for place, (name, (prompt, _)) in enumerate(passed.items()):
        own, *others = (log_p(base, answers[(place + other) % 3], prompt) for other in range(3))
        assert found[name].given == pytest.approx(own, abs=1e-4)
        assert found[name].gain == pytest.approx(own - sum(others) / 2, abs=1e-4)
    assert [each.gain for each in about_prompts(base, passed, Progress())] == sorted(each.gain for each in found.values())


def test_the_same_answer_to_every_prompt_says_nothing(base):
    passed = {name: (prompt, "Hope this helps.") for name, prompt in (("a", "two and two"), ("b", "say hello"))}
    assert [each.gain for each in about_prompts(base, passed, Progress())] == pytest.approx([0.0, 0.0], abs=1e-5)
    assert about_prompts(base, {"a": ("two and two", "four")}, Progress()) == [] and about_prompts(base, {}, Progress()) == []
