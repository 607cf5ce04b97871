"""Schemes in the format of bitsandbytes: the bytes that transformers writes, the products that bitsandbytes computes."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from model_ops.errors import ModelError
from model_ops.models.float_weights import float_weight
from model_ops.models.quantized_base import float_form
from model_ops.models.tiny_families import tiny_model
from model_ops.models.verify_model import verify_weights
from model_ops.operations.quantize import quantize_directory
from model_ops.operations.quantize_settings import QuantizeSettings
from model_ops.progress import Progress
from model_ops.quantization.bitsandbytes_state import STATE
from model_ops.quantization.int8_linear import Int8Linear
from model_ops.quantization.llm_int8_linear import LlmInt8Linear
from model_ops.quantization.nf4_linear import DoubleNf4Linear, Nf4Linear
from model_ops.quantization.quantized_model import load_quantized
from model_ops.quantization.registry import SCHEMES, quantization_of
from model_ops.tensor_files import read_directory

THEIRS = {
    "bnb_nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16},
    "bnb_nf4_double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16,
                       "bnb_4bit_use_double_quant": True},
    "bnb_int8": {"load_in_8bit": True}}
"""Scheme -> arguments of transformers' BitsAndBytesConfig."""


def written(place, family, name, dtype=torch.bfloat16, **changes):
    """A directory that we quantized, and its float form."""
    tiny_model(family, attention="eager", **changes).to(dtype).save_pretrained(place / "float")
    quantize_directory(place / "float", place / name, Progress(), SCHEMES[name])
    return place / name, place / "float"


def assert_scales_agree(ours, theirs, table):
    """8-bit scales: bitsandbytes' CPU kernel finds codes by a table of its own, which misses the nearest value now and then by
    a step, or near zero by 2e-5; ours are the nearest."""
    assert ours.dtype == theirs.dtype == torch.uint8 and (ours == theirs).float().mean() > 0.9
    torch.testing.assert_close(table[ours.long()], table[theirs.long()], rtol=0.07, atol=3e-5)


@pytest.mark.parametrize(("family", "name"), [
    ("llama", "bnb_nf4"), ("llama", "bnb_nf4_double"), ("llama", "bnb_int8"),  # widths of 32 and 48: blocks span rows
    ("phi3", "bnb_nf4"), ("gemma2", "bnb_nf4_double"), ("qwen2", "bnb_int8"), ("lfm2", "bnb_nf4")])
def test_files_are_those_that_transformers_writes(family, name, tmp_path):
    pytest.importorskip("bitsandbytes")
    ours, source = written(tmp_path, family, name)
    model = AutoModelForCausalLM.from_pretrained(source, quantization_config=BitsAndBytesConfig(**THEIRS[name]),
                                                 dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs")
    found, wanted = load_file(ours / "model.safetensors"), load_file(tmp_path / "theirs/model.safetensors")
    assert found.keys() == wanted.keys()
    for part in found:
        if part.endswith(STATE) and name == "bnb_nf4_double":  # ours ends with spaces
            assert json.loads(bytes(found[part].tolist())) == json.loads(bytes(wanted[part].tolist()))
        elif part.endswith(".absmax") and name == "bnb_nf4_double":
            assert_scales_agree(found[part], wanted[part], wanted[part.replace("absmax", "nested_quant_map")])
        else:
            assert found[part].dtype == wanted[part].dtype and torch.equal(found[part], wanted[part]), part
    said, theirs = (json.loads((place / "config.json").read_text())["quantization_config"] for place in (ours, tmp_path / "theirs"))
    assert said.pop("llm_int8_skip_modules")[0] == "lm_head" and theirs.pop("llm_int8_skip_modules") is None
    assert said == theirs


@pytest.mark.parametrize("name", THEIRS)
def test_transformers_computes_what_our_layers_compute(name, tmp_path):
    """Widths are multiples of 64: bitsandbytes 0.50.2 decodes others wrongly on a CPU. Its kernel for AVX-512, which rounds the
    scales to bfloat16, is switched off."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    ours, _ = written(tmp_path, "llama", name, torch.float32, hidden_size=64, intermediate_size=128)
    theirs = AutoModelForCausalLM.from_pretrained(ours)
    layers = [layer for layer in theirs.modules() if isinstance(layer, (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt))]
    assert len(layers) == 2 * 7
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        found, wanted = load_quantized(ours, torch.float32)(ids).logits, theirs(ids).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


def test_large_activations_are_multiplied_in_sixteen_bits():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(48, 96, generator=generator), torch.randn(48, generator=generator)
    hidden = torch.randn(5, 96, generator=generator)
    hidden[1, 7], hidden[3, 50], hidden[3, 7] = 40.0, -9.0, 6.0
    theirs = bitsandbytes.nn.Linear8bitLt(96, 48, has_fp16_weights=False, threshold=6.0)
    theirs.weight = bitsandbytes.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False).to("cpu")
    theirs.bias = torch.nn.Parameter(bias)
    ours = LlmInt8Linear(96, 48, True, torch.float32, SCHEMES["bnb_int8"].stored(48, 96))
    ours.hold(LlmInt8Linear.encode(weight))
    ours.bias = bias
    with torch.no_grad():
        torch.testing.assert_close(ours(hidden), theirs.eval()(hidden), rtol=0, atol=1e-4)
    plain = Int8Linear(96, 48, True, torch.float32, SCHEMES["w8a8"].stored(48, 96))
    plain.hold(Int8Linear.encode(weight))
    plain.bias = bias
    exact = hidden @ weight.T + bias
    lost, lost_by_plain = ((layer(hidden) - exact)[1].norm() for layer in (ours, plain))
    assert lost < 0.5 * lost_by_plain, "the other inputs of the token keep their fine scale"


@pytest.mark.parametrize(("kind", "double"), [(Nf4Linear, False), (DoubleNf4Linear, True)])
@pytest.mark.parametrize("shape", [(11, 9), (48, 32), (300, 128)])
def test_codes_are_those_of_the_library(kind, double, shape):
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    weight[0] = 0
    stored = kind.encode(weight.float())
    packed, state = functional.quantize_4bit(weight, compress_statistics=double, quant_type="nf4")
    for part, tensor in state.as_dict(packed=True).items():
        if part == "absmax" and double:
            assert_scales_agree(stored["weight.absmax"], tensor, state.state2.code)
        elif not part.startswith("quant_state"):
            assert torch.equal(stored[f"weight.{part}"], tensor), part
    assert torch.equal(stored["weight"], packed)
    if weight.numel() % 2:
        return  # the library compiles what decodes these
    flat = functional.QuantState(absmax=state.absmax, shape=torch.Size((1, weight.numel())), code=state.code, blocksize=64,
                                 quant_type="nf4", dtype=torch.float32, offset=state.offset, state2=state.state2)
    if double:
        stored["weight.absmax"] = state.absmax
    torch.testing.assert_close(kind.decode(stored), functional.dequantize_4bit(packed, flat).view(shape), rtol=0, atol=1e-6)


def test_nothing_needs_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    for name in THEIRS:
        (tmp_path / name).mkdir()
        ours, source = written(tmp_path / name, "llama", name)
        config = json.loads((ours / "config.json").read_text())
        assert quantization_of(config).scheme_of("model.layers.0.mlp.up_proj") is SCHEMES[name]
        assert not quantization_of(config).covers("lm_head")
        assert verify_weights(config, read_directory(ours)) == []
        float_logits, logits = (model(torch.arange(3, 20)[None]).logits for model in (
            AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), load_quantized(ours, torch.float32)))
        assert (logits - float_logits).norm() < (0.1 if name == "bnb_int8" else 0.5) * float_logits.norm()


@pytest.mark.parametrize("name", THEIRS)
def test_training_from_such_a_directory_reads_the_same_weights(name, tmp_path):
    ours, _ = written(tmp_path, "llama", name)
    config = json.loads((ours / "config.json").read_text())
    form, model = float_form(config, read_directory(ours)), load_quantized(ours, torch.float32)
    for module in ("model.layers.0.mlp.down_proj", "model.layers.1.self_attn.k_proj"):
        layer = model.get_submodule(module)
        torch.testing.assert_close(float_weight(form.sources[f"{module}.weight"]), layer.decode(layer.held()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_experts_are_refused_before_anything_is_written(family, tmp_path):
    with pytest.raises(ModelError, match="has experts, which bitsandbytes leaves in floats"):
        written(tmp_path, family, "bnb_nf4")
    assert not (tmp_path / "bnb_nf4").exists()


@pytest.mark.parametrize(("name", "value", "said"), [
    ("bnb_nf4", float("nan"), "not finite"), ("bnb_int8", float("inf"), "not finite"),
    ("bnb_int8", 1e5, "a weight is 100000, and bitsandbytes reads weights as float16")])
def test_weights_that_have_no_code_leave_nothing(name, value, said, tmp_path):
    _, source = written(tmp_path, "llama", "bnb_nf4_double", torch.float32)
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=said) as error:
        quantize_directory(source, tmp_path / "q", Progress(), SCHEMES[name])
    assert "model.layers.1.mlp.up_proj.weight" in str(error.value) and list((tmp_path / "q").iterdir()) == []


def test_a_quantized_model_is_refused(tmp_path):
    ours, _ = written(tmp_path, "llama", "bnb_nf4")
    with pytest.raises(ModelError, match="is quantized already"):
        quantize_directory(ours, tmp_path / "twice", Progress(), SCHEMES["bnb_int8"])


def test_damaged_scales_are_a_fault(tmp_path):
    ours, _ = written(tmp_path, "llama", "bnb_nf4")
    config, tensors = json.loads((ours / "config.json").read_text()), load_file(ours / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight.absmax"][2] = float("nan")
    save_file(tensors, ours / "model.safetensors", {"format": "pt"})
    assert "must be finite floats from 0" in str(verify_weights(config, read_directory(ours))[0])


@pytest.mark.parametrize(("settings", "said"), [
    ({"scheme": "bnb_nf4", "kv_cache": "fp8"}, "kv_cache needs the compressed-tensors layout"),
    ({"scheme": "bnb_int8", "mtp_layer": True}, "mtp_layer needs the compressed-tensors layout"),
    ({"scheme": "bnb_nf4", "method": "gptq"}, "scheme bnb_nf4 rounds to nearest"),
    ({"scheme": "auto", "budget": 0.4, "candidates": ["bnb_nf4", "w4a16"]}, "candidates")])
def test_what_the_format_cannot_hold_is_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        QuantizeSettings.model_validate(settings)


def test_other_configs_of_the_library_are_refused_in_words():
    config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}}
    with pytest.raises(ModelError, match="describes bitsandbytes, which is not read here"):
        quantization_of(config)
    config["quantization_config"] |= {"bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": "lm_head"}
    with pytest.raises(ModelError, match="not a list of names"):
        quantization_of(config)
