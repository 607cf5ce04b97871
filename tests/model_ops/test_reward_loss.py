"""The loss of a reward model: its value and gradient, where scores are read, and what weights, margins and padding do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import tiny_model

from model_ops.documents.documents import Branch, Document, to_batch
from model_ops.models.model_directory import load_model, save_model
from model_ops.parallel.context_parallel import pad
from model_ops.parallel.world import World
from model_ops.preferences.reward_loss import PairStreams, RewardBatch, RewardLoss, bradley_terry, validation_of_pairs
from model_ops.rewards.reward_model import with_score_head

PROMPT, CHOSEN, REJECTED = [5, 6, 7, 8], [20, 21, 2], [20, 30, 31, 32, 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_tokenizer):
    folder = tmp_path_factory.mktemp("base")
    save_model(tiny_model(layers=2, vocab_size=300), tiny_tokenizer, folder)
    return with_score_head(load_model(folder, dtype=torch.float32), tiny_tokenizer, seed=3)


def pair(row_id="a", prompt=PROMPT, chosen=CHOSEN, rejected=REJECTED):
    """As model_ops.preferences.preference_documents makes it: the branch begins with the last token that both answers share."""
    common = next(i for i in range(len(chosen)) if chosen[i] != rejected[i])
    at = len(prompt) + common - 1
    ids = np.array([*prompt, *chosen, *rejected[common - 1 :]], dtype=np.int32)
    return Document(row_id, ids, np.ones(len(ids), dtype=bool), branches=(Branch(at, len(ids) - len(prompt) - len(chosen)),))


def batch_of(pairs, margins, weights):
    streams = PairStreams(np.array(margins, float), np.array(weights, float))
    return to_batch([streams.added_to(document, index) for index, document in enumerate(pairs)], RewardBatch)


def score(model, ids):
    with torch.no_grad():
        hidden = model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        return float(model.score(hidden))


def test_the_loss_is_the_negative_log_likelihood_of_bradley_and_terry():
    chosen, rejected = torch.tensor([1.0, -0.5, 30.0]), torch.tensor([0.2, 0.4, -30.0])
    margins = torch.tensor([0.5, 0.0, 1.0])
    wanted = [np.log1p(np.exp(-(c - r - m))) + 0.01 * (c + r) ** 2 for c, r, m in zip(chosen, rejected, margins, strict=True)]
    torch.testing.assert_close(bradley_terry(chosen, rejected, margins, 0.01), torch.tensor(wanted).float())
    assert float(bradley_terry(torch.tensor([-200.0]), torch.tensor([200.0]))) == 400.0, "no overflow to infinity"


def test_its_gradient_is_sigma_of_the_negated_difference():
    chosen, rejected = torch.tensor([0.3], requires_grad=True), torch.tensor([-0.4], requires_grad=True)
    bradley_terry(chosen, rejected, 0.2, 0.05).sum().backward()
    pull = 1 / (1 + np.exp(0.7 - 0.2))
    assert float(chosen.grad) == pytest.approx(-pull + 0.1 * (0.3 - 0.4)) and float(rejected.grad) == pytest.approx(pull - 0.01)


def test_scores_are_those_of_the_two_whole_conversations(model):
    output = RewardLoss()(model, batch_of([pair(), pair("b", [9, 9], [40, 2], [40, 41, 2])], [0, 0], [1, 1]))
    chosen = [score(model, PROMPT + CHOSEN), score(model, [9, 9, 40, 2])]
    rejected = [score(model, PROMPT + REJECTED), score(model, [9, 9, 40, 41, 2])]
    wanted = sum(np.log1p(np.exp(r - c)) for c, r in zip(chosen, rejected, strict=True))
    assert float(output.terms["loss"].sum) == pytest.approx(wanted, abs=1e-5) and float(output.terms["loss"].count) == 2
    assert float(output.metrics["chosen_score"].sum) == pytest.approx(sum(chosen), abs=1e-5)
    assert float(output.metrics["accuracy"].sum) == sum(c > r for c, r in zip(chosen, rejected, strict=True))


def test_a_score_is_read_at_the_last_token_even_where_that_is_the_padding_token(model):
    """transformers would skip token 0, the model's pad_token_id, and read one token early."""
    ends_with_padding = pair(chosen=[20, 21, 0], rejected=[20, 30, 0])
    output = RewardLoss()(model, batch_of([ends_with_padding], [0], [1]))
    assert float(output.metrics["chosen_score"].sum) == pytest.approx(score(model, [*PROMPT, 20, 21, 0]), abs=1e-5)


def test_weights_and_margins_are_each_pairs_own(model):
    pairs = [pair(), pair("b", [9, 9], [40, 2], [40, 41, 2])]
    alone = [
        float(RewardLoss(0.1)(model, batch_of([document], [margin], [1])).terms["loss"].sum)
        for document, margin in zip(pairs, (0.5, 0.0), strict=True)
    ]
    output = RewardLoss(0.1)(model, batch_of(pairs, [0.5, 0.0], [2.0, 0.25]))
    assert float(output.terms["loss"].sum) == pytest.approx(2 * alone[0] + 0.25 * alone[1], abs=1e-5)
    assert float(output.terms["loss"].count) == 2.25


def test_padding_and_silenced_rows_add_nothing(model):
    batch = batch_of([pair()], [0.5], [1])
    plain, padded = (float(RewardLoss(0.1)(model, each).terms["loss"].sum) for each in (batch, pad(batch, 8)))
    assert padded == pytest.approx(plain, abs=1e-6)
    output = RewardLoss(0.1)(model, batch.silenced())
    output.terms["loss"].sum.backward()
    assert float(output.terms["loss"].sum) == float(output.terms["loss"].count) == 0
    assert float(model.score.weight.grad.abs().sum()) == 0
    model.zero_grad()


def test_validation_is_the_loss_without_margins_and_centring(model):
    batches = [batch_of([pair()], [0.9], [2]), batch_of([pair("b", [9, 9], [40, 2], [40, 41, 2])], [0], [1])]
    found = validation_of_pairs(model, batches, "float32", World.alone(torch.device("cpu")))()
    plain = [RewardLoss()(model, replace(each, margins=torch.zeros(1))) for each in batches]
    wanted = sum(float(output.terms["loss"].sum) for output in plain) / 3
    assert found["validation_loss"] == pytest.approx(wanted, abs=1e-6)
    assert validation_of_pairs(model, [], "float32", World.alone(torch.device("cpu"))) is None
