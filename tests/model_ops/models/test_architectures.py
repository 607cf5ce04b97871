"""Every architecture: packed rows give the logits and gradients of each document alone in transformers' own eager
attention, a few steps lower the loss, and what is saved is what is read back."""

import pytest
import torch
from architectures import EVERY, build

from model_ops.documents import Document, PackedPlan, to_batch
from model_ops.jobs import Progress
from model_ops.models.model_directory import load_model, save_model
from model_ops.objectives.sft import next_token_loss
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization.quantized_model import load_quantized
from model_ops.training import TrainingSettings, train
from tests.thorough_cases import thorough_except

LENGTHS = [5, 70, 1, 33, 90, 34, 64, 3]


def documents(lengths=LENGTHS, vocab_size=61):
    generator = torch.Generator().manual_seed(11)
    ids = [torch.randint(3, vocab_size, (length,), generator=generator) for length in lengths]
    return [Document(f"row-{i}", one.numpy(), (one > 20).numpy()) for i, one in enumerate(ids)]


def logits_of(model, batch):
    return model(**batch.model_inputs).logits[0]


def alone(model, row):
    ids = torch.from_numpy(row.input_ids).long()[None]
    return model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]


@pytest.mark.parametrize("name", EVERY)
def test_packed_logits_and_gradients_are_those_of_each_document_alone(name):
    packed, eager = build(name), build(name, "eager")
    rows = documents()
    ours = logits_of(packed, to_batch(rows))
    theirs = torch.cat([alone(eager, row) for row in rows])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    # the logits are far from flat, so that equality says something
    assert theirs.std() > 0.1
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for (parameter, one), other in zip(packed.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3 * float(other.grad.abs().max()), msg=parameter)


@pytest.mark.parametrize("name", EVERY)
def test_a_wrong_call_leaks_and_would_be_seen(name):
    """training.md 0.3, stepped on: transformers' own attention given a packed row with a mask of ones, or with a cache,
    lets documents see each other. The same comparison as above must fail then."""
    eager = build(name, "eager")
    rows = documents()
    theirs = torch.cat([alone(eager, row) for row in rows])
    batch = to_batch(rows)
    ids, positions = batch.input_ids[None], batch.position_ids[None]
    with_mask = eager(ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    with_cache = eager.train()(ids, position_ids=positions, use_cache=True).logits[0]
    one_document = build(name)(ids, position_ids=positions, use_cache=False, document_lengths=[batch.tokens]).logits[0]
    for leaking in (with_mask, with_cache, one_document):
        assert (leaking[:5] - theirs[:5]).abs().max() < 1e-3  # the first document sees no other either way
        assert (leaking[5:75] - theirs[5:75]).abs().max() > 0.01
        with pytest.raises(AssertionError):
            torch.testing.assert_close(leaking, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_the_plain_formula_on_unpacked_eager_logits(name):
    packed, eager = build(name), build(name, "eager")
    rows = documents()
    output = next_token_loss(packed, to_batch(rows))
    total, count = 0.0, 0
    for row in rows:
        if len(row) < 2:
            continue
        kept = torch.from_numpy(row.targets[1:])
        labels = torch.from_numpy(row.input_ids).long()[1:][kept]
        total = total + torch.nn.functional.cross_entropy(alone(eager, row)[:-1][kept], labels, reduction="sum")
        count += int(kept.sum())
    assert float(output.terms["loss"].count) == count
    torch.testing.assert_close(output.terms["loss"].sum, total, rtol=1e-5, atol=1e-3)
    output.terms["loss"].sum.backward()
    total.backward()
    for (parameter, one), other in zip(packed.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3 * float(other.grad.abs().max()), msg=parameter)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("precision", thorough_except(["bfloat16"], ["bfloat16", "float32"]))
def test_a_few_steps_lower_the_loss(name, precision, tmp_path):
    model = build(name)
    settings = TrainingSettings(
        steps=12, learning_rate=1e-2, tokens_per_step=300, max_length=256, precision=precision, warmup_share=0.0
    ).resolved()
    rows = documents()
    before = float(next_token_loss(model, to_batch(rows)).terms["loss"].sum.detach())
    result = train(model, PackedPlan(rows, settings), next_token_loss, settings, tmp_path / ".work", Progress(), name)
    assert result.steps == 12
    assert float(next_token_loss(model, to_batch(rows)).terms["loss"].sum.detach()) < 0.8 * before


@pytest.mark.parametrize("name", EVERY)
def test_what_is_saved_gives_the_same_logits_when_read_back(name, tmp_path, tiny_tokenizer):
    model = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())  # what is saved
    batch = to_batch(documents())
    save_model(model, tiny_tokenizer, tmp_path)
    again = load_model(tmp_path)
    torch.testing.assert_close(logits_of(again, batch), logits_of(model, batch), rtol=0, atol=0)


def test_attention_that_looks_ahead_is_refused():
    model = build("gemma2", use_bidirectional_attention=True)
    with pytest.raises(ValueError, match="causal"):
        logits_of(model, to_batch(documents()))


def test_what_a_family_keeps_in_float32_is_saved_and_quantized_as_it_is(tmp_path, tiny_tokenizer):
    model = build("deepseek_v3")
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(torch.tensor([0.1234567, 0.2345678, -0.3456789, 0.4567891]))
    (tmp_path / "saved").mkdir()
    save_model(model, tiny_tokenizer, tmp_path / "saved")
    quantize_directory(tmp_path / "saved", tmp_path / "quantized", Progress())
    for again in (load_model(tmp_path / "saved", torch.bfloat16), load_quantized(tmp_path / "quantized", torch.bfloat16)):
        assert torch.equal(again.model.layers[1].mlp.gate.e_score_correction_bias, bias)
