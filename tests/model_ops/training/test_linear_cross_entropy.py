"""The chunked head against the plain formula: value, both gradients, weights, and what is dropped."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3Config, Qwen3ForCausalLM

import model_ops.models.attention  # noqa: F401  registers "packed"
from model_ops.documents.packing import Document, to_batch
from model_ops.losses import Head, chunked_head, chunked_rows, cross_entropy_rows, label_log_probs, token_nll
from model_ops.objectives.sft import next_token_loss
from model_ops.tensors.batch import IGNORED


@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
def test_value_and_gradients_equal_the_plain_formula(chunk_rows):
    torch.manual_seed(0)
    hidden = torch.randn(23, 8, requires_grad=True)
    weight = torch.randn(31, 8, requires_grad=True)
    labels, weights = torch.randint(31, (23,)), torch.rand(23)
    total, losses = chunked_head(hidden, Head(weight), cross_entropy_rows(labels, weights), chunk_rows)
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
    total, _ = chunked_head(hidden, Head(weight), cross_entropy_rows(labels, torch.ones(50)), 16)
    torchs = F.linear_cross_entropy(hidden, weight, labels, reduction="sum")
    torch.testing.assert_close(total, torchs, rtol=1e-5, atol=1e-4)


def tiny(**changes):
    torch.manual_seed(2)
    config = {
        "vocab_size": 41,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 24,
        "tie_word_embeddings": True,
        **changes,
    }
    return Qwen3ForCausalLM(Qwen3Config(**config, attn_implementation="packed"))


def batch():
    generator = torch.Generator().manual_seed(5)
    rows = [
        Document(
            f"r{n}", torch.randint(41, (n,), generator=generator).numpy(), (torch.rand(n, generator=generator) < 0.5).numpy()
        )
        for n in (9, 1, 30)
    ]
    return to_batch(rows)


def test_the_models_loss_is_that_of_its_logits_with_a_tied_head():
    model, rows = tiny(), batch()
    output = next_token_loss(model, rows)
    output.terms["loss"].sum.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    logits = model(**rows.model_inputs).logits[0]
    plain = F.cross_entropy(logits, rows.labels, ignore_index=IGNORED, reduction="sum")
    plain.backward()
    torch.testing.assert_close(output.terms["loss"].sum, plain, rtol=1e-5, atol=1e-5)
    assert float(output.terms["loss"].count) == int((rows.labels != IGNORED).sum())
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("soft_cap", [None, 2.5])
def test_bias_scale_and_soft_cap_equal_the_plain_formula(bias, scale, soft_cap):
    torch.manual_seed(3)
    hidden, weight = torch.randn(23, 8, requires_grad=True), torch.randn(31, 8, requires_grad=True)
    added = torch.randn(31, requires_grad=True) if bias else None
    labels, weights, z_loss, hits = torch.randint(31, (23,)), torch.rand(23), 0.01, torch.zeros(23)
    total, _ = chunked_head(
        hidden, Head(weight, added, scale, soft_cap), cross_entropy_rows(labels, weights, z_loss, hits), chunk_rows=5
    )
    logits = (F.linear(hidden, weight, added)) * scale
    logits = soft_cap * torch.tanh(logits / soft_cap) if soft_cap else logits
    plain = F.cross_entropy(logits, labels, reduction="none") + z_loss * logits.logsumexp(-1).square()
    inputs = [hidden, weight] + ([added] if bias else [])
    theirs = torch.autograd.grad((plain * weights).sum(), inputs)
    for one, other in zip(torch.autograd.grad(total, inputs), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert hits.tolist() == (logits.argmax(-1) == labels).float().tolist()


def test_nothing_is_made_for_what_is_frozen():
    hidden, weight, labels = torch.randn(9, 4, requires_grad=True), torch.randn(7, 4), torch.randint(7, (9,))
    total, _ = chunked_head(hidden, Head(weight), cross_entropy_rows(labels, torch.ones(9)))
    assert total.grad_fn.gradients[1] is None
    total.backward()
    assert hidden.grad.abs().sum() > 0 and weight.grad is None


def test_no_tensor_of_tokens_times_vocabulary_is_ever_made():
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.elements = max(self.elements, out.numel())
            return out

    hidden, weight = torch.randn(400, 4, requires_grad=True), torch.randn(1_000, 4, requires_grad=True)
    with Largest() as largest:
        total, _ = chunked_head(hidden, Head(weight), cross_entropy_rows(torch.zeros(400).long(), torch.ones(400)), 32)
        total.backward()
    assert largest.elements == 32 * 1_000


@pytest.mark.parametrize("change", ["bias", "soft cap", "scale", "no linear layer"])
def test_every_head_gives_the_loss_of_the_models_own_logits(change):
    """Gemma caps its logits, Cohere and Granite scale them; what is understood by none of this goes another way."""
    model, rows = tiny(), batch()
    if change == "bias":
        model.lm_head.bias = torch.nn.Parameter(torch.randn(41))
        logits = model(**rows.model_inputs).logits[0]
    elif change == "no linear layer":
        model.set_output_embeddings(torch.nn.Sequential(torch.nn.Linear(16, 41), torch.nn.Tanh()))
        logits = model(**rows.model_inputs).logits[0]
    else:
        logits = model(**rows.model_inputs).logits[0]
        if change == "soft cap":
            model.config.final_logit_softcapping = 0.1
            logits = 0.1 * torch.tanh(logits / 0.1)
        else:
            model.config.logit_scale, model.config.logits_scaling = 3.0, 2.0
            logits = logits * 3.0 / 2.0
    plain = F.cross_entropy(logits, rows.labels, ignore_index=IGNORED, reduction="sum")
    torch.testing.assert_close(next_token_loss(model, rows).terms["loss"].sum, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(token_nll(model, rows)[0].sum(), plain, rtol=1e-5, atol=1e-5)


def test_bfloat16_products_keep_a_float32_softmax():
    model, rows = tiny(), batch()
    exact = float(next_token_loss(model, rows).terms["loss"].sum.detach())
    with torch.autocast("cpu", torch.bfloat16):
        output = next_token_loss(model, rows)
    assert output.terms["loss"].sum.dtype == torch.float32
    assert float(output.terms["loss"].sum.detach()) == pytest.approx(exact, rel=0.02)


def plain_log_probs(hidden, weight, added, scale, soft_cap, labels):
    logits = F.linear(hidden, weight, added) * scale
    logits = soft_cap * torch.tanh(logits / soft_cap) if soft_cap else logits
    return torch.log_softmax(logits, -1).gather(1, labels[:, None])[:, 0]


@pytest.mark.parametrize(("bias", "scale", "soft_cap"), [(False, 1.0, None), (True, 0.3, None), (True, 1.0, 2.5)])
def test_the_loss_of_each_row_is_differentiable_with_coefficients_that_depend_on_all_rows(bias, scale, soft_cap):
    torch.manual_seed(6)
    hidden, weight = torch.randn(23, 8, requires_grad=True), torch.randn(31, 8, requires_grad=True)
    added, labels = torch.randn(31, requires_grad=True) if bias else None, torch.randint(31, (23,))
    inputs = [hidden, weight] + ([added] if bias else [])

    def objective(log_probs):  # no sum over rows: the coefficient of a row depends on every other one
        return F.logsigmoid(log_probs[:12].sum() - log_probs[12:].mean()) + log_probs.square().sum()

    ours = -chunked_rows(hidden, Head(weight, added, scale, soft_cap), lambda weights: cross_entropy_rows(labels, weights), 5)
    theirs = plain_log_probs(hidden, weight, added, scale, soft_cap, labels)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    wanted = torch.autograd.grad(objective(theirs), inputs)
    for one, other in zip(torch.autograd.grad(objective(ours), inputs), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 * float(other.abs().max()))


def test_rows_of_a_frozen_head_need_no_second_product_and_none_needs_all_logits():
    calls = []

    def weighted(weights):
        calls.append(weights)
        return cross_entropy_rows(torch.zeros(9).long(), weights)

    hidden = torch.randn(9, 4, requires_grad=True)
    chunked_rows(hidden, Head(torch.randn(7, 4)), weighted).square().sum().backward()
    assert len(calls) == 1 and hidden.grad.abs().sum() > 0
    chunked_rows(hidden, Head(torch.randn(7, 4, requires_grad=True)), weighted).square().sum().backward()
    assert len(calls) == 3


def test_no_row_has_no_loss_and_a_gradient_of_zero():
    hidden, weight = torch.randn(0, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    chunked_rows(hidden, Head(weight), lambda weights: cross_entropy_rows(torch.zeros(0).long(), weights)).sum().backward()
    assert hidden.grad.shape == (0, 4) and not weight.grad.any()


@pytest.mark.parametrize("linear", [True, False])
def test_log_probabilities_of_labels_are_those_of_the_models_logits(linear):
    model, rows = tiny(), batch()
    if not linear:
        model.set_output_embeddings(torch.nn.Sequential(torch.nn.Linear(16, 41), torch.nn.Tanh()))
    log_probs, kept = label_log_probs(model, rows)
    log_probs.square().sum().backward()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    log_p = torch.log_softmax(model(**rows.model_inputs).logits[0][kept], -1)
    plain = log_p.gather(1, rows.labels[kept, None])[:, 0]
    plain.square().sum().backward()
    torch.testing.assert_close(log_probs, plain, rtol=1e-6, atol=1e-6)
    for one, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-4, atol=1e-6 * float(parameter.grad.abs().max()))
