"""Whose code computes the head's loss: measured, checked against the plain formula, decided once a run."""

import json
import time

import architectures
import pytest
import torch

from model_ops.errors import ModelError
from model_ops.losses import loss_heads
from model_ops.losses.loss_heads import KERNELS, chosen_kernel, measure
from model_ops.objectives.sft import next_token_loss
from model_ops.training.packing import Document, to_batch

CPU = torch.device("cpu")


def twice_as_slow(*given):
    time.sleep(0.05)
    return KERNELS["chunked"](*given)


def wrong(hidden, weight, labels, weights):
    return 1.01 * KERNELS["chunked"](hidden, weight, labels, weights)


def broken(*_):
    raise RuntimeError("no such kernel on this device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_own_head_is_as_exact_as_ours(dtype):
    found = measure(300, 16, CPU, dtype, rows=80)
    assert set(found.seconds) == {"chunked", "torch"} and not found.refused


def test_the_fastest_is_taken_where_it_is_faster_by_a_twentieth(monkeypatch):
    monkeypatch.setitem(KERNELS, "torch", twice_as_slow)
    assert measure(50, 8, CPU, torch.float32, rows=20).kernel == "chunked"
    monkeypatch.setattr(loss_heads, "seconds_of", lambda kernel, given, dtype: 1.0 if kernel is twice_as_slow else 2.0)
    assert measure(50, 8, CPU, torch.float32, rows=20).kernel == "torch"
    monkeypatch.setattr(loss_heads, "seconds_of", lambda kernel, given, dtype: 1.0 if kernel is twice_as_slow else 1.02)
    assert measure(50, 8, CPU, torch.float32, rows=20).kernel == "chunked"


@pytest.mark.parametrize(("kernel", "reason"), [(wrong, "its error against the plain formula is"), (broken, "RuntimeError")])
def test_what_is_wrong_or_does_not_run_is_refused(monkeypatch, kernel, reason):
    monkeypatch.setitem(KERNELS, "torch", kernel)
    found = measure(50, 8, CPU, torch.float32, rows=20)
    assert found.kernel == "chunked" and reason in found.refused["torch"]


def test_a_model_has_the_same_loss_and_gradients_with_torchs_head(tmp_path):
    ids = torch.randint(3, 61, (40,), generator=torch.Generator().manual_seed(1)).numpy()
    batch = to_batch([Document("a", ids, ids % 2 == 0)])
    gradients = []
    for wanted in ("chunked", "torch"):
        model = architectures.build("qwen3")
        output = next_token_loss(model, batch, kernel=chosen_kernel(wanted, model, "float32", tmp_path))
        output.terms["loss"].sum.backward()
        gradients.append([output.terms["loss"].sum.detach(), output.terms["loss"].count, *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_decision_is_kept_for_the_run_that_continues(tmp_path, monkeypatch):
    model = architectures.build("qwen3")
    assert chosen_kernel("auto", model, "bfloat16", tmp_path) is None   # on a CPU ours, without measuring
    (tmp_path / "loss_head.json").write_text(json.dumps({"kernel": "torch"}))
    assert chosen_kernel("auto", model, "bfloat16", tmp_path) is KERNELS["torch"]


def test_a_head_that_a_kernel_has_no_formula_for_is_ours_or_refused(tmp_path):
    capped = architectures.build("gemma2")
    assert chosen_kernel("auto", capped, "bfloat16", tmp_path) is None
    with pytest.raises(ModelError, match="loss_head torch has no bias, scale, soft cap, z-loss or sharded head"):
        chosen_kernel("torch", capped, "bfloat16", tmp_path)
    with pytest.raises(ModelError, match="no bias, scale, soft cap, z-loss or sharded head"):
        chosen_kernel("torch", architectures.build("qwen3"), "bfloat16", tmp_path, z_loss=1e-4)


def test_a_kernel_that_is_not_installed_is_said(tmp_path):
    with pytest.raises(ModelError, match="loss_head liger is not installed; choose one of chunked, torch"):
        chosen_kernel("liger", architectures.build("qwen3"), "bfloat16", tmp_path)
