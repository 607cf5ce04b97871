"""A target's own MTP layer: what is trained is the published layer run on its own output, as a server runs it; its files."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from exactness import greedy_text_is_the_targets, sampled_text_is_distributed_as_the_target, six_token_target
from safetensors.torch import load_file, save_file
from tiny_drafters import drafter_job, mtp_layer_tensors
from tiny_models import run_job, tiny_model, write_dataset, write_target
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding

from model_ops.decoding.incremental import FINAL, IncrementalModel
from model_ops.families.mtp_tensors import LAYER
from model_ops.jobs import ModelError, Progress
from model_ops.models.model_directory import load_model
from model_ops.operations import generate, import_base, quantize
from model_ops.speculators import load_draft_model
from model_ops.speculators import operation as speculator
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.mtp.network import Mtp
from model_ops.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mtp")]


def with_layer(target, folder, seed=0):
    """Mtp for a target in memory, begun from a layer in a file."""
    folder.mkdir(exist_ok=True)
    save_file(mtp_layer_tensors(target.config, seed), folder / "model.safetensors")
    return Mtp.for_target(IncrementalModel(target), folder).eval()


def published(target, tensors, states, tokens, positions, final_norm=None):
    """The layer over one sequence, by transformers' own Qwen2 block: outputs after final_layernorm. [tokens, hidden]"""
    config = target.config
    tensors = {name.removeprefix(LAYER): tensor for name, tensor in tensors.items()}

    def norm(x, name):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], tensors[f"{name}.weight"], config.rms_norm_eps)

    block = Qwen2DecoderLayer(config, layer_idx=0).eval()
    block.load_state_dict({name: tensor for name, tensor in tensors.items() if name in block.state_dict()})
    block.self_attn.config._attn_implementation = "sdpa"
    embedded = target.get_input_embeddings().weight[tokens] * (positions > 0)[:, None]
    x = torch.cat((norm(states, "hidden_layernorm"), norm(embedded, "token_layernorm")), -1) @ tensors["input_proj.weight"].t()
    table = Qwen2RotaryEmbedding(config)(x[None], positions[None])
    causal = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
    return norm(block(x[None], position_embeddings=table, attention_mask=causal)[0], "final_layernorm")


@torch.no_grad()
def test_training_and_drafting_run_the_published_layer_on_its_own_output(tmp_path):
    target = tiny_model("qwen2", layers=2, tied=False)
    model, runner = with_layer(target, tmp_path / "layer"), IncrementalModel(target)
    for parameter in model.midlayer.parameters():
        parameter += 0.05 * torch.randn_like(parameter)
    model.save(tmp_path / "saved", 3, torch.float32)
    tensors = {name: tensor for name, tensor in load_file(tmp_path / "saved/model.safetensors").items() if LAYER in name}
    text = torch.randint(0, 96, (1, 14))
    states, captured = runner.forward(text, runner.new_cache(1), (FINAL,))
    for start in (0, 4):
        outputs = model.unroll(DocumentWindows(text, captured, torch.tensor([start]), 12 - start), 3)
        for j in range(start, 12):
            tokens, fed, positions = text[0, 1 : j + 2], states[0, : j + 1], torch.arange(j + 1)
            out = fed
            for step in range(min(3, 12 - j)):
                if step:
                    tokens = torch.cat((tokens, text[0, j + 1 + step, None]))
                    fed, positions = torch.cat((fed, out[-1:])), torch.cat((positions, torch.tensor([j + step])))
                out = published(target, tensors, fed, tokens, positions)
                rows, head = model.scored(outputs[step][0, j - start, None], step)
                torch.testing.assert_close(rows[0], out[-1], atol=1e-4, rtol=1e-3)
                torch.testing.assert_close((rows @ head.t())[0], target.lm_head(out[-1]), atol=1e-4, rtol=1e-3)
    drafter = model.drafter()
    drafter.begin([text[0, :6].tolist()], text[:, 6], captured[:, :6])
    for end in (6, 8):  # a prompt, and then a round that accepted one draft
        drafts = drafter.propose(3, 0.0, torch.zeros(1, 3)).tokens[0].tolist()
        tokens, fed, positions = text[0, 1 : end + 1], states[0, :end], torch.arange(end)
        for draft in drafts:
            out = published(target, tensors, fed, tokens, positions)
            assert int(target.lm_head(out[-1]).argmax()) == draft
            tokens = torch.cat((tokens, torch.tensor([draft])))
            fed, positions = torch.cat((fed, out[-1:])), torch.cat((positions, positions[-1:] + 1))
        drafter.advance(text[:, 7:9], torch.tensor([2]), captured[:, 6:8])


def test_a_layer_trained_on_states_before_the_final_norm_begins_as_it_was(tmp_path):
    """Exactly so where the norm's weights are one number, as checked here."""
    target = tiny_model("qwen2", layers=2, tied=False)
    target.model.norm.weight.data.fill_(1.7)
    model, runner = with_layer(target, tmp_path / "layer"), IncrementalModel(target)
    text = torch.randint(0, 96, (1, 9))
    before, after = (runner.forward(text, runner.new_cache(1), (state,))[1] for state in (2, FINAL))
    own = load_file(tmp_path / "layer/model.safetensors")
    (output,) = model.unroll(DocumentWindows(text, after, torch.tensor([2]), 5), 1)
    expected = published(target, own, before[0, :7], text[0, 1:8], torch.arange(7))
    torch.testing.assert_close(model.scored(output[0, -1, None], 0)[0][0], expected[-1], atol=1e-4, rtol=1e-3)


def test_the_text_stays_the_targets(tmp_path):
    target = tiny_model("qwen2", layers=2, tied=False, seed=3)
    drafted = greedy_text_is_the_targets(target, with_layer(target, tmp_path / "a").drafter())
    assert sum(answer.drafted for answer in drafted) == 3 * sum(answer.forwards for answer in drafted) > 0
    target = six_token_target()
    drafted = sampled_text_is_distributed_as_the_target(target, with_layer(target, tmp_path / "b").drafter())
    assert 0 < sum(answer.accepted for answer in drafted) < sum(answer.drafted for answer in drafted)


def imported(source, output):
    """As a recipe whose drafter is to begin from the base's layer imports it."""
    run_job(import_base, output, model=str(source), mtp_layer=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint as MiMo's are laid out, imported; its body quantized, and the answers of that."""
    root = tmp_path_factory.mktemp("mtp")
    write_target(root / "checkpoint", layers=4, model_type="qwen2", tied=False)
    body = load_model(root / "checkpoint")
    layer = {name: tensor.to(torch.bfloat16) for name, tensor in mtp_layer_tensors(body.config).items()}
    weights = load_file(root / "checkpoint/model.safetensors")
    shutil.copytree(root / "checkpoint", root / "body")
    (root / "checkpoint/model.safetensors").unlink()
    names = sorted(weights)
    first, *further = layer
    shards = {
        "model-1.safetensors": {name: weights[name] for name in names[:9]},
        "model-2.safetensors": {**{name: weights[name] for name in names[9:]}, first: layer[first]},
        "model-3.safetensors": {name: layer[name] for name in further},
    }
    for file, tensors in shards.items():
        save_file(tensors, root / "checkpoint" / file, metadata={"format": "pt"})
    (root / "checkpoint/model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {name: file for file, tensors in shards.items() for name in tensors}})
    )
    config = json.loads((root / "checkpoint/config.json").read_text())
    (root / "checkpoint/config.json").write_text(
        json.dumps(
            {
                **config,
                "model_type": "mimo",
                "architectures": ["MiMoForCausalLM"],
                "num_nextn_predict_layers": 1,
                "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"},
            }
        )
    )
    imported(root / "checkpoint", root / "base")
    for name, beside in (("target", True), ("alone", False)):
        run_job(quantize, root / name, {"model": root / "base"}, mtp_layer=beside)
    write_dataset(root / "dataset", rows=16)
    run_job(generate, root / "answers", {"target": root / "target", "dataset": root / "dataset"}, max_new_tokens=16)
    return root


def job(place, output, inputs=None, **changes):
    settings = {"architecture": "mtp", "steps": 40, "ttt_steps": 3, **changes}
    return drafter_job(place, output, {"mtp_layer": place / "base", **(inputs or {})}, **settings)


def run(place, output, inputs=None, **changes):
    return speculator.run(job(place, output, inputs, **changes), Progress())


def test_a_checkpoint_is_imported_as_its_body_with_the_layer_beside_it(place):
    assert verify(place / "base") == []
    model, body = load_model(place / "base").state_dict(), load_model(place / "body").state_dict()
    assert model.keys() == body.keys() and all(torch.equal(model[name], body[name]) for name in body)
    layer = load_file(place / "base/mtp/model.safetensors")
    assert layer and all(name.startswith(LAYER) for name in layer)
    config = json.loads((place / "base/config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("qwen2", ["Qwen2ForCausalLM"]) and "auto_map" not in config


def test_a_base_without_such_a_layer_is_refused_before_it_is_imported(place, tmp_path):
    shutil.copytree(place / "checkpoint", tmp_path / "stripped")
    (tmp_path / "stripped/model-3.safetensors").unlink()
    save_file(
        {name: tensor for name, tensor in load_file(tmp_path / "stripped/model-2.safetensors").items() if LAYER not in name},
        tmp_path / "stripped/model-2.safetensors",
    )
    for source in (place / "body", tmp_path / "stripped"):
        with pytest.raises(ModelError, match="has no supported multi-token-prediction layer"):
            imported(source, tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_it_learns_all_its_steps_and_is_written_as_vllm_loads_it(place, tmp_path):
    run(place, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert all(lines[-1][f"alpha_{step}"] > lines[0][f"alpha_{step}"] + 0.02 for step in range(3))
    assert verify(tmp_path, place / "target") == []
    written, base = load_file(tmp_path / "model.safetensors"), load_file(place / "base/mtp/model.safetensors")
    assert set(written) == {*base, "model.embed_tokens.weight", "lm_head.weight"}
    assert all(not torch.equal(written[name], base[name]) for name in base if "k_proj.bias" not in name)
    head = load_model(place / "base").lm_head.weight.to(torch.bfloat16)
    assert torch.equal(written["lm_head.weight"], head)
    model = load_draft_model(tmp_path)
    assert model.kind == "mtp" and model.longest_chain is None


def test_going_on_from_a_previous_one(place, tmp_path):
    run(place, tmp_path / "first", steps=3)
    run(
        place,
        tmp_path / "second",
        {"previous": tmp_path / "first"},
        steps=1,
        learning_rate=1e-12,
        continue_from="last",
        previous_share=1,
    )
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ModelError, match="give it as continue_from"):
        run(place, tmp_path / "third", {"mtp_layer": tmp_path / "first"})


def test_a_model_without_a_layer_and_the_layer_of_another_model_are_refused(place, tmp_path):
    with pytest.raises(ModelError, match="has no supported multi-token-prediction layer"):
        run(place, tmp_path / "drafter", {"mtp_layer": place / "body"})
    other = tiny_model("qwen2", layers=2, intermediate_size=40)
    (tmp_path / "other").mkdir()
    save_file(mtp_layer_tensors(other.config), tmp_path / "other/model.safetensors")
    with pytest.raises(ModelError, match="it is another model's layer"):
        run(place, tmp_path / "drafter", {"mtp_layer": tmp_path / "other"})
    part = dict(list(mtp_layer_tensors(other.config).items())[:-1])
    save_file(part, tmp_path / "other/model.safetensors")
    with pytest.raises(ModelError, match=r"lacks model\.mtp_layers\.0"):
        run(place, tmp_path / "drafter", {"mtp_layer": tmp_path / "other"})
    asked = job(place, tmp_path / "drafter")
    del asked.inputs["mtp_layer"]
    with pytest.raises(ModelError, match="mtp_layer is base: give the job the input"):
        speculator.run(asked, Progress())
    with pytest.raises(ModelError, match="quantize the model again with mtp_layer: true"):
        run(place, tmp_path / "drafter", {"target": place / "alone"})
    write_target(tmp_path / "llama", layers=2, model_type="llama")
    with pytest.raises(ModelError, match="is a llama; architecture mtp supports only qwen2"):
        run(place, tmp_path / "drafter", {"target": tmp_path / "llama"})
    assert not (tmp_path / "drafter").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2"),
        ({"intermediate_size": 40}, "config.json requires"),
        ({"num_attention_heads": 8, "head_dim": 4}, "num_attention_heads is 8, the target's is 4"),
        ({"max_position_embeddings": 64}, "below the target's"),
        ({"rope_theta": 5.0}, "rope_theta"),
    ],
)
def test_the_linter_finds_what_a_server_would_read_otherwise(place, tmp_path, changed, said):
    run(place, tmp_path, steps=1)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
    assert any(said in problem.sentence for problem in verify(tmp_path, place / "target"))


def test_a_target_that_is_quantized_says_that_the_layer_is_not(place, tmp_path):
    """By the name under which vLLM asks for the layer: one more of the target's own, which has four."""
    run(place, tmp_path, steps=1)
    ignored = {
        name: json.loads((place / name / "config.json").read_text())["quantization_config"]["ignore"]
        for name in ("target", "alone")
    }
    assert ignored["alone"] == ["lm_head"] and ignored["target"][0] == "lm_head" and len(ignored["target"]) == 2
    pattern = re.compile(ignored["target"][1].removeprefix("re:"))
    asked = [f"model.layers.4.{name}_proj" for name in ("self_attn.qkv", "self_attn.o", "mlp.gate_up", "mlp.down")]
    own = [
        name.removesuffix(".weight") for name in load_file(place / "target/model.safetensors") if name.endswith("proj.weight")
    ]
    assert all(pattern.match(name) for name in asked) and len(own) == 28 and not any(pattern.match(name) for name in own)
    assert verify(place / "target") == [] and verify(tmp_path, place / "target") == []
    (problem,) = verify(tmp_path, place / "alone")
    assert "take its floats for int8" in problem.sentence and ignored["target"][1] in problem.sentence
