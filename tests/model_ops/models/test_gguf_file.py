"""GGUF with Q8_0 weights: read back by gguf's own reader and by transformers, with the logits of the same weights."""

import json
import math

import numpy as np
import pytest
import torch
from tiny_models import run_job, write_target
from transformers import AutoModelForCausalLM, AutoTokenizer

from model_ops.jobs import ModelError
from model_ops.models import gguf_file, load_model
from model_ops.models.gguf_file import SPLITS, check_gguf, interleaved, split_name, write_gguf

gguf = pytest.importorskip("gguf")


def q8_0(values):
    """Q8_0 written out (ggml-quants.c): for 32 values the largest / 127 as float16, and codes of value * the inverse of that
    number before it was rounded, halves away from zero."""
    groups = values.reshape(-1, 32).astype(np.float32)
    scale = np.abs(groups).max(1, keepdims=True) / np.float32(127)
    codes = groups * np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0)
    codes = np.sign(codes) * np.floor(np.abs(codes) + 0.5)
    return (codes * scale.astype(np.float16).astype(np.float32)).reshape(values.shape)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "mistral"])
def written(request, tmp_path_factory):
    """(model_type, source directory, file)."""
    root = tmp_path_factory.mktemp(request.param)
    write_target(
        root / "model",
        layers=2,
        model_type=request.param,
        tied=request.param == "qwen2",
        hidden_size=64,
        # transformers ignores a file's width of heads for qwen3 and takes 128
        intermediate_size=96,
        head_dim=128 if request.param == "qwen3" else 16,
        **({"sliding_window": None} if request.param == "mistral" else {}),
    )
    assert write_gguf(root / "model", root / gguf_file.FILE) == (root / gguf_file.FILE).stat().st_size
    return request.param, root / "model", root / gguf_file.FILE


def test_every_tensor_is_read_back_as_its_codes(written):
    kind, source, file = written
    reader = gguf.GGUFReader(file)
    found = {tensor.name: tensor for tensor in reader.tensors}
    model = load_model(source)
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    up = found["blk.1.ffn_up.weight"]
    assert up.tensor_type == gguf.GGMLQuantizationType.Q8_0
    np.testing.assert_allclose(
        gguf.quants.dequantize(up.data, up.tensor_type), q8_0(state["model.layers.1.mlp.up_proj.weight"]), rtol=0, atol=1e-7
    )
    assert found["blk.0.attn_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    np.testing.assert_array_equal(found["blk.0.attn_norm.weight"].data, state["model.layers.0.input_layernorm.weight"])
    assert ("output.weight" in found) == (kind != "qwen2")
    query = found["blk.0.attn_q.weight"]
    rows = gguf.quants.dequantize(query.data, query.tensor_type)
    wanted = q8_0(state["model.layers.0.self_attn.q_proj.weight"])
    if kind in ("llama", "mistral"):  # head 1, pair 3: rows 3 and 3 + 8 of 16 lie side by side
        np.testing.assert_allclose(rows[16 + 6 : 16 + 8], wanted[[16 + 3, 16 + 11]], rtol=0, atol=1e-7)
        np.testing.assert_allclose(rows, interleaved(torch.tensor(wanted), 4).numpy(), rtol=0, atol=1e-7)
    else:
        np.testing.assert_allclose(rows, wanted, rtol=0, atol=1e-7)


def test_transformers_loads_the_file_with_the_logits_of_its_codes(written):
    _, source, file = written
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    model = load_model(source).float()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data = torch.tensor(q8_0(parameter.detach().numpy()))
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        found, wanted = theirs(ids).logits, model(ids).logits
        floats = load_model(source).float()(ids).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    assert 0 < (found - floats).norm() < 0.05 * floats.norm()


def test_the_tokenizer_is_the_same(written):
    kind, source, file = written
    ours, theirs = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    text = "def add(a, b):\n    return a + b  # Grüße, 12 345\n"
    assert theirs(text)["input_ids"] == ours(text)["input_ids"]
    assert (theirs.eos_token_id, theirs.chat_template) == (ours.eos_token_id, ours.chat_template)
    fields = gguf.GGUFReader(file).fields
    split = "qwen2" if kind == "qwen2" else "gpt-2"  # AutoTokenizer gives this family its own, whatever tokenizer.json says
    assert fields["tokenizer.ggml.pre"].contents() == split and fields["tokenizer.ggml.add_bos_token"].contents() is False
    types = fields["tokenizer.ggml.token_type"].contents()
    assert types[ours.eos_token_id] == gguf.TokenType.CONTROL and types[50] == gguf.TokenType.NORMAL


def test_rotary_factors_of_llama_3_are_transformers_own(tmp_path):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "rope_theta": 500_000.0,
        "original_max_position_embeddings": 64,
    }
    write_target(
        tmp_path / "m", layers=2, model_type="llama", hidden_size=64, intermediate_size=64, head_dim=16, rope_parameters=rope
    )
    write_gguf(tmp_path / "m", tmp_path / gguf_file.FILE)
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / gguf_file.FILE).tensors}["rope_freqs.weight"]
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](load_model(tmp_path / "m").config, "cpu")
    plain = 500_000.0 ** -(torch.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(plain.numpy() / found, frequencies.numpy(), rtol=1e-5)


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 64}


def yarn_of_llama_cpp(field, width):
    """Frequencies and the factor on cosine and sine as ggml_rope_yarn computes them from a file, with its own betas 32 and
    1."""
    base, original, factor = field("freq_base"), field("scaling.original_context_length"), field("scaling.factor")
    ends = [width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)]
    low, high = max(0, math.floor(ends[0])), min(width - 1, math.ceil(ends[1]))
    ramp = 1 - np.clip((np.arange(width // 2) - low) / max(0.001, high - low), 0, 1)
    plain = base ** -(np.arange(0, width, 2) / width)
    return plain / factor * (1 - ramp) + plain * ramp, (1 + 0.1 * math.log(factor)) * field("scaling.attn_factor")


@pytest.mark.parametrize(
    "more",
    [
        {}, {"attention_factor": 1.3}, {"attention_factor": 1.0, "factor": 2.0}, {"mscale": 0.7, "mscale_all_dim": 1.0},
        {"mscale": 0.7}, {"factor": None}, {"beta_fast": 32, "beta_slow": 1, "truncate": True},
        {"original_max_position_embeddings": 128},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_yarn_is_that_of_transformers(more, kind, tmp_path):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    width = 128 if kind == "qwen3" else 16
    write_target(
        tmp_path,
        layers=1,
        model_type=kind,
        hidden_size=64,
        intermediate_size=64,
        head_dim=width,
        max_position_embeddings=192,
        rope_parameters={**YARN, **more},
    )
    write_gguf(tmp_path, tmp_path / gguf_file.FILE)
    fields = gguf.GGUFReader(tmp_path / gguf_file.FILE).fields
    assert fields[f"{kind}.rope.scaling.type"].contents() == "yarn"
    frequencies, factor = yarn_of_llama_cpp(lambda name: fields[f"{kind}.rope.{name}"].contents(), width)
    wanted, wanted_factor = ROPE_INIT_FUNCTIONS["yarn"](load_model(tmp_path).config, "cpu")
    np.testing.assert_allclose(frequencies, wanted.numpy(), rtol=1e-5)
    assert factor == pytest.approx(wanted_factor, rel=1e-5)


def test_linear_scaling_is_written_as_its_factor(tmp_path):
    write_target(
        tmp_path,
        layers=1,
        model_type="llama",
        hidden_size=64,
        intermediate_size=64,
        rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 1e4},
    )
    write_gguf(tmp_path, tmp_path / gguf_file.FILE)
    fields = gguf.GGUFReader(tmp_path / gguf_file.FILE).fields
    found = {name.removeprefix("llama.rope."): field.contents() for name, field in fields.items() if ".rope." in name}
    assert (found["scaling.type"], found["scaling.factor"], found["freq_base"]) == ("linear", 2.5, 1e4)
    assert not any("orig" in name or "attn" in name for name in found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gemma2"}, "is a gemma2 model, and GGUF is written here for Llama 3, Mistral, Qwen2, Qwen3"),
        ({"sliding_window": 32, "use_sliding_window": True}, "windows of 32 tokens"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "RoPE of kind longrope"),
        ({"rope_parameters": YARN | {"beta_fast": 4}}, "YaRN with beta_fast 4, which llama.cpp does not read"),
        ({"rope_parameters": YARN | {"beta_fast": 16, "beta_slow": 2}}, "beta_fast 16 and beta_slow 2"),
        ({"rope_parameters": YARN | {"truncate": False}}, "truncate False"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(change, said, tmp_path):
    write_target(tmp_path, layers=2)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=said):
        check_gguf(tmp_path)


def test_splits_are_named_as_llama_cpp_names_them():
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    for split, name in SPLITS.items():
        assert GGUF_PRE_TOKENIZER_SPLITS[name] == split
        parts = [{"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated"}, byte_level]
        given = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}, "model": {"ignore_merges": name == "llama-bpe"}}
        assert split_name(given) == name
        assert split_name({**given, "model": {"ignore_merges": name != "llama-bpe"}}) is None
    assert split_name({"pre_tokenizer": {**byte_level, "use_regex": True}}) == "gpt-2"
    for other in ({"type": "Whitespace"}, None, {**byte_level, "use_regex": True, "add_prefix_space": True}):
        assert split_name({"pre_tokenizer": other}) is None
    assert split_name({"pre_tokenizer": {**byte_level, "use_regex": True}, "normalizer": {"type": "Lowercase"}}) is None


def test_another_split_is_refused(tmp_path):
    write_target(tmp_path / "m", layers=2, hidden_size=64, intermediate_size=64, head_dim=16)
    tokenizer = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {"type": "Whitespace"}
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="cuts text in a way"):
        write_gguf(tmp_path / "m", tmp_path / gguf_file.FILE)
    assert not (tmp_path / gguf_file.FILE).exists()


def test_the_operation_writes_the_file_beside_the_scheme(tmp_path):
    from model_ops.operations import quantize

    write_target(tmp_path / "m", layers=2, hidden_size=64, intermediate_size=64, head_dim=16)
    settings = {"scheme": "w8a8", "gguf": True}
    told = run_job(quantize, tmp_path / "q", {"model": tmp_path / "m"}, **settings)
    assert told["gguf_bytes"] == (tmp_path / "q" / gguf_file.FILE).stat().st_size and told["tensors_quantized"] == 14
    write_target(tmp_path / "other", layers=2, model_type="gemma", hidden_size=64, intermediate_size=64, head_dim=16)
    with pytest.raises(ModelError, match="GGUF is written here for"):
        run_job(quantize, tmp_path / "none", {"model": tmp_path / "other"}, **settings)
    assert not (tmp_path / "none").exists()
