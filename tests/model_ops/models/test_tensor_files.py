"""The same tensors are the same bytes, whatever process wrote them."""

import hashlib
import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from model_ops.files.digests import WeightNames, target_digest, vocabulary_digest
from model_ops.files.template_files import chat_templates, template_text
from model_ops.files.tensor_files import order_metadata, read_metadata
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models.model_directory import check_model, load_model, load_tokenizer, save_model
from model_ops.models.verify_model import verify_files_to_serve
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


PLACES = {
    "a file": ({"chat_template.jinja": "A"}, {"default": "A"}),
    "a file and others": (
        {"chat_template.jinja": "A", "additional_chat_templates/tool_use.jinja": "B"},
        {"default": "A", "tool_use": "B"},
    ),
    "others alone": (
        {"additional_chat_templates/default.jinja": "A", "additional_chat_templates/rag.jinja": "C"},
        {"default": "A", "rag": "C"},
    ),
    "a text of the config": ({"tokenizer_config.json": "A"}, {"default": "A"}),
    "a list in the config": (
        {"tokenizer_config.json": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]},
        {"default": "A", "tool_use": "B"},
    ),
    "a file before the config": ({"chat_template.jinja": "A", "tokenizer_config.json": "Z"}, {"default": "A"}),
    "a processor's": ({"chat_template.json": "A"}, {"default": "A"}),
    "the config before a processor's": ({"tokenizer_config.json": "A", "chat_template.json": "Z"}, {"default": "A"}),
    "nowhere": ({}, {}),
    "a file of nothing": ({"chat_template.jinja": " \n"}, {}),
    "a config of null": ({"tokenizer_config.json": None}, {}),
}


@pytest.fixture
def kept(tiny_model, tmp_path):
    """A model that keeps its templates elsewhere."""

    def make(files):
        folder = tmp_path / "model"
        shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("chat_template.jinja"))
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            old = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(content if name.endswith(".jinja") else json.dumps({**old, "chat_template": content}))
        return folder

    return make


def named(template):
    return template if isinstance(template, dict) else {"default": template} if (template or "").strip() else {}


@pytest.mark.parametrize("place", PLACES)
def test_the_reader_finds_what_the_tokenizer_renders_with(kept, place):
    files, wanted = PLACES[place]
    folder = kept(files)
    assert chat_templates(folder) == named(load_tokenizer(folder).chat_template) == wanted
    if "processor" not in place:
        assert named(AutoTokenizer.from_pretrained(folder).chat_template) == wanted
    said = [fault.sentence for fault in verify_files_to_serve(folder, json.loads((folder / "config.json").read_text()))]
    assert any("no chat template" in sentence for sentence in said) == (not wanted)
    assert all(text in template_text(folder) for text in wanted.values())


@pytest.mark.parametrize("place", ["a file and others", "others alone", "a list in the config", "a processor's"])
def test_an_imported_model_keeps_every_template(kept, tmp_path, place):
    files, wanted = PLACES[place]
    run(Job(operation="import_base", output=tmp_path / "base", settings={"model": str(kept(files))}), Progress())
    assert chat_templates(tmp_path / "base") == wanted


def weights(folder, content=b"abc"):
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_the_digest_is_of_the_weights(tmp_path):
    one, other = weights(tmp_path / "one"), weights(tmp_path / "other", b"abd")
    line = f"{hashlib.sha256(b'abc').hexdigest()}  model.safetensors\n"
    assert target_digest(one) == hashlib.sha256(line.encode()).hexdigest() != target_digest(other)
    (one / "README.md").write_text("words do not count")
    assert target_digest(one) == hashlib.sha256(line.encode()).hexdigest()
    assert target_digest(tmp_path / "empty") == ""


def test_a_manifest_spares_reading_the_weights_and_names_the_artefact(tmp_path):
    folder = weights(tmp_path / "one")
    whole = target_digest(folder)
    entry = {"path": "model.safetensors", "bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"digest": "d" * 64, "version": "0123456789ab", "files": [entry]}))
    (folder / "model.safetensors").write_bytes(b"xyz")  # not read: its size is what the manifest says
    assert target_digest(folder) == whole
    (folder / "model.safetensors").write_bytes(b"longer")
    assert target_digest(folder) != whole
    names = WeightNames.of(folder)
    assert names.has("sha256:" + "D" * 64) and names.has("d" * 12) and names.has("0123456789ab")
    assert not names.has("d" * 11) and not names.has("e" * 64) and not names.has(None)


def test_the_vocabulary_is_what_ids_mean(tmp_path):
    def tokenizer(name, vocab, added=(), **more):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": list(added), **more}))
        return vocabulary_digest(folder)

    first = tokenizer("a", {"x": 0, "y": 1})
    assert first == tokenizer("b", {"y": 1, "x": 0}, normalizer={"type": "NFC"})
    assert first != tokenizer("c", {"x": 1, "y": 0}) and first != tokenizer("d", {"x": 0, "y": 1}, [{"id": 2, "content": "z"}])
    assert first == tokenizer("e", [["x", -1.0], ["y", -2.0]])
    assert vocabulary_digest(tmp_path) == ""


def header_of(path):
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return list(json.loads(content[8 : 8 + size])["__metadata__"])


def test_metadata_stands_in_the_order_of_its_names_and_the_tensors_stay(tmp_path):
    metadata = {name: f'{{"é": "{name}"}}' for name in ("zeta", "format", "alpha", "middle")}
    tensors = {"a": torch.arange(7.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}
    contents = set()
    for number in range(24):  # safetensors draws an order for every file
        path = tmp_path / f"{number}.safetensors"
        save_file(tensors, path, metadata=metadata)
        order_metadata(path)
        assert header_of(path) == sorted(metadata)
        assert read_metadata(path) == metadata
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_file(path).items())
        contents.add(path.read_bytes())
    assert len(contents) == 1
