"""Training before rounding: layers compute what servers compute, gradients pass rounding, and the codes are the trained
ones."""

from __future__ import annotations

import json

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from stop_after import StopAfter
from tiny_models import run_job, write_dataset, write_target
from torch import nn
from torch.nn import functional as F

from model_ops.jobs import Job, ModelError, Progress
from model_ops.models.model_directory import load_model
from model_ops.operations import QuantizeSettings, quantize
from model_ops.quantization import SCHEMES, load_quantized
from model_ops.quantization.straight_through import RoundedLinear

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("distil rounding")]


@pytest.mark.parametrize("name", SCHEMES)
def test_forward_is_the_served_layer_and_backward_that_of_rounded_weights(name):
    scheme, generator = SCHEMES[name], torch.Generator().manual_seed(0)
    plain = nn.Linear(256, 128)
    layer, kind = RoundedLinear(plain, scheme), scheme.load_layer()
    hidden = torch.randn(5, 256, generator=generator).requires_grad_()
    output = layer(hidden)
    served = kind(256, 128, True, torch.float32, scheme.stored(128, 256))
    stored = kind.encode(plain.weight.detach())
    served.hold(stored)
    served.bias = plain.bias.detach()
    assert torch.allclose(output, served(hidden.detach()), atol=1e-5)
    upstream = torch.randn(5, 128, generator=generator)
    output.backward(upstream)
    assert torch.allclose(plain.weight.grad, upstream.T @ hidden.detach(), atol=1e-4)
    assert torch.allclose(hidden.grad, upstream @ kind.decode(stored), atol=1e-4)
    assert torch.allclose(plain.bias.grad, upstream.sum(0), atol=1e-5)


def test_a_rounded_layer_keeps_the_names_of_its_parameters():
    layer = RoundedLinear(nn.Linear(32, 8, bias=False), SCHEMES["w8a8"])
    assert list(layer.state_dict()) == ["weight"] and layer(torch.ones(2, 32)).shape == (2, 8)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("aware")
    write_target(root / "float", intermediate_size=64)
    write_dataset(root / "dataset", rows=40)
    return root


def run(place, output, **settings):
    given = {
        "scheme": "w4a16_g32",
        "distil": {
            "enabled": True,
            "steps": 12,
            "learning_rate": 1e-3,
            "tokens_per_step": 512,
            "max_length": 256,
            "precision": "float32",
        },
    }
    return run_job(quantize, output, {"model": place / "float", "dataset": place / "dataset"}, **given, **settings)


def test_training_brings_the_rounded_model_nearer_to_its_float_form(place, tmp_path):
    told = run(place, tmp_path / "aware")
    assert told["divergence_after"] < 0.8 * told["divergence_before"] and told["divergence_before"] > 0
    lines = (tmp_path / "aware" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 12 and json.loads(lines[-1])["kl"] < json.loads(lines[0])["kl"]
    source, written = load_file(place / "float/model.safetensors"), load_file(tmp_path / "aware/model.safetensors")
    rounded = {name.rpartition(".")[0] for name in written if name.endswith(".weight_packed")}
    assert len(rounded) == 8 * 7
    for name, tensor in source.items():
        if name.rpartition(".")[0] not in rounded:
            assert torch.equal(written[name], tensor), f"{name} is not rounded, and stays what it was"


def test_the_codes_are_those_that_were_trained(place, tmp_path):
    """The served model's own divergence, computed from its files with plain torch, is the one that the training reports."""
    told = run(place, tmp_path / "aware")
    from model_ops.documents.conversations import read_documents
    from model_ops.documents.likelihood import validation_documents
    from model_ops.models.model_directory import load_tokenizer
    from model_ops.training.settings import first_documents

    tokenizer = load_tokenizer(place / "float")
    documents = (
        validation_documents(place / "dataset", tokenizer, 256) or read_documents(place / "dataset", "train", tokenizer, 256)[0]
    )
    first, second = load_model(place / "float", attention="eager"), load_quantized(tmp_path / "aware", torch.float32, "eager")
    total, count = 0.0, 0
    for document in first_documents(documents, 8_192):
        ids = torch.tensor(document.input_ids.astype("int64"))[None]
        with torch.no_grad():
            log_p, log_q = (F.log_softmax(model(ids).logits[0, :-1].double(), -1) for model in (first, second))
        learnt = torch.tensor(document.targets[1:])
        total += (log_p.exp() * (log_p - log_q)).sum(-1)[learnt].sum().item()
        count += int(learnt.sum())
    assert total / count == pytest.approx(told["divergence_after"], rel=1e-3)


def test_a_stopped_training_continues_to_the_same_files(place, tmp_path):
    from model_ops.jobs import Stopped

    settings = {
        "scheme": "w8a8",
        "distil": {
            "enabled": True,
            "steps": 8,
            "learning_rate": 1e-3,
            "tokens_per_step": 512,
            "max_length": 256,
            "checkpoint_every": 2,
        },
    }
    job = Job(
        operation="quantize",
        output=tmp_path / "stopped",
        settings=settings,
        inputs={"model": place / "float", "dataset": place / "dataset"},
    )
    (tmp_path / "stopped").mkdir()
    with pytest.raises(Stopped):
        quantize.run(job, StopAfter(6, "distil rounding"))
    quantize.run(job, Progress())
    quantize.run(job.model_copy(update={"output": tmp_path / "whole"}), Progress())
    assert (tmp_path / "stopped/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_what_cannot_be_trained_is_refused(place, tmp_path):
    with pytest.raises(ValidationError, match="method gptq rounds"):
        QuantizeSettings.model_validate({"scheme": "w4a16", "method": "gptq", "distil": {"enabled": True}})
    with pytest.raises(ValidationError, match="one process"):
        QuantizeSettings.model_validate({"distil": {"enabled": True, "mesh": {"dp_shard": 2}}})
    with pytest.raises(ModelError, match=r"quantize\.distil needs a dataset"):
        run_job(quantize, tmp_path, {"model": place / "float"}, distil={"enabled": True})
    assert QuantizeSettings(scheme="w4a16", distil={"enabled": True}).resolved().method == "rtn"
