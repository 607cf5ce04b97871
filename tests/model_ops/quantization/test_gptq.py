"""int4: packing as the library packs, GPTQ by its definition, block by block on a real forward pass, and what servers read."""

import io
import json

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import pack_to_int32, unpack_from_int32
from stop_after import StopAfter
from tiny_chats import conversation, write_rows
from tiny_models import run_job, tiny_model, write_target
from torch import nn
from transformers import AutoModelForCausalLM

from model_ops.calibration import gptq, gptq_codes
from model_ops.calibration import weights as calibrated
from model_ops.calibration.walk import walk
from model_ops.documents import Document, to_batches
from model_ops.families import FAMILIES, PACKED, layer_list
from model_ops.files.tensor_files import read_directory
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import load_model
from model_ops.models.tiny_families import tiny_model as tiny_family
from model_ops.models.verify_model import verify_weights
from model_ops.operations import QuantizeSettings, quantize
from model_ops.quantization import SCHEMES, int4_linear, load_quantized, quantization_of
from model_ops.quantization.int4_linear import Int4Linear32, group_scales, pack_int4, round_to_nearest, rounded, unpack_int4
from model_ops.quantization.straight_through import RoundedLinear, share_codes
from model_ops.training.optimizers import build_optimizer
from model_ops.training.settings import TrainingSettings


class Net(nn.Module):
    """Two rounded layers, of which a forward computes each once."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        plain = [nn.Linear(64, 64, bias=False) for _ in range(2)]
        self.layers = nn.ModuleList(RoundedLinear(layer, SCHEMES["w4a16_g32"]) for layer in plain)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def trained(optimizer, shares, monkeypatch):
    """(weights after three steps of two micro-batches, number of encodings in each step)."""
    net, counts = Net(), []
    kind = SCHEMES["w4a16_g32"].load_layer()
    encode = kind.encode
    monkeypatch.setattr(kind, "encode", lambda weight: (counts.append(1), encode(weight))[1])
    values = {"steps": 3, "learning_rate": 0.05, "optimizer": optimizer, "precision": "float32"}
    update = build_optimizer(net, TrainingSettings(**values).resolved())
    encoded = []

    def steps():
        for step in range(3):
            update.zero_grad()
            for part in range(2):
                x = torch.randn(5, 64, generator=torch.Generator().manual_seed(2 * step + part))
                net(x).square().sum().backward()
            update.step()
            encoded.append(len(counts))
            counts.clear()
        assert all(
            torch.equal(value, encode_now(layer)[name]) for layer in net.layers for name, value in layer.encoded().items()
        )

    def encode_now(layer):
        with torch.no_grad():
            return encode(layer.weight.float())

    if shares:
        with share_codes(net.layers):
            steps()
    else:
        steps()
    assert all(layer.stored is None for layer in net.layers)
    monkeypatch.undo()
    return [parameter.detach() for parameter in net.parameters()], encoded


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_encodes_each_layer_once_and_learns_the_same_bits(monkeypatch, optimizer):
    shared, encoded = trained(optimizer, True, monkeypatch)
    alone, encoded_alone = trained(optimizer, False, monkeypatch)
    assert encoded == [2, 2, 2] and encoded_alone == [4, 4, 4]
    assert all(torch.equal(one, other) for one, other in zip(shared, alone, strict=True))


def test_outside_each_forward_encodes_the_weight_that_there_is():
    layer = RoundedLinear(nn.Linear(64, 32, bias=False), SCHEMES["w4a16_g32"])
    before = layer.encoded()
    with share_codes([layer]):
        assert layer.encoded() is layer.encoded()
    with torch.no_grad():
        layer.weight.mul_(-3)
    assert any(not torch.equal(value, layer.encoded()[name]) for name, value in before.items())


def test_an_error_ends_the_sharing():
    layer = RoundedLinear(nn.Linear(64, 32, bias=False), SCHEMES["w4a16_g32"])
    with pytest.raises(ZeroDivisionError), share_codes([layer]):
        layer.encoded()
        raise ZeroDivisionError
    assert layer.stored is None and layer.encoded() is not layer.encoded()


def codes(rows=6, columns=64, seed=0):
    return torch.randint(-8, 8, (rows, columns), generator=torch.Generator().manual_seed(seed)).to(torch.int8)


def test_codes_are_packed_as_the_library_packs_them():
    given = codes()
    packed = pack_int4(given)
    assert packed.dtype == torch.int32 and torch.equal(packed, pack_to_int32(given, 4))
    assert torch.equal(unpack_int4(packed), given)
    assert torch.equal(unpack_from_int32(packed, 4, given.shape), given)


def test_a_scale_that_clips_is_taken_where_its_error_is_smaller():
    weight = torch.randn(1, 32, generator=torch.Generator().manual_seed(3))
    weight[0, 31] = 6.0
    plain = weight.abs().amax() / 7
    chosen = group_scales(weight, 32).float()
    assert chosen < plain
    errors = [((rounded(weight, scale) - weight) ** 2).sum() for scale in (chosen, plain)]
    assert errors[0] <= errors[1]
    kept = group_scales(weight, 32, torch.cat([torch.zeros(31), torch.ones(1)]))  # only the large weight matters
    assert abs(float(rounded(weight[:, 31:], kept.float())) - 6) < 0.03


def test_scales_do_not_depend_on_how_many_values_the_cache_holds(monkeypatch):
    weight, moment = torch.randn(24, 192, generator=torch.Generator().manual_seed(0)), inputs().T @ inputs()
    whole = group_scales(weight, 32, moment.diagonal())
    monkeypatch.setattr(int4_linear, "CACHED_VALUES", 7 * 192)
    assert torch.equal(group_scales(weight, 32, moment.diagonal()), whole)
    assert not torch.equal(group_scales(weight, 32), whole)


def written_out(weight, moment, scales, damping=0.01):
    """GPTQ one column at a time with the explicit inverse, updated by elimination (arXiv 2210.17323, equations 2 and 3)."""
    columns = weight.shape[1]
    order = moment.diagonal().argsort(descending=True, stable=True)
    matrix = moment[order][:, order].double()
    inverse = torch.linalg.inv(matrix + damping * matrix.diagonal().mean() * torch.eye(columns))
    by_column = scales.double().repeat_interleave(columns // scales.shape[1], 1)[:, order]
    left, found = weight[:, order].double().clone(), torch.empty(weight.shape)
    for place in range(columns):
        code = (left[:, place] / by_column[:, place]).round().clamp(-8, 7)
        error = (left[:, place] - code * by_column[:, place]) / inverse[place, place]
        left -= error[:, None] * inverse[place]
        inverse = inverse - torch.outer(inverse[:, place], inverse[place]) / inverse[place, place]
        found[:, order[place]] = code.float()
    return found.to(torch.int8)


def inputs(rows=400, width=192, seed=1):
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(rows, width // 2, generator=generator) @ torch.randn(width // 2, width, generator=generator)
    return mixed + 0.1 * torch.randn(rows, width, generator=generator)


def test_gptq_follows_its_definition_and_lowers_the_error_of_outputs():
    weight, x = torch.randn(24, 192, generator=torch.Generator().manual_seed(0)), inputs()
    moment = x.T @ x / len(x)
    scales = group_scales(weight, 32)
    found = gptq(weight, moment, scales)
    assert (found == written_out(weight, moment, scales)).float().mean() > 0.995  # ties may fall otherwise in float32

    def error(each):
        decoded = (each.unflatten(-1, (6, 32)).float() * scales.float()[..., None]).flatten(-2)
        return ((decoded - weight) @ x.T).square().mean()

    assert error(found) < 0.5 * error(round_to_nearest(weight, scales))


@pytest.mark.parametrize("at_once", [512, 7])
def test_the_factor_is_that_of_the_inverse_whose_inputs_are_in_order(monkeypatch, at_once):
    monkeypatch.setattr(gptq_codes, "SOLVED_AT_ONCE", at_once)
    moment = (inputs().T @ inputs()).double() / 400
    order = moment.diagonal().argsort(descending=True)
    factor = gptq_codes.inverse_factor(moment.float(), order, 0.01).double()
    damped = moment[order][:, order] + 0.01 * moment.diagonal().mean() * torch.eye(192)
    assert torch.equal(factor, factor.triu())
    torch.testing.assert_close(factor.T @ factor @ damped, torch.eye(192, dtype=torch.float64), rtol=0, atol=2e-3)


def test_inputs_that_are_always_zero_and_moments_of_few_rows_do_no_harm():
    weight, x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)), inputs(rows=5, width=64)
    x[:, 7] = 0
    moment = x.T @ x / len(x)
    found = gptq(weight, moment, group_scales(weight, 32))
    assert found.dtype == torch.int8 and (found[:, 7] == 0).all()
    with pytest.raises(ValueError, match="no usable second moment"):
        gptq(weight, torch.full((64, 64), torch.nan), group_scales(weight, 32))


def batches(vocabulary=96):
    generator = np.random.default_rng(0)
    return to_batches([Document(f"r{i}", generator.integers(3, vocabulary, 30), np.ones(30, bool)) for i in range(4)], 64)


def test_the_walk_sees_what_layers_read_with_earlier_blocks_changed():
    model = tiny_model(layers=3)
    model.set_attn_implementation("packed")
    names = {
        f"model.layers.{index}.{name}"
        for index in range(3)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
    }
    seen = {}
    for block in walk(model, batches(), names):
        seen |= {name: read.moment for name, read in block.inputs().items()}
        for name, layer in block.layers.items():
            block.replace(name, layer.weight * 0.9)
    assert seen.keys() == names and seen["model.layers.1.self_attn.q_proj"] is seen["model.layers.1.self_attn.k_proj"]
    again = tiny_model(layers=3)
    again.set_attn_implementation("packed")
    for name in names:
        if name.startswith("model.layers.0"):
            again.get_submodule(name).weight.data.mul_(0.9)
    reads = []
    again.get_submodule("model.layers.1.mlp.down_proj").register_forward_pre_hook(lambda _, given: reads.append(given[0][0]))
    for batch in batches():
        again(**batch.model_inputs)
    x = torch.cat(reads)
    torch.testing.assert_close(seen["model.layers.1.mlp.down_proj"], x.T @ x / len(x), rtol=1e-4, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_walking_the_blocks_is_the_model_s_own_forward(family):
    model = tiny_family(family, attention="packed")
    rows = to_batches(
        [Document(f"r{i}", np.random.default_rng(i).integers(3, 60, 33), np.ones(33, bool)) for i in range(3)],
        64 if family in PACKED else 1,
    )
    last, wanted = layer_list(model)[1][-1], []
    hook = last.register_forward_hook(
        lambda module, given, found: wanted.append(found[0] if isinstance(found, tuple) else found)
    )
    for batch in rows:
        model(**batch.model_inputs)
    hook.remove()
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and ".layers." in name]
    seen = set()
    for block in walk(model, rows, linear):
        seen |= {
            name for name, read in block.inputs().items() if torch.isfinite(read.moment).all() and read.moment.abs().sum() > 0
        }
    block.advance()
    for run, own in zip(block.runs, wanted, strict=True):
        torch.testing.assert_close(run.hidden.view_as(own), own, rtol=1e-4, atol=1e-5)
    assert seen == set(linear)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("gptq")
    write_target(root / "model", layers=3, vocab_size=300)
    for split, rows in (("train", 30), ("validation", 4)):
        write_rows(root / "data", split, [conversation(index) for index in range(rows)])
    return root


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """A model whose layers' inputs are multiples of 32."""
    directory = tmp_path_factory.mktemp("even") / "model"
    write_target(directory, layers=3, vocab_size=300, intermediate_size=64)
    return directory


def job(place, output, model=None, **changes):
    settings = {"scheme": "w4a16_g32", "calibration_rows": 20, "calibration_length": 64, **changes}
    inputs = {"model": model or place / "model", "dataset": place / "data"}
    return Job(operation="quantize", output=output, inputs=inputs, settings=settings)


def run(place, output, model=None, **changes):
    return quantize.run(job(place, output, model, **changes), Progress())


def test_a_directory_is_calibrated_and_read_as_servers_read_it(place, even, tmp_path):
    with pytest.raises(ModelError, match=r"48 inputs, no multiple of the 32 .*choose scheme w8a8"):
        run(place, tmp_path / "refused")
    assert not (tmp_path / "refused" / "model.safetensors").exists()
    told = io.StringIO()
    metrics = quantize.run(job(place, tmp_path / "out", even), Progress(told))
    assert metrics["calibration_rows"] == 20 and metrics["tensors_quantized"] == 3 * 7
    assert "calibration uses" not in told.getvalue()
    quantize.run(job(place, tmp_path / "few", even, calibration_rows=64), Progress(told))
    assert (
        "calibration uses 30 rows, all that the training split has for this model; quantize.calibration_rows asks for 64"
        in (told.getvalue())
    )
    assert metrics["output_error"] < 0.8 * metrics["output_error_rounded"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert quantization_of(config).scheme_of("model.layers.0.mlp.up_proj").name == "w4a16_g32"
    assert verify_weights(config, read_directory(tmp_path / "out")) == []
    ids = torch.arange(5, 40)[None]
    ours = load_quantized(tmp_path / "out", torch.float32)(ids).logits
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["gptq", "awq_gptq"])
def test_a_stopped_calibration_goes_on_with_the_next_block(place, even, tmp_path, monkeypatch, method):
    told = run(place, tmp_path / "whole", even, method=method)

    with pytest.raises(Stopped):
        quantize.run(job(place, tmp_path / "cut", even, method=method), StopAfter(2, "calibrate"))
    computed = []
    own = calibrated._of_block
    monkeypatch.setattr(calibrated, "_of_block", lambda block, *given: computed.append(block.index) or own(block, *given))
    assert run(place, tmp_path / "cut", even, method=method) == told and "worst_layer_error" in told
    assert computed == [2]
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_settings_and_missing_rows_are_refused_with_the_remedy(place, even, tmp_path):
    with pytest.raises(ValueError, match=r"method is gptq, but scheme w8a8.*choose one of w4a16"):
        QuantizeSettings(scheme="w8a8", method="gptq")
    assert QuantizeSettings().resolved().method == "rtn" and QuantizeSettings(scheme="w4a16").resolved().method == "gptq"
    given = job(place, tmp_path / "out", even)
    del given.inputs["dataset"]
    with pytest.raises(ModelError, match="need a dataset to calibrate with"):
        quantize.run(given, Progress())


def test_rounding_alone_needs_no_rows(even, tmp_path):
    told = run_job(quantize, tmp_path / "out", {"model": even}, scheme="w4a16_g32", method="rtn")
    assert told["tensors_quantized"] == 21
    found = load_quantized(tmp_path / "out", torch.float32).model.layers[0].mlp.up_proj
    assert isinstance(found, Int4Linear32)
    wanted = load_model(even).model.layers[0].mlp.up_proj.weight.float()
    decoded = found.decode({"weight_packed": found.weight_packed, "weight_scale": found.weight_scale})
    assert (decoded - wanted).norm() < 0.12 * wanted.norm()
