"""Operation merge on model directories: what is written, what is refused, and the search of weights."""

import json
import shutil

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tiny_models import run_job, tiny_model, write_dataset, write_target

from model_ops.documents.likelihood import held_out_loss, mean_loss, validation_documents
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import load_model, load_tokenizer, save_model
from model_ops.operations import merge
from model_ops.operations.merge import candidates
from model_ops.operations.merging.checkpoints import linear
from model_ops.operations.merging.settings import MergeSettings


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """base, sft and another model of one shape; `deeper` has another."""
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("base", "sft", "other")):
        write_target(root / name, layers=2, seed=seed)
    write_target(root / "deeper", layers=3)
    write_target(root / "wider", layers=2, intermediate_size=64)
    write_dataset(root / "rows")
    return root


def run(home, output, **settings):
    inputs = {"model": home / "sft", "dataset": home / "rows", "base": home / "base"}
    return run_job(merge, output, inputs, **settings)


def weights(directory):
    return load_file(directory / "model.safetensors")


def test_a_soup_of_directories_is_the_mean_of_their_tensors_and_loads(models, tmp_path):
    told = run(models, tmp_path, models=["sft", "base", str(models / "other")], weights=[2, 1, 1])
    sft, base, other, merged = weights(models / "sft"), weights(models / "base"), weights(models / "other"), weights(tmp_path)
    assert set(merged) == set(sft) and told["tensors"] == len(sft)
    for name, tensor in merged.items():
        wanted = (2 * sft[name].float() + base[name].float() + other[name].float()) / 4
        assert tensor.dtype == sft[name].dtype and torch.equal(tensor, wanted.to(tensor.dtype)), name
    model = load_model(tmp_path, attention="sdpa")
    assert model.lm_head.weight is model.model.embed_tokens.weight and "lm_head.weight" not in merged
    assert load_tokenizer(tmp_path).get_vocab() == load_tokenizer(models / "sft").get_vocab()


@pytest.mark.parametrize(("given", "name"), [([1, 0], "sft"), ([0, 1], "base")])
def test_all_the_weight_on_a_model_gives_that_model(models, tmp_path, given, name):
    run(models, tmp_path, weights=given)
    wanted = weights(models / name)
    assert all(torch.equal(tensor, wanted[key]) for key, tensor in weights(tmp_path).items())


def test_bfloat16_is_merged_in_float32():
    a, b = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125], dtype=torch.bfloat16)
    assert linear([a, b], [1, 1]).item() == 1.00390625  # between two bfloat16 numbers


def test_a_search_takes_the_candidate_with_the_lowest_held_out_loss(models, tmp_path):
    told = run(models, tmp_path, weights="search", search_steps=2, search_tokens=10_000)
    documents = validation_documents(models / "rows", load_tokenizer(models / "sft"), 256)
    losses = {}
    for name, share in (("sft", 1.0), ("base", 0.0), ("half", 0.5)):
        model = load_model(models / ("base" if name == "base" else "sft"))
        if name == "half":
            for mine, its in zip(model.parameters(), load_model(models / "base").parameters(), strict=True):
                mine.data = ((mine.data + its.data) / 2).bfloat16().float()
        losses[share] = mean_loss(held_out_loss(model, documents))
    assert {tried[0]: tried[-1] for tried in told["search_tried"]} == pytest.approx(losses, rel=1e-5)
    assert told["weights"][0] == min(losses, key=losses.get) and told["search_loss"] == min(
        told["search_loss"], *losses.values()
    )
    assert not (tmp_path / ".work" / "search" / "candidate").exists()


def test_a_stopped_search_continues_and_measures_nothing_twice(models, tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(
        "model_ops.operations.merge.held_out_loss",
        lambda model, documents: measured.append(1) or held_out_loss(model, documents),
    )

    class AfterTwo(Progress):
        def stop_if_requested(self):
            if len(measured) == 2:
                raise Stopped

    job = Job(
        operation="merge",
        output=tmp_path,
        settings={"weights": "search", "search_steps": 3},
        inputs={"model": models / "sft", "base": models / "base", "dataset": models / "rows"},
    )
    with pytest.raises(Stopped):
        merge.run(job, AfterTwo())
    told = merge.run(job, Progress())
    assert len(measured) == 4 and len(told["search_tried"]) == 4


def test_candidates_cover_the_simplex_once():
    found = candidates(MergeSettings(models=["sft", "base", "x"], weights="search", search_steps=3))
    assert len(found) == len(set(map(tuple, found))) == 10
    assert all(sum(weights) == pytest.approx(1) for weights in found)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("deeper", r"num_hidden_layers|has tensor model\.layers\.2\.\S+, and sft has none"),
        ("wider", r"tensor model\.layers\.0\.mlp\.down_proj\.weight is \[32, 64\] in \S+ and \[32, 48\] in sft"),
    ],
)
def test_models_of_another_shape_are_refused_with_the_tensor(models, tmp_path, other, said):
    with pytest.raises(ModelError, match=said):
        run(models, tmp_path / "out", models=["sft", str(models / other)])
    assert not (tmp_path / "out").exists()


def test_another_tokenizer_is_refused(models, tmp_path):
    shutil.copytree(models / "other", tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    ids = sorted(vocab.values())
    names = {number: token for token, number in vocab.items()}
    vocab[names[ids[50]]], vocab[names[ids[51]]] = ids[51], ids[50]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match=rf"tokenizers of \S+ and sft differ in token {ids[50]}, so"):
        run(models, tmp_path / "out", models=["sft", str(tmp_path / "other")])


def test_a_config_that_computes_otherwise_is_refused(models, tmp_path):
    shutil.copytree(models / "other", tmp_path / "other")
    path = tmp_path / "other" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rms_norm_eps": 1e-3}))
    with pytest.raises(ModelError, match=r"config\.json has rms_norm_eps 0.001 in \S+ and 1e-06 in sft"):
        run(models, tmp_path / "out", models=["sft", str(tmp_path / "other")])


def test_a_tied_head_that_a_file_stores_nevertheless_stays_tied(models, tmp_path):
    shutil.copytree(models / "other", tmp_path / "other")
    stored = weights(tmp_path / "other")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
    save_file(stored, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
    run(models, tmp_path / "out", models=["sft", str(tmp_path / "other")])
    assert "lm_head.weight" not in weights(tmp_path / "out")


def test_an_untied_head_is_merged_like_any_tensor(models, tmp_path):
    for seed, name in enumerate("ab"):
        save_model(tiny_model(layers=2, vocab_size=300, tied=False, seed=seed), load_tokenizer(models / "sft"), tmp_path / name)
    run_job(merge, tmp_path / "out", {"model": tmp_path / "a"}, models=["sft", str(tmp_path / "b")])
    a, b, merged = (weights(tmp_path / name)["lm_head.weight"] for name in ("a", "b", "out"))
    assert torch.equal(merged, ((a.float() + b.float()) / 2).bfloat16())


def test_values_that_are_not_finite_and_quantized_models_are_refused(models, tmp_path):
    shutil.copytree(models / "other", tmp_path / "other")
    stored = weights(tmp_path / "other")
    stored["model.norm.weight"][3] = float("nan")
    save_file(stored, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"merge of model.norm.weight holds values that are not finite"):
        run(models, tmp_path / "out", models=["sft", str(tmp_path / "other")])
    assert not (tmp_path / "out" / "model.safetensors").exists()
    path = tmp_path / "other" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ModelError, match="is quantized, and quantized weights cannot be merged"):
        run(models, tmp_path / "out", models=["sft", str(tmp_path / "other")])


def test_a_search_without_held_out_rows_is_refused(models, tmp_path):
    write_dataset(tmp_path / "rows", splits=("train",))
    with pytest.raises(ModelError, match=r"raise datasets\.sft\.validation_share"):
        run_job(
            merge,
            tmp_path / "out",
            {"model": models / "sft", "base": models / "base", "dataset": tmp_path / "rows"},
            weights="search",
        )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"models": ["sft"]}, "at least 2 items"),
        ({"models": ["sft", "sft"]}, "lists a model twice"),
        ({"weights": [1]}, "weights has 1 numbers for 2 models"),
        ({"weights": [1, -1]}, "add up to 0"),
        ({"weights": "search", "models": list("abcdef"), "search_steps": 10}, "search would try 3003 merges"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        MergeSettings(**values)
