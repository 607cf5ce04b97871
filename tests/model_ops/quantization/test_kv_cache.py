"""FP8 key-value cache: scales from calibration rows, the config and names that servers read, and a model that rounds as they
do."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file, save_file
from test_gptq import batches, even, job, place, run  # noqa: F401
from tiny_models import tiny_model
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from model_ops.calibration import CacheRanges, calibration_documents, show
from model_ops.decoding.runner import new_runner
from model_ops.documents import Document, to_batches
from model_ops.families.table import FAMILIES, PACKED
from model_ops.files.tensor_files import read_directory
from model_ops.jobs import ModelError, Progress
from model_ops.models.model_directory import load_model
from model_ops.models.tiny_families import tiny_model as tiny_family
from model_ops.models.verify_model import verify_weights
from model_ops.operations import quantize
from model_ops.planning.servers import (
    CACHE,
    SERVERS,
    SUPPORT,
    PlaceError,
    keeps_activations,
    loadable,
    markdown,
    parse_place,
    why_not,
)
from model_ops.quantization import block_layers, quantization_of
from model_ops.quantization.quantized_model import cache_layers, load_quantized, round_cache, round_fp8
from model_ops.quantization.schemes import SCHEMES


def test_every_scheme_has_a_row_with_a_source_for_each_server():
    assert set(SUPPORT) == set(SCHEMES)
    for servers in (*SUPPORT.values(), CACHE):
        assert servers and set(servers) <= set(SERVERS)
        assert all(found.source.startswith(f"{server}: ") for server, found in servers.items())
        assert all(found.cpu is not None for found in servers.values() if found.seen)


@pytest.mark.parametrize(
    ("text", "server", "capability", "amx"),
    [
        ("vllm/cpu", "vllm", None, False), ("SGLang/CPU-AMX", "sglang", None, True), ("vllm/sm75", "vllm", 75, False),
        ("vllm/H100-SXM", "vllm", 90, False), ("transformers/rtx5090", "transformers", 120, False),
    ],
)  # fmt: skip
def test_a_place_is_a_server_and_a_device(text, server, capability, amx):
    parsed = parse_place(text)
    assert (parsed.server, parsed.capability, parsed.amx) == (server, capability, amx)
    assert parse_place(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm", "give one of vllm, sglang"), ("tgi/h100", "give one of vllm, sglang"), ("vllm/", "give one of vllm"),
        ("vllm/tpu", "one of b200, h200"), ("vllm/mi300x", "no device whose compute capability is known"),
    ],
)  # fmt: skip
def test_another_place_is_one_sentence(text, said):
    with pytest.raises(PlaceError, match=said):
        parse_place(text)


def test_what_is_refused_names_what_the_place_loads_and_who_loads_the_scheme():
    refused = why_not("w8a8", parse_place("vllm/b200"))
    assert (
        refused.startswith("vllm/b200 does not load scheme w8a8: choose ")
        and "w8a8 is loaded by vllm on GPU from 7.5" in refused
    )
    for choice in loadable(parse_place("vllm/b200")):
        assert choice in refused and why_not(choice, parse_place("vllm/b200")) is None
    assert why_not("w8a8", parse_place("vllm/h100")) is None and why_not("w8a8", parse_place("vllm/cpu")) is None
    assert "it loads none of the schemes" in why_not("w4a16", parse_place("sglang/cpu"))
    assert why_not("w8a8", parse_place("sglang/cpu-amx")) is None


def test_devices_before_fp8_keep_activations():
    assert keeps_activations("fp8", parse_place("vllm/a100")) and not keeps_activations("fp8", parse_place("vllm/h100"))
    assert not keeps_activations("w4a16", parse_place("vllm/a100")) and not keeps_activations("fp8", parse_place("vllm/cpu"))


def test_the_documentation_holds_the_table():
    page = Path(__file__).parents[3] / "docs" / "quantization.md"
    assert markdown() in page.read_text()


LAYERS = [f"model.layers.{index}.self_attn" for index in range(3)]


def cache_scales(model, layers, rows):
    ranges = CacheRanges(layers)
    show(model, rows, [ranges])
    return ranges.scales()


def cached(model, ids):
    """Keys and values that transformers caches: [(keys, values)] by layer."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]


def handed_to_the_cache(model, rows):
    """Largest absolute key and value that each layer with attention hands to transformers' cache, before a window cuts them."""
    found = {}

    class Listening(DynamicCache):
        def update(self, keys, values, layer_idx, *more, **named):
            found[layer_idx] = [float(each.abs().max()) for each in (keys, values)]
            return super().update(keys, values, layer_idx, *more, **named)

    with torch.no_grad():
        model(rows[0].model_inputs["input_ids"], past_key_values=Listening(config=model.config), use_cache=True)
    return [found[layer] for layer in sorted(found)]


def test_scales_are_the_largest_keys_and_values_that_are_cached():
    model, rows = tiny_model(layers=3), batches()
    model.set_attn_implementation("packed")
    found = cache_scales(model, LAYERS, rows)
    model.set_attn_implementation("sdpa")
    largest = np.zeros((3, 2))
    for batch in rows:
        start = 0
        for length in batch.model_inputs["document_lengths"]:
            ids = batch.model_inputs["input_ids"][:, start : start + length]
            largest = np.maximum(largest, [[each.abs().max().item() for each in pair] for pair in cached(model, ids)])
            start += length
    np.testing.assert_allclose([found[name] for name in LAYERS], largest / 448, rtol=1e-5)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_calibrated_or_refused(family):
    model = tiny_family(family, attention="packed")
    names = block_layers(model).matrices
    if not any(name.endswith(("k_proj", "qkv_proj")) for name in names):
        assert family == "deepseek_v3"
        with pytest.raises(ModelError, match="no layer caches keys and values by heads"):
            cache_layers(names)
        return
    rows = to_batches(
        [Document("r", np.random.default_rng(0).integers(3, 60, 33), np.ones(33, bool))], 64 if family in PACKED else 1
    )
    layers = cache_layers(names)
    found = cache_scales(model, layers, rows)
    assert found and list(found) == list(layers)
    model.set_attn_implementation("eager")
    np.testing.assert_allclose([found[name] for name in layers], np.array(handed_to_the_cache(model, rows)) / 448, rtol=1e-4)


def test_rounding_is_a_cast_to_float8_and_back():
    values = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    wanted = (values / 0.01).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.01
    assert torch.equal(round_fp8(values, 0.01), wanted) and float(round_fp8(torch.tensor([99.0]), 0.01)) == pytest.approx(4.48)


@pytest.fixture(scope="module")
def quantized(place, even, tmp_path_factory):  # noqa: F811
    output = tmp_path_factory.mktemp("cache")
    metrics = run(place, output, even, scheme="w8a16_channel", kv_cache="fp8")
    assert metrics["calibration_rows"] == 20 and metrics["tensors_quantized"] == 21 and "output_error" not in metrics
    return output


def test_config_and_tensors_are_what_servers_read(quantized):
    config = json.loads((quantized / "config.json").read_text())
    found = QuantizationConfig(**config["quantization_config"]).kv_cache_scheme
    assert (found.num_bits, found.type, found.strategy, found.symmetric, found.dynamic) == (8, "float", "tensor", True, False)
    assert (
        quantization_of(config).scheme_of("model.layers.0.mlp.up_proj").name == "w8a16_channel"
        and quantization_of(config).cache
    )
    headers = read_directory(quantized)
    for name in LAYERS:
        assert (headers[f"{name}.k_scale"].dtype, headers[f"{name}.v_scale"].shape) == ("F32", (1,))
    assert verify_weights(config, headers) == []


def test_transformers_computes_the_same_and_float_keys_do_not(quantized):
    ids = torch.arange(5, 40)[None]
    theirs = AutoModelForCausalLM.from_pretrained(quantized, dtype=torch.float32)
    ours = load_quantized(quantized, torch.float32)
    with torch.no_grad():
        wanted, found = theirs(ids).logits, ours(ids).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-3 * float(wanted.abs().max()))
    for (keys, values), (their_keys, their_values) in zip(cached(ours, ids)[:1], cached(theirs, ids)[:1], strict=True):
        torch.testing.assert_close(keys, their_keys, rtol=0, atol=1e-5)
        torch.testing.assert_close(values, their_values, rtol=0, atol=1e-5)
        assert len(keys.unique()) < 256


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "phi3", "lfm2"])
def test_whole_rows_and_cached_decoding_round_alike(family):
    """The cache is rounded whether a model is called without one, decodes step by step, or attends to packed documents."""
    model = tiny_family(family, attention="eager")
    layers = cache_layers(block_layers(model).matrices)
    ids = torch.randint(3, 60, (1, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
        round_cache(model, dict.fromkeys(layers, (0.01, 0.01)))
        whole = model(ids, use_cache=False).logits
        runner = new_runner(model)
        cache, steps = runner.new_cache(rows=1), []
        for part in ids.split([10, 1, 1, 12], dim=1):
            hidden, _ = runner.forward(part, cache)
            steps.append(runner.logits(hidden))
            cache.advance(part.shape[1])
    torch.testing.assert_close(torch.cat(steps, 1), whole.float(), rtol=1e-4, atol=1e-4)
    assert (whole - plain).abs().max() > 1e-3


def test_a_lost_scale_is_named(quantized, tmp_path):
    tensors = load_file(quantized / "model.safetensors")
    (tmp_path / "config.json").write_text((quantized / "config.json").read_text())
    save_file({**tensors, f"{LAYERS[1]}.k_scale": torch.tensor([-1.0])}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    assert "layers.1.self_attn.k_scale must be positive" in str(verify_weights(config, read_directory(tmp_path))[0])
    save_file(
        {name: value for name, value in tensors.items() if name != f"{LAYERS[2]}.v_scale"}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.v_scale is missing"):
        load_quantized(tmp_path)


def test_a_cache_needs_rows(place, tmp_path):  # noqa: F811
    given = job(place, tmp_path / "out", scheme="w8a8", kv_cache="fp8")
    del given.inputs["dataset"]
    with pytest.raises(ModelError, match="kv_cache need a dataset to calibrate with"):
        quantize.run(given, Progress())


@pytest.mark.parametrize(("scheme", "method"), [("w4a16_g32", "gptq"), ("w4a16_g32", "awq"), ("w8a8", "rtn")])
def test_the_cache_s_scales_are_those_of_the_model_that_is_served(place, even, tmp_path, scheme, method):  # noqa: F811
    """Calibrated codes change what is cached, and AWQ scales values. Layers that are rounded alone are measured as they were.
    Sums in bfloat16 come in another order."""
    run(place, tmp_path / "out", even, scheme=scheme, method=method, kv_cache="fp8")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    served = load_model(even) if method == "rtn" else load_quantized(tmp_path / "out", torch.bfloat16, attention="packed")
    rows = to_batches(calibration_documents(place / "data", even, 20, 64, 0), 4096)
    wanted = cache_scales(served, LAYERS, rows)
    found = {layer: tuple(float(stored[f"{layer}.{part}"]) for part in ("k_scale", "v_scale")) for layer in LAYERS}
    np.testing.assert_allclose([found[layer] for layer in LAYERS], [wanted[layer] for layer in LAYERS], rtol=0.04)
    assert quantization_of(json.loads((tmp_path / "out/config.json").read_text())).cache
