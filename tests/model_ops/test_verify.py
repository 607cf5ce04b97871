"""verify finds nothing wrong with what the operations write, and names each thing that is broken afterwards."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_drafters import tiny_eagle3
from tiny_models import tiny_model, write_target

from model_ops.files.tensor_files import TensorFileError, read_headers, read_metadata, write_stream
from model_ops.jobs import Progress
from model_ops.operations.quantize import quantize_directory
from model_ops.verify import verify

HOUSE = Path(__file__).resolve().parents[3] / "shared" / "models" / "house"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("verify")
    write_target(root / "model", layers=8)
    quantize_directory(root / "model", root / "quantized", Progress())
    target = tiny_model(layers=8, vocab_size=300)
    tiny_eagle3(target).save(root / "drafter", 3)
    tiny_eagle3(target, newer=True).save(root / "newer", 3)
    tiny_eagle3(target, num_layers=3).save(root / "deep", 3)
    return root


@pytest.fixture
def copies(originals, tmp_path):
    return Path(shutil.copytree(originals, tmp_path / "copies"))


def edit_json(path, **changes):
    content = json.loads(path.read_text())
    for name, value in changes.items():
        if value is None:
            content.pop(name, None)
        else:
            content[name] = value
    path.write_text(json.dumps(content))


def edit_tensors(directory, change):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def sentences(directory, target=None):
    return " | ".join(problem.sentence for problem in verify(directory, target))


def test_what_the_operations_write_is_sound(originals):
    for name in ("model", "quantized"):
        assert verify(originals / name) == []
    for name in ("drafter", "drafter/speculators", "newer", "newer/speculators", "deep", "deep/speculators"):
        assert verify(originals / name, originals / "model") == [], name


@pytest.mark.skipif(not HOUSE.exists(), reason="the shared real model is not beside this checkout")
def test_a_real_model_is_sound():
    assert verify(HOUSE) == []


def test_torch_is_not_imported():
    code = "import sys, model_ops.verify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def config(file="config.json", **changes):
    return lambda directory: edit_json(directory / file, **changes)


def twin(**changes):
    return config("speculators/config.json", **changes)


def generation(**changes):
    return config("generation_config.json", **changes)


def tensors(change):
    return lambda directory: edit_tensors(directory, change)


BROKEN = {
    ("model", "tensor model.layers.3.mlp.up_proj.weight is missing"): tensors(
        lambda t: t.pop("model.layers.3.mlp.up_proj.weight")
    ),
    ("model", "tensor model.norm.weight is [31], config.json requires [32]"): tensors(
        lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:31].clone()})
    ),
    ("model", "tensor model.layers.7.input_layernorm.weight is not described"): config(num_hidden_layers=7),
    ("model", "tensor model.embed_tokens.weight is [300, 32], config.json requires [200, 32]"): config(vocab_size=200),
    ("model", "tensor lm_head.weight is missing"): config(tie_word_embeddings=False),
    ("model", "lm_head.weight is stored with other values"): tensors(
        lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1})
    ),
    ("model", "is F32, config.json says bfloat16"): tensors(
        lambda t: t.update({"model.norm.weight": t["model.norm.weight"].float()})
    ),
    ("model", "hidden_size = None, not a positive whole number"): config(hidden_size=None),
    ("model", "config.json is not JSON"): lambda d: (d / "config.json").write_text("{"),
    ("model", "tokenizer.json is missing"): lambda d: (d / "tokenizer.json").unlink(),
    ("model", "tokenizer.json holds no valid vocabulary"): lambda d: (d / "tokenizer.json").write_text("{}"),
    ("model", "no chat template"): lambda d: (d / "chat_template.jinja").unlink(),
    ("model", "generation_config.json is missing"): lambda d: (d / "generation_config.json").unlink(),
    ("model", "eos_token_id 300 is not in the vocabulary"): generation(eos_token_id=[300]),
    ("model", "eos_token_id None"): generation(eos_token_id=None),
    ("model", "copy it again"): lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-1]),
    ("model", "is truncated or not a safetensors file"): lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 100),
    ("model", "model.safetensors does not exist"): lambda d: (d / "model.safetensors").unlink(),
    ("quantized", "tensor model.layers.0.mlp.down_proj.weight_scale is missing"): tensors(
        lambda t: t.pop("model.layers.0.mlp.down_proj.weight_scale")
    ),
    ("quantized", "weight_scale must be positive finite"): tensors(
        lambda t: t["model.layers.1.mlp.up_proj.weight_scale"].zero_()
    ),
    ("quantized", "is BF16, the quantized layout asks I8"): tensors(
        lambda t: t.update({"model.layers.1.mlp.up_proj.weight": t["model.layers.1.mlp.up_proj.weight"].bfloat16()})
    ),
    ("quantized", "which is not read here; known in compressed-tensors layout: FP8"): config(
        quantization_config={"quant_method": "compressed-tensors"}
    ),
    ("quantized", "is not described by config.json"): config(quantization_config=None),
    ("drafter", "must hold offsets"): tensors(lambda t: t["d2t"].add_(torch.arange(40) * 7 + 30)),
    ("drafter", "ascending, distinct"): tensors(lambda t: t["d2t"].__setitem__(3, t["d2t"][2] - 1)),
    ("drafter", "t2d marks"): tensors(lambda t: t["t2d"].logical_not_()),
    ("drafter", "servers read I64 and BOOL"): tensors(lambda t: t.update({"d2t": t["d2t"].int()})),
    ("drafter", "tensor lm_head.weight is [40, 32], config.json requires [50, 32]"): config(draft_vocab_size=50),
    ("drafter", "tensor lm_head.weight is missing"): tensors(lambda t: t.pop("lm_head.weight")),
    ("drafter", "its ids must be distinct"): config(eagle_aux_hidden_state_layer_ids=[2, 4, 4]),
    ("drafter", "outside the target's 8 layers"): config(eagle_aux_hidden_state_layer_ids=[2, 4, 9]),
    ("drafter", "not three boundaries"): config(eagle_aux_hidden_state_layer_ids=None),
    ("drafter", "it must be one below"): config(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}),
    ("drafter", "below the target's 256"): config(max_position_embeddings=128),
    ("drafter", "norm_before_residual must be false"): config(norm_before_residual=True),
    ("drafter", "config.json says float16"): config(dtype="float16", torch_dtype="float16"),
    ("drafter", "write both, equal"): config(rope_theta=500_000.0),
    ("drafter", "the target's is 300"): config(vocab_size=301),
    ("drafter", "norm_before_residual is not true or false"): twin(norm_before_residual=None),
    ("drafter", "norm_before_residual is true"): twin(norm_before_residual=True),
    ("drafter", "does not name the target"): twin(
        speculators_config={"proposal_methods": [{"speculative_tokens": 3}], "verifier": {}}
    ),
    ("drafter", "names no number of speculative_tokens"): twin(speculators_config={"verifier": {"name_or_path": "x"}}),
    ("drafter", "must be a llama or qwen3 config"): twin(transformer_layer_config={"model_type": "gpt2"}),
    ("drafter", "differs between the two layouts"): lambda d: edit_tensors(d / "speculators", lambda t: t["fc.weight"].add_(1)),
    ("newer", "norm_output is None, the weights were trained with True"): config(norm_output=None),
    ("newer", "norm_output is False, the weights were trained with True"): twin(norm_output=False),
    ("newer", "tensor fc_norm.0.weight is not described"): config(fc_norm=False),
    ("drafter", "norm_output is True, the weights were trained with False"): config(norm_output=True),
    ("drafter", "tensor fc_norm.2.weight is missing"): config(fc_norm=True),
    ("deep", "tensor layers.2.input_layernorm.weight is not described"): config(num_hidden_layers=2),
    ("deep", "tensor layers.3.mlp.up_proj.weight is missing"): config(num_hidden_layers=4),
    ("deep", "num_hidden_layers = None, not a positive whole number"): config(num_hidden_layers=None),
    ("deep", "tensor layers.1.self_attn.q_proj.weight is [32, 64], config.json requires [32, 32]"): tensors(
        lambda t: t.update({"layers.1.self_attn.q_proj.weight": t["midlayer.self_attn.q_proj.weight"].clone()})
    ),
    ("drafter", "rope_scaling is None, where servers of transformers 4 look, and rope_parameters.rope_type 'linear'"): config(
        rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    ),
    ("drafter", "rope_scaling is {'type': 'linear', 'factor': 2.0}"): config(rope_scaling={"type": "linear", "factor": 2.0}),
    ("drafter", "does not hold 2, an end of text"): tensors(
        lambda t: (
            t["t2d"].__setitem__(2, False),
            t["t2d"].__setitem__(299, True),
            t["d2t"].copy_(t["t2d"].nonzero().flatten() - torch.arange(40)),
        )
    ),
}


@pytest.mark.parametrize(("where", "expected"), BROKEN)
def test_what_is_broken_is_named(copies, where, expected):
    BROKEN[where, expected](copies / where)
    assert expected in sentences(copies / where, None if where in ("model", "quantized") else copies / "model")


def test_every_end_of_text_of_the_generation_config_must_be_draftable(copies):
    drafted = load_file(copies / "drafter" / "model.safetensors")["t2d"].nonzero().flatten().tolist()
    outside = next(token for token in range(300) if token not in drafted)
    edit_json(copies / "model" / "generation_config.json", eos_token_id=[2, outside])
    assert f"does not hold {outside}, an end of text" in sentences(copies / "drafter", copies / "model")


def test_the_weights_say_what_they_were_trained_with(originals):
    for folder in ("newer", "newer/speculators"):
        found = json.loads(read_metadata(originals / folder / "model.safetensors")["trained_with"])
        assert found == {"fc_norm": True, "norm_output": True}
    config = json.loads((originals / "newer" / "config.json").read_text())
    assert config["fc_norm"] is config["norm_output"] is True and config["norm_before_fc"] is False
    assert read_metadata(originals / "model" / "model.safetensors").get("trained_with") is None


def write_manifest(directory, kind="model"):
    files = [
        {
            "path": path.relative_to(directory).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    ]
    (directory / "manifest.json").write_text(json.dumps({"kind": kind, "files": files}))


def test_files_against_the_manifest(copies):
    model = copies / "model"
    write_manifest(model)
    (model / ".work").mkdir()
    (model / ".work" / "scratch").write_text("x")
    assert verify(model) == []
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("user", "User") + " ")
    assert "chat_template.jinja has" in sentences(model) and "bytes, manifest.json says" in sentences(model)
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert "model.safetensors has sha256" in sentences(model)
    (model / "generation_config.json").unlink()
    (model / "extra.bin").write_bytes(b"")
    assert "generation_config.json is listed in manifest.json and missing" in sentences(model)
    assert "extra.bin is not listed" in sentences(model)
    edit_json(model / "manifest.json", files=[{"path": "../../x", "bytes": 1, "sha256": ""}])
    assert "outside the directory" in sentences(model)
    (model / "manifest.json").write_text(json.dumps({"files": 3}))
    assert "no readable list of files" in sentences(model)


def test_releases_verify_their_members(copies):
    write_manifest(copies, "release")
    assert verify(copies) == []
    (copies / "drafter" / "config.json").unlink()
    (copies / "quantized" / "tokenizer.json").unlink()
    found = sentences(copies)
    assert "drafter/config.json is listed in manifest.json and missing" in found
    assert "tokenizer.json is missing" in found


def test_what_is_no_artefact_at_all(tmp_path):
    assert "neither config.json nor manifest.json" in sentences(tmp_path)
    assert "is not a directory" in sentences(tmp_path / "nothing")


def test_headers_that_lie_are_refused(tmp_path):
    def write(header, data=b"\0" * 8):
        encoded = json.dumps(header).encode()
        (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
        return tmp_path / "x.safetensors"

    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert read_headers(write({"a": entry}))["a"].shape == (2,)
    for header, expected in [
        ({"a": {**entry, "shape": [3]}}, "not the 8 bytes"),
        ({"a": {**entry, "dtype": "F99"}}, "unknown dtype"),
        ({"a": {"dtype": "F32"}}, "incomplete"),
        ({"a": {**entry, "data_offsets": [0, 8]}, "b": {**entry, "data_offsets": [4, 12]}}, "overlap"),
        ({"a": {**entry, "data_offsets": [8, 16]}}, "hole"),
        ({"a": {**entry, "shape": [-2], "data_offsets": [8, 0]}}, "bytes given"),
        ([1], "not a JSON object"),
    ]:
        with pytest.raises(TensorFileError, match=expected):
            read_headers(write(header))


@settings(max_examples=30, deadline=None)
@given(shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_streams_are_read_back_by_safetensors(tmp_path_factory, shapes, seed):
    path = tmp_path_factory.mktemp("stream") / "model.safetensors"
    torch.manual_seed(seed)
    tensors = {f"t{place}": torch.randn(shape) for place, shape in enumerate(shapes)}
    layout = {name: ("F32", tuple(tensor.shape)) for name, tensor in tensors.items()}
    write_stream(path, layout, ((name, tensor.numpy().tobytes()) for name, tensor in tensors.items()))
    found = load_file(path)
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    headers = read_headers(path)
    assert all(headers[name].read() == tensor.numpy().tobytes() for name, tensor in tensors.items())
    with pytest.raises(TensorFileError, match=r"announced"):
        write_stream(path, {**layout, "more": ("F32", (1,))}, ((n, t.numpy().tobytes()) for n, t in tensors.items()))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), where=st.sampled_from(["model", "quantized", "drafter", "drafter/speculators"]))
def test_no_config_makes_verify_fail_itself(originals, data, where):
    """Whatever stands in a config, verify answers with problems, not with an exception."""
    path = originals / where / data.draw(st.sampled_from(["config.json", "generation_config.json"]))
    if not path.exists():
        path = path.with_name("config.json")
    before = path.read_text()
    content = json.loads(before)
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(JSON_VALUES)
    try:
        path.write_text(json.dumps(content))
        assert all(problem.sentence for problem in verify(originals / where, originals / "model"))
    finally:
        path.write_text(before)
