"""Scores of a reward model: those of transformers, whatever is padded; who may be graded, and what gets no score."""

import json

import numpy as np
import pytest
import torch
from tiny_models import tiny_model, write_target
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from model_ops.jobs import ModelError
from model_ops.models.model_directory import load_model, save_model
from model_ops.rendering.row import Row
from model_ops.rewards.reward_model import RewardModel, padding_token, scorers_tokenizer, with_score_head
from model_ops.rewards.reward_record import RewardRecord

GOOD = RewardRecord(temperature=2.0, mean=0.5, deviation=0.25, may_grade=True)


def chat(number, answer, question="add two numbers"):
    return Row(f"r{number}", [{"role": "user", "content": question}, {"role": "assistant", "content": answer}])


ANSWERS = [chat(i, "return " + "a + b " * (1 + 2 * i)) for i in range(4)] + [chat(9, "print('hello')", "say hello")]


@pytest.fixture(autouse=True)
def exact_products(monkeypatch):
    """A grader computes in the faster precision of the machine; what is compared here is float32."""
    monkeypatch.setattr("model_ops.rewards.reward_model.concrete_precision", lambda precision, device: "float32")


def write_reward_model(folder, record=GOOD, **target):
    """A reward model of random weights."""
    tokenizer = write_target(folder / "base", layers=2, **target)
    model = load_model(folder / "base", dtype=torch.float32)
    vocab_size = model.config.vocab_size
    save_model(with_score_head(model, tokenizer, seed=1), scorers_tokenizer(tokenizer, vocab_size), folder / "reward")
    if record is not None:
        record.write(folder / "reward")
    return folder / "reward"


@pytest.fixture(scope="module")
def reward(tmp_path_factory):
    return write_reward_model(tmp_path_factory.mktemp("reward"))


def of_transformers(directory, rows, side):
    """The scores of AutoModelForSequenceClassification on one padded batch."""
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts = [tokenizer.apply_chat_template(row.messages, tokenize=False) for row in rows]
    batch = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt", add_special_tokens=False)
    assert 0 < int(batch["attention_mask"].sum()) < batch["attention_mask"].numel(), "rows differ in length"
    with torch.no_grad():
        return model(**batch).logits[:, 0].numpy()


@pytest.mark.parametrize("side", ["left", "right"])
def test_transformers_gives_the_same_scores_on_padded_batches(reward, side):
    found = RewardModel.load(reward).scores(ANSWERS)
    assert not found.left_out and np.ptp(found.values) > 0.01
    np.testing.assert_allclose(of_transformers(reward, ANSWERS, side), found.values, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "qwen2", "gemma", "gemma2", "gemma3_text", "qwen3_moe", "gpt_oss", "lfm2"]
)
def test_transformers_gives_the_same_scores_in_every_family(kind, tmp_path):
    from model_ops.models.tiny_families import tiny_model as of_family

    tokenizer = write_target(tmp_path / "base", layers=2)
    model = of_family(kind, vocab_size=300)
    save_model(model, tokenizer, tmp_path / "family")
    try:
        headed = with_score_head(load_model(tmp_path / "family", dtype=torch.float32), tokenizer, seed=1)
    except ModelError as error:
        assert "transformers has no sequence classifier" in str(error) or "is not its decoder" in str(error)
        return
    save_model(headed, scorers_tokenizer(tokenizer, 300), tmp_path / "reward")
    found = RewardModel.load(tmp_path / "reward", to_grade=False).scores(ANSWERS)
    np.testing.assert_allclose(of_transformers(tmp_path / "reward", ANSWERS, "right"), found.values, atol=2e-5)


def test_a_tokenizer_that_pads_with_its_end_of_turn_gets_another_padding(tmp_path, tiny_tokenizer):
    tiny_tokenizer = AutoTokenizer.from_pretrained(_saved(tiny_tokenizer, tmp_path / "tokenizer"))
    tiny_tokenizer.pad_token = tiny_tokenizer.eos_token
    found = padding_token(tiny_tokenizer, 300)
    assert found != tiny_tokenizer.eos_token_id and tiny_tokenizer.convert_ids_to_tokens(
        found
    ) in tiny_tokenizer.all_special_tokens + [token.content for token in tiny_tokenizer.added_tokens_decoder.values()]
    model = with_score_head(tiny_model(layers=1, vocab_size=300), tiny_tokenizer, seed=0)
    assert model.config.pad_token_id == found == scorers_tokenizer(tiny_tokenizer, 300).pad_token_id
    assert tiny_tokenizer.pad_token_id == tiny_tokenizer.eos_token_id, "the policy's own tokenizer stays as it was"


def _saved(tokenizer, folder):
    tokenizer.save_pretrained(folder)
    return folder


def test_the_head_is_drawn_by_its_seed_with_a_deviation_of_one_over_the_root_of_width_plus_one(tiny_tokenizer):
    wide = tiny_model(layers=1, vocab_size=300, hidden_size=4_096, num_attention_heads=4)
    head = with_score_head(wide, tiny_tokenizer, seed=7).score.weight
    again = with_score_head(tiny_model(layers=1, vocab_size=300, hidden_size=4_096), tiny_tokenizer, seed=7).score.weight
    assert head.dtype == torch.float32 and torch.equal(head, again) and head.requires_grad
    assert float(head.detach().std()) == pytest.approx(1 / (4_097**0.5), rel=0.05)


def test_answers_to_one_prompt_share_it_and_keep_their_scores(reward):
    grader = RewardModel.load(reward)
    alone = [grader.scores([row]).values[0] for row in ANSWERS]
    np.testing.assert_allclose(grader.scores(ANSWERS).values, alone, atol=1e-5)
    tokens = []
    grader.model.base_model.register_forward_pre_hook(
        lambda _m, _a, options: tokens.append(options["input_ids"].numel()), with_kwargs=True
    )
    grader.scores(ANSWERS[:1])
    one = tokens.pop()
    grader.scores(ANSWERS[:4])
    assert sum(tokens) < 4 * one + 40, "the prompt is computed once"


def test_an_answer_without_a_score_is_named(reward):
    long = chat(1, "a + b " * 400)
    asked = Row("r2", [{"role": "user", "content": "q"}])
    found = RewardModel.load(reward).scores([ANSWERS[0], long, asked])
    assert found.values[0] is not None and found.values[1:] == [None, None]
    assert (
        "the reward model has 256 positions" in found.left_out["r1"] and found.left_out["r2"] == "its last message is no answer"
    )


def test_a_reward_model_that_may_not_grade_is_refused(tmp_path):
    bad = GOOD.model_copy(update={"may_grade": False, "missed": ["held-out accuracy is 0.5"]})
    directory = write_reward_model(tmp_path, bad)
    with pytest.raises(ModelError, match=r"may not grade: held-out accuracy is 0\.5\. Train it on more"):
        RewardModel.load(directory)
    assert RewardModel.load(directory, to_grade=False).scores(ANSWERS).left_out == {}


def test_a_directory_that_is_no_reward_model_is_refused(reward, tmp_path):
    with pytest.raises(ModelError, match=r"holds no reward\.json"):
        RewardModel.load(reward.parent / "base")
    (tmp_path / "reward.json").write_text(json.dumps({"temperature": 0}))
    with pytest.raises(ModelError, match="is damaged"):
        RewardRecord.read(tmp_path)


def test_calibrated_numbers_are_those_of_the_record(reward):
    record = RewardModel.load(reward).record
    assert record.standard(1.0) == 2.0
    assert record.probability(3.0, 1.0) == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert record.probability(1.0, 3.0) == pytest.approx(1 - record.probability(3.0, 1.0))
