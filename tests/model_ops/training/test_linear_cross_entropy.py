"""The chunked head against the plain formula: value, both gradients, weights, and what is dropped."""

import pytest
import torch
from torch.nn import functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

import model_ops.models.attention  # noqa: F401  registers "packed"
from model_ops.training.batch import IGNORED
from model_ops.training.linear_cross_entropy import chunked_head, cross_entropy_rows, next_token_loss, token_nll
from model_ops.training.packing import Document, to_batch

torch.set_num_threads(2)


@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
def test_value_and_gradients_equal_the_plain_formula(chunk_rows):
    torch.manual_seed(0)
    hidden = torch.randn(23, 8, requires_grad=True)
    weight = torch.randn(31, 8, requires_grad=True)
    labels, weights = torch.randint(31, (23,)), torch.rand(23)
    total, losses = chunked_head(hidden, weight, cross_entropy_rows(labels, weights), chunk_rows)
    ours = torch.autograd.grad(3 * total, (hidden, weight))
    plain = F.cross_entropy(hidden @ weight.T, labels, reduction="none") * weights
    theirs = torch.autograd.grad(3 * plain.sum(), (hidden, weight))
    torch.testing.assert_close(losses, plain.detach())
    torch.testing.assert_close(total, plain.sum())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_it_agrees_with_torchs_own_chunked_loss():
    torch.manual_seed(1)
    hidden, weight, labels = torch.randn(50, 16), torch.randn(40, 16), torch.randint(40, (50,))
    total, _ = chunked_head(hidden, weight, cross_entropy_rows(labels, torch.ones(50)), 16)
    torchs = F.linear_cross_entropy(hidden, weight, labels, reduction="sum")
    torch.testing.assert_close(total, torchs, rtol=1e-5, atol=1e-4)


def tiny(**changes):
    torch.manual_seed(2)
    config = {"vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "tie_word_embeddings": True, **changes}
    return Qwen3ForCausalLM(Qwen3Config(**config, attn_implementation="packed"))


def batch():
    generator = torch.Generator().manual_seed(5)
    rows = [Document(f"r{n}", torch.randint(41, (n,), generator=generator).numpy(),
                     (torch.rand(n, generator=generator) < 0.5).numpy()) for n in (9, 1, 30)]
    return to_batch(rows)


def test_the_models_loss_is_that_of_its_logits_with_a_tied_head():
    model, rows = tiny(), batch()
    output = next_token_loss(model, rows)
    output.sum.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    logits = model(**rows.model_inputs).logits[0]
    plain = F.cross_entropy(logits, rows.labels, ignore_index=IGNORED, reduction="sum")
    plain.backward()
    torch.testing.assert_close(output.sum, plain, rtol=1e-5, atol=1e-5)
    assert float(output.count) == int((rows.labels != IGNORED).sum())
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-3, atol=1e-5)


def test_a_head_that_is_more_than_a_product_goes_through_the_models_own_logits():
    model, rows = tiny(), batch()
    model.lm_head.bias = torch.nn.Parameter(torch.randn(41))
    logits = model(**rows.model_inputs).logits[0]
    plain = F.cross_entropy(logits, rows.labels, ignore_index=IGNORED, reduction="sum")
    torch.testing.assert_close(next_token_loss(model, rows).sum, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(token_nll(model, rows)[0].sum(), plain, rtol=1e-5, atol=1e-5)


def test_bfloat16_products_keep_a_float32_softmax():
    model, rows = tiny(), batch()
    exact = float(next_token_loss(model, rows).sum.detach())
    with torch.autocast("cpu", torch.bfloat16):
        output = next_token_loss(model, rows)
    assert output.sum.dtype == torch.float32
    assert float(output.sum.detach()) == pytest.approx(exact, rel=0.02)
