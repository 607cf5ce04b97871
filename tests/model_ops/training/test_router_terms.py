"""Router terms: transformers' own formula for the balance, and routers that become balanced by training."""

import pytest
import torch
from architectures import build
from pydantic import ValidationError
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from model_ops.errors import ModelError
from model_ops.objectives.router_terms import RoutedLoss, balance, routers
from model_ops.objectives.sft import next_token_loss
from model_ops.operations.sft_settings import SftSettings
from model_ops.progress import Progress
from model_ops.training.documents import Document, to_batch
from model_ops.training.packing import PackedPlan
from model_ops.training.trainer import train


def rows():
    generator = torch.Generator().manual_seed(3)
    return [Document(f"r{length}", torch.randint(3, 61, (length,), generator=generator).numpy(), torch.ones(length).bool().numpy())
            for length in (30, 12, 21)]


def test_balance_is_the_formula_of_transformers():
    logits = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    theirs = load_balancing_loss_func((logits,), 8, top_k=2)  # it sums over the k choices
    torch.testing.assert_close(balance(logits, 2), theirs / 2)
    assert balance(torch.zeros(50, 8), 8) == 1.0


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_terms_have_gradients_for_routers_and_leave_the_loss_as_it_is(name):
    model = build(name)
    batch, loss = to_batch(rows()), RoutedLoss(next_token_loss, model, balance=0.5, z=0.25)
    plain, output = next_token_loss(model, batch), loss(model, batch)
    assert list(output.terms) == list(loss.counts(batch)) == ["loss", "router_balance", "router_z"]
    torch.testing.assert_close(output.terms["loss"].sum, plain.terms["loss"].sum)
    assert float(loss.counts(batch)["loss"]) == float(output.terms["loss"].count)
    (output.terms["router_balance"].sum + output.terms["router_z"].sum).backward()
    assert all(router.weight.grad.abs().max() > 0 for router in routers(model))


def test_training_with_the_balance_term_balances(tmp_path):
    found = []
    for weight in (0.0, 1.0):
        model = build("qwen3_moe")
        settings = SftSettings(steps=15, learning_rate=1e-2, tokens_per_step=128, max_length=64, precision="float32",
                               router_balance=weight).resolved()
        loss = RoutedLoss(next_token_loss, model, weight, 0.0) if weight else next_token_loss
        train(model, PackedPlan(rows(), settings), loss, settings, tmp_path / str(weight), Progress(), "sft")
        measured = RoutedLoss(next_token_loss, model, 1.0, 0.0)(model, to_batch(rows())).terms["router_balance"]
        found.append(float(measured.sum) / measured.count)
    assert found[1] < found[0] and found[1] < 1.1


def test_a_dense_model_and_frozen_routers_are_refused():
    with pytest.raises(ModelError, match="a qwen3 of this config has no router"):
        RoutedLoss(next_token_loss, build("qwen3"), 0.1, 0.0)
    with pytest.raises(ValidationError, match="method lora leaves them frozen"):
        SftSettings(steps=1, method="lora", router_z=0.1)
