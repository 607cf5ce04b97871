"""Saving and loading lose nothing; a directory that is not what its config says is refused by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from model_ops.jobs.errors import ModelError
from model_ops.jobs.job import Job
from model_ops.jobs.progress import Progress
from model_ops.models.model_directory import check_model, load_model, load_tokenizer, save_model
from model_ops.operations.base_directory import check_base
from model_ops.operations.import_base import run

HOUSE = Path(__file__).parents[4] / "shared" / "models" / "house"


@pytest.fixture
def broken(tiny_model, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(tiny_model, folder)
    return folder


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_saved_model_loads_the_same_and_keeps_its_template(tiny_model, tmp_path):
    model, tokenizer = load_model(tiny_model), load_tokenizer(tiny_model)
    save_model(model, tokenizer, tmp_path / "again")
    again = load_model(tmp_path / "again", attention="sdpa")
    for (name, one), other in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert (tmp_path / "again" / "chat_template.jinja").read_text() == tokenizer.chat_template
    assert json.loads((tmp_path / "again" / "config.json").read_text())["dtype"] == "bfloat16"
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text())["eos_token_id"] == 2
    assert "lm_head.weight" not in load_file(tmp_path / "again" / "model.safetensors")
    assert not list((tmp_path / "again").glob(".*"))


@pytest.mark.parametrize("check", [load_model, check_model])
def test_a_missing_mis_shaped_or_unexpected_tensor_is_named(broken, check):
    name = "model.layers.2.mlp.up_proj.weight"
    whole = load_file(broken / "model.safetensors")
    change_tensors(broken, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelError, match=f"lacks tensor {name}"):
        check(broken)
    change_tensors(broken, lambda tensors: tensors.update({name: whole[name][:-1].contiguous()}))
    with pytest.raises(ModelError, match=f"tensor {name} has shape .47, 32., its config.json requires .48, 32."):
        check(broken)
    change_tensors(broken, lambda tensors: tensors.update({name: whole[name], "model.odd": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"holds tensor model\.odd"):
        check(broken)


def test_damaged_or_absent_files_are_named(broken):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    with pytest.raises(ModelError, match="truncated or damaged"):
        load_model(broken)
    weights.unlink()
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        load_model(broken)
    (broken / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON, copy it again"):
        load_model(broken)


def test_a_tokenizer_that_is_not_there_is_told_from_a_model_that_is_not(broken):
    (broken / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(broken)
    with pytest.raises(ModelError, match="there is no model directory"):
        load_tokenizer(broken / "nowhere")


def test_import_copies_what_is_needed_and_checks_it(tiny_model, tmp_path):
    job = Job(operation="import_base", output=tmp_path / "base", settings={"model": str(tiny_model)})
    metrics = run(job, Progress())
    assert metrics["tensors"] == len(load_file(tiny_model / "model.safetensors"))
    assert load_model(job.output).config.num_hidden_layers == 4


def test_a_family_that_cannot_be_trained_is_refused_before_it_is_copied(tmp_path, tiny_tokenizer):
    config = AutoConfig.for_model("mamba", vocab_size=len(tiny_tokenizer), hidden_size=32, num_hidden_layers=2, state_size=4)
    save_model(AutoModelForCausalLM.from_config(config), tiny_tokenizer, tmp_path / "mamba")
    with pytest.raises(ModelError, match=r"mamba: .*influence each other.*; name a model of another family"):
        run(Job(operation="import_base", output=tmp_path / "base", settings={"model": str(tmp_path / "mamba")}), Progress())
    assert not (tmp_path / "base").exists()


def test_import_names_what_is_not_there(broken, tmp_path, monkeypatch):
    (broken / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        check_base(broken)
    (broken / "tokenizer.json").unlink()
    (broken / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        check_base(broken)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="nobody/nothing is not in the local cache"):
        run(Job(operation="import_base", output=tmp_path, settings={"model": "nobody/nothing"}), Progress())
    with pytest.raises(ModelError, match="neither a directory nor a Hugging Face id"):
        run(Job(operation="import_base", output=tmp_path, settings={"model": "../no/such/place"}), Progress())


@pytest.mark.skipif(not HOUSE.exists(), reason="needs ../shared/models/house")
def test_a_real_model_packed_equals_each_document_alone():
    check_model(HOUSE)
    packed, plain = load_model(HOUSE), load_model(HOUSE, attention="sdpa")
    lengths = [50, 7, 120, 33, 51]
    ids = torch.randint(10, 8000, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(length) for length in lengths])
    with torch.no_grad():
        ours = packed(ids[None], position_ids=positions[None], use_cache=False, document_lengths=lengths).logits[0]
        alone = torch.cat([plain(document[None], use_cache=False).logits[0] for document in ids.split(lengths)])
    torch.testing.assert_close(ours, alone, rtol=1e-4, atol=1e-4)
