"""A quantized base becomes bfloat16 weights: the values that the format stands for, in a model that loads."""

import json
import shutil

import pytest
import torch
from architectures import build
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file
from tiny_models import run_job, write_target

from model_ops.files.tensor_files import read_directory
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import float_form, load_model, load_tokenizer, save_model
from model_ops.operations import import_base
from model_ops.operations.quantize import quantize_directory
from model_ops.quantization.schemes import SCHEMES

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""Values of E2M1, OCP Microscaling 1.0, table 5."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    write_target(folder / "target", layers=1)
    return load_tokenizer(folder / "target")


def rewritten(folder, name, tokenizer, quantization, change, **sizes):
    """A tiny base whose tensors `change` replaced; also the float tensors that they stand for."""
    folder.mkdir()
    save_model(build(name, "eager", vocab_size=300, **sizes), tokenizer, folder)
    tensors = load_file(folder / "model.safetensors")
    wanted = dict(tensors)
    for key in list(tensors):
        change(key, tensors, wanted)
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return wanted


def imported(folder, wanted, exact=True):
    """Imports the base, compares its tensors, and loads it."""
    output = folder.with_name("imported")
    size = float_form(json.loads((folder / "config.json").read_text()), read_directory(folder)).bytes
    numbers = run_job(import_base, output, model=str(folder))
    found = load_file(output / "model.safetensors")
    assert found.keys() == wanted.keys() and "quantization_config" not in (output / "config.json").read_text()
    for key, value in wanted.items():
        torch.testing.assert_close(
            found[key].float(),
            value.to(found[key].dtype).float(),
            rtol=0 if exact else 1e-2,
            atol=0 if exact else 1e-3,
            msg=key,
        )
    assert size <= numbers["dequantized_bytes"] == (output / "model.safetensors").stat().st_size < size + 100_000
    load_model(output)


def test_mxfp4(tmp_path, tokenizer):
    generator = torch.Generator().manual_seed(0)

    def change(key, tensors, wanted):
        if not key.endswith(("gate_up_proj", "down_proj")):
            return
        experts, width, rows = tensors.pop(key).shape
        blocks = torch.randint(256, (experts, rows, width // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(120, 128, (experts, rows, width // 32), dtype=torch.uint8, generator=generator)
        tensors[f"{key}_blocks"], tensors[f"{key}_scales"] = blocks, scales
        values = torch.stack((FP4[(blocks & 15).long()], FP4[(blocks >> 4).long()]), dim=-1).flatten(-2)
        values = values * torch.exp2(scales.float() - 127)[..., None]
        wanted[key] = values.flatten(-2).transpose(1, 2)

    wanted = rewritten(
        tmp_path / "base", "gpt_oss", tokenizer, {"quant_method": "mxfp4"}, change, hidden_size=64, intermediate_size=32
    )
    imported(tmp_path / "base", wanted)


@pytest.mark.parametrize("block", [[16, 16], None])
def test_fp8_by_block_and_by_row(tmp_path, tokenizer, block):
    def change(key, tensors, wanted):
        if ".layers." not in key or tensors[key].ndim != 2 or "mlp.gate.weight" in key:
            return
        weight = tensors[key].float()
        rows, width = weight.shape
        grid = (-(-rows // block[0]), -(-width // block[1])) if block else (rows, 1)
        scale = torch.rand(grid, generator=torch.Generator().manual_seed(1)) + 0.5
        tensors[key] = weight.to(torch.float8_e4m3fn)
        tensors[f"{key}_scale_inv" if block else f"{key}_scale"] = scale
        wanted[key] = tensors[key].float().clone()
        for row in range(rows):
            for column in range(width):
                wanted[key][row, column] *= scale[(row // block[0], column // block[1]) if block else (row, 0)]

    wanted = rewritten(tmp_path / "base", "deepseek_v3", tokenizer, {"quant_method": "fp8", "weight_block_size": block}, change)
    assert any(tensor.dtype == torch.float32 for tensor in wanted.values())  # e_score_correction_bias stays
    imported(tmp_path / "base", wanted)


@pytest.mark.parametrize(("dtype", "groups"), [(torch.float8_e4m3fn, 1), (torch.int8, 1), (torch.int8, 4)])
def test_compressed_tensors_by_row_and_by_group(tmp_path, tokenizer, dtype, groups):
    """What llm-compressor writes (FP8_DYNAMIC, W8A8, W8A16 with groups): weight and weight_scale [rows, groups]."""

    def change(key, tensors, wanted):
        if ".layers." not in key or not key.endswith("_proj.weight"):
            return
        rows, width = tensors[key].shape
        scale = torch.rand((rows, groups), generator=torch.Generator().manual_seed(2)) + 0.5
        tensors[key] = (tensors[key].float() * (1 if dtype.is_floating_point else 100)).to(dtype)
        tensors[f"{key}_scale"] = scale
        wanted[key] = tensors[key].float() * scale.repeat_interleave(width // groups, dim=1)

    quantization = {"quant_method": "compressed-tensors", "format": "float-quantized" if groups == 1 else "int-quantized"}
    wanted = rewritten(tmp_path / "base", "llama", tokenizer, quantization, change)
    imported(tmp_path / "base", wanted)


def test_zero_points_are_refused_by_name(tmp_path, tokenizer):
    def change(key, tensors, wanted):
        if key.endswith("layers.0.self_attn.q_proj.weight"):
            tensors[key] = tensors[key].to(torch.int8)
            tensors[f"{key}_scale"] = torch.ones(len(tensors[key]), 1)
            tensors[f"{key}_zero_point"] = torch.ones(len(tensors[key]), 1, dtype=torch.int8)

    rewritten(tmp_path / "base", "llama", tokenizer, {"quant_method": "compressed-tensors"}, change)
    with pytest.raises(ModelError, match="zero points"):
        imported(tmp_path / "base", {})


@pytest.mark.parametrize("double", [True, False])
def test_bitsandbytes_nf4(tmp_path, tokenizer, double):
    functional = pytest.importorskip("bitsandbytes.functional")

    def change(key, tensors, wanted):
        if not key.endswith("_proj.weight"):
            return
        packed, state = functional.quantize_4bit(
            tensors[key].float(), blocksize=64, quant_type="nf4", compress_statistics=double
        )
        tensors[key] = packed
        tensors.update({f"{key}.{name}": value for name, value in state.as_dict(packed=True).items()})
        wanted[key] = functional.dequantize_4bit(packed, state)

    wanted = rewritten(
        tmp_path / "base",
        "llama",
        tokenizer,
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        change,
        hidden_size=64,
        intermediate_size=128,
    )  # bitsandbytes' CPU kernel is wrong for rows of other lengths
    imported(tmp_path / "base", wanted, exact=False)


def test_bitsandbytes_int8(tmp_path, tokenizer):
    def change(key, tensors, wanted):
        if not key.endswith("_proj.weight"):
            return
        absmax = tensors[key].float().abs().amax(1)
        tensors[key] = (tensors[key].float() / absmax[:, None] * 127).round().to(torch.int8)
        tensors[key.replace("weight", "SCB")] = absmax
        tensors[key.replace("weight", "weight_format")] = torch.zeros((), dtype=torch.uint8)
        wanted[key] = tensors[key].float() * absmax[:, None] / 127

    wanted = rewritten(tmp_path / "base", "llama", tokenizer, {"quant_method": "bitsandbytes", "load_in_8bit": True}, change)
    imported(tmp_path / "base", wanted, exact=False)


def test_the_projects_own_int8(tmp_path, tokenizer):
    plain = tmp_path / "plain"
    plain.mkdir()
    save_model(build("qwen3_moe", "eager", vocab_size=300), tokenizer, plain)
    quantize_directory(plain, tmp_path / "base", Progress())
    run_job(import_base, tmp_path / "again", model=str(tmp_path / "base"))
    before, after = load_file(plain / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all((after[key].float() - before[key].float()).norm() <= 0.02 * before[key].float().norm() for key in before)


def test_what_cannot_be_read_is_one_sentence(tmp_path, tokenizer):
    save = tmp_path / "base"
    rewritten(save, "llama", tokenizer, {"quant_method": "gptq", "bits": 4}, lambda *_: None)
    job = Job(operation="import_base", output=tmp_path / "out", settings={"model": str(save)})
    with pytest.raises(ModelError, match=r"is quantized by gptq, which is not read here .*name the model before"):
        import_base.run(job, Progress())
    shutil.rmtree(save)

    def without_scale(key, tensors, wanted):
        if key.endswith("up_proj.weight"):
            tensors[key] = tensors[key].to(torch.float8_e4m3fn)

    rewritten(save, "llama", tokenizer, {"quant_method": "fp8"}, without_scale)
    with pytest.raises(ModelError, match=r"lacks model\.layers\.0\.mlp\.up_proj\.weight_scale_inv"):
        import_base.run(job, Progress())
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_quantize_writes_is_read_for_training(tmp_path, scheme):
    """Every scheme's own layers say what the weights are; bfloat16 is what training reads."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_key_value_heads": 4}
    write_target(tmp_path / "model", layers=2, vocab_size=300, **sizes)
    quantize_directory(tmp_path / "model", tmp_path / "base", Progress(), SCHEMES[scheme])
    wanted, stored, kind = {}, load_file(tmp_path / "base/model.safetensors"), SCHEMES[scheme].load_layer()
    for name in load_file(tmp_path / "model/model.safetensors"):
        layer = name.removesuffix(".weight")
        parts = {part: stored[f"{layer}.{part}"] for part in SCHEMES[scheme].stored(128, 128) if f"{layer}.{part}" in stored}
        wanted[name] = kind.decode(parts).bfloat16() if parts.keys() != {"weight"} and parts else stored[name]
    assert sum(name.endswith("_proj.weight") for name in wanted) == 14
    assert len(stored) > len(wanted)
    imported(tmp_path / "base", wanted)


@pytest.mark.parametrize("preset", ["W4A16_ASYM", "NVFP4", "FP8_BLOCK", "W8A16"])
def test_what_the_library_writes_is_read(tmp_path, tokenizer, preset):
    """compressed-tensors compresses each weight, and its own decompressor says what it stands for."""
    scheme = preset_name_to_scheme(preset, ["Linear"])
    form = infer_module_format(torch.nn.Linear, scheme)
    compressor = BaseCompressor.get_value_from_registry(form.value)

    def change(key, tensors, wanted):
        if ".layers." not in key or not key.endswith("_proj.weight"):
            return
        weight = tensors.pop(key).float()
        groups = weight.unflatten(1, (-1, scheme.weights.group_size or 128))
        state, whole = {"weight": weight}, None
        if preset == "NVFP4":
            state["weight_global_scale"] = whole = generate_gparam(weight.min(), weight.max())
        if preset == "FP8_BLOCK":
            groups = weight.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).transpose(1, 2).flatten(2)
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights, global_scale=whole)
        state |= {"weight_scale": scale} | ({"weight_zero_point": zero} if preset == "W4A16_ASYM" else {})
        stored = compressor.compress(state, scheme)
        layer = key.removesuffix(".weight")
        tensors |= {f"{layer}.{part}": value for part, value in stored.items()}
        if preset == "NVFP4":
            tensors[f"{layer}.input_global_scale"] = torch.ones(1)
        wanted[key] = compressor.decompress(stored, scheme)["weight"].float()

    quantization = QuantizationConfig(config_groups={"group_0": scheme}, format=form.value).model_dump(mode="json")
    wanted = rewritten(
        tmp_path / "base",
        "llama",
        tokenizer,
        quantization,
        change,
        hidden_size=128,
        intermediate_size=256,
        head_dim=32,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    imported(tmp_path / "base", wanted, exact=preset != "NVFP4")  # the library decompresses these in bfloat16 steps


def test_columns_out_of_order_are_refused_by_name(tmp_path, tokenizer):
    def change(key, tensors, wanted):
        if key.endswith("layers.0.mlp.up_proj.weight"):
            layer, (rows, width) = key.removesuffix(".weight"), tensors.pop(key).shape
            tensors |= {
                f"{layer}.weight_packed": torch.zeros(rows, width // 8, dtype=torch.int32),
                f"{layer}.weight_scale": torch.ones(rows, 1),
                f"{layer}.weight_shape": torch.tensor([rows, width]),
                f"{layer}.weight_g_idx": torch.zeros(width, dtype=torch.int32),
            }

    rewritten(tmp_path / "base", "llama", tokenizer, {"quant_method": "compressed-tensors"}, change)
    with pytest.raises(ModelError, match=r"packs model\.layers\.0\.mlp\.up_proj\.weight in a way that is not read here"):
        imported(tmp_path / "base", {})
