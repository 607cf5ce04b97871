"""sft with adapters: what the worker writes is a plain model and a PEFT adapter that say the same; what cannot be
trained is refused in one sentence before anything is written."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from stop_after import StopAfter
from tiny_chats import conversation, write_rows

from model_ops.adapters import LoraLinear, LoraSettings, add_adapters, merge_adapters, nf4, nf4_layers
from model_ops.documents import held_out_loss, mean_loss, read_documents
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.operations import SftSettings, sft
from model_ops.tensors import round_weight
from model_ops.training.step_meter import matrix_work
from model_ops.verify import verify
from tests.model_ops.models.saved_adapters import load_adapter
from tests.thorough_cases import thorough_except

SETTINGS = {"steps": 25, "learning_rate": 3e-2, "tokens_per_step": 512, "max_length": 128, "checkpoint_every": 10}
LORA = {**SETTINGS, "method": "lora", "lora": {"rank": 4, "alpha": 8}}


def run(output, model, dataset, progress=None, **settings):
    job = Job(operation="sft", output=output, inputs={"model": model, "dataset": dataset}, settings=settings)
    return sft.run(job, progress or Progress())


@pytest.fixture(scope="module")
def adapted(tiny_model, chats, tmp_path_factory):
    output = tmp_path_factory.mktemp("lora")
    return output, run(output, tiny_model, chats, **LORA)


def loss_of(model, dataset, tokenizer_from):
    documents, _ = read_documents(dataset, "validation", load_tokenizer(tokenizer_from), 128)
    return mean_loss(held_out_loss(model, documents))


def test_lora_lowers_the_held_out_loss_and_writes_a_whole_model(tiny_model, chats, adapted):
    output, metrics = adapted
    before, after = (loss_of(load_model(place), chats, tiny_model) for place in (tiny_model, output))
    assert after < before - 0.5
    assert metrics["validation_loss"] == pytest.approx(after, abs=0.02)
    assert metrics["saved_validation_loss"] == pytest.approx(after, abs=5e-3)  # of the merged weights in the file
    assert metrics["before_validation_loss"] == pytest.approx(before, abs=0.02)
    names = {name: tensor.shape for name, tensor in load_file(output / "model.safetensors").items()}
    assert names == {name: tensor.shape for name, tensor in load_file(tiny_model / "model.safetensors").items()}
    # 4 layers x (q 2, k 1, v 1, o 2 heads of 16; gate, up, down of 48): rank x (in + out) each
    assert metrics["adapted_layers"] == 28 and metrics["trained_parameters"] == 4 * 4 * (64 + 48 + 48 + 64 + 3 * 80)
    assert metrics["frozen_parameters"] == sum(shape.numel() for shape in names.values())
    assert metrics["saved_update"] == pytest.approx(1, abs=0.05)
    assert verify(output) == []


def relative_gap(found, wanted):
    """Of logits; merged weights are rounded to bfloat16, which moves single logits by more on one processor than on another, as
    the training ends with other adapters."""
    return float((found - wanted).detach().norm() / wanted.detach().norm())


def test_adapter_and_merged_model_say_the_same(tiny_model, chats, adapted):
    output, _ = adapted
    merged, model = load_model(output), load_model(tiny_model)
    load_adapter(model, output / "adapter")
    documents, _ = read_documents(chats, "validation", load_tokenizer(tiny_model), 128)
    for document in documents[:3]:
        ids = torch.from_numpy(document.input_ids).long()[None]
        one, other = model(ids, use_cache=False).logits, merged(ids, use_cache=False).logits
        assert relative_gap(other, one) < 0.03
        assert (one.argmax(-1) == other.argmax(-1)).float().mean() > 0.9


def test_peft_makes_the_same_of_base_and_adapter(tiny_model, adapted):
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install millrace[test]")
    output, _ = adapted
    config = json.loads((output / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, str(tiny_model))
    theirs = peft.PeftModel.from_pretrained(load_model(tiny_model, attention="sdpa"), output / "adapter").eval()
    ours = load_model(tiny_model)
    load_adapter(ours, output / "adapter")
    ids = torch.arange(3, 60)[None]
    torch.testing.assert_close(ours(ids, use_cache=False).logits, theirs(ids, use_cache=False).logits, rtol=1e-4, atol=1e-4)
    merged, stored = theirs.merge_and_unload(), load_file(output / "model.safetensors")
    assert relative_gap(load_model(output)(ids, use_cache=False).logits, merged(ids, use_cache=False).logits) < 0.03
    differing = entries = 0
    for name, weight in merged.named_parameters():  # float32: what is stored is their sum, rounded once
        torch.testing.assert_close(stored[name].float(), weight, rtol=2**-7 * 1.01, atol=1e-6)
        differing += int((stored[name] != round_weight(weight.detach(), torch.bfloat16, name)).sum())
        entries += weight.numel()
    assert differing < 1e-3 * entries  # sums in another order that lie between two values


@pytest.mark.parametrize("method", thorough_except(["lora"], ["lora", "qlora"]))
def test_a_stopped_run_continues_to_the_same_files(tiny_model, chats, tmp_path, method):
    if method == "qlora":
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install millrace[qlora]")
    settings = {**LORA, "method": method, "steps": 8, "checkpoint_every": 3, "lora": {"rank": 4, "dropout": 0.1}}
    run(tmp_path / "whole", tiny_model, chats, **settings)
    with pytest.raises(Stopped):
        run(tmp_path / "cut", tiny_model, chats, StopAfter(5), **settings)
    assert not (tmp_path / "cut" / "config.json").exists()
    run(tmp_path / "cut", tiny_model, chats, **settings)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_adapter_is_no_model_to_train(tiny_model, chats, tmp_path):
    run(tmp_path / "first", tiny_model, chats, **{**LORA, "steps": 2, "lora": {"rank": 2}})
    load_tokenizer(tiny_model).save_pretrained(tmp_path / "first" / "adapter")
    with pytest.raises(ModelError, match="holds an adapter, not a model"):
        run(tmp_path / "next", tmp_path / "first" / "adapter", chats, **LORA)


def test_qlora_learns_on_four_bits_and_says_what_it_quantized(tiny_model, chats, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install millrace[qlora]")
    metrics = run(tmp_path, tiny_model, chats, **{**LORA, "method": "qlora"})
    before, after = (loss_of(load_model(place), chats, tiny_model) for place in (tiny_model, tmp_path))
    assert after < before - 0.5
    assert metrics["validation_loss"] == pytest.approx(after, abs=0.02)
    layers = {name: tensor.numel() for name, tensor in load_file(tiny_model / "model.safetensors").items() if "_proj" in name}
    assert metrics["nf4_parameters"] == sum(layers.values())
    assert 0.05 < metrics["nf4_error"] < 0.15  # nf4 with normal weights: about 0.09
    assert verify(tmp_path) == []
    again = load_model(tiny_model, dtype=torch.bfloat16)
    load_adapter(again, tmp_path / "adapter", kind=nf4_layers())
    ids = torch.arange(3, 60)[None]
    spoken = again(ids, use_cache=False).logits.float()
    merged = load_model(tmp_path)(ids, use_cache=False).logits
    assert (spoken - merged).abs().mean() < 0.03  # bfloat16 throughout against float32
    plain = load_model(tiny_model)
    load_adapter(plain, tmp_path / "adapter")
    assert (plain(ids, use_cache=False).logits - merged).abs().mean() > 2 * (spoken - merged).abs().mean()


@pytest.mark.parametrize("shape", [(48, 32), (16, 96), (128, 64)])
def test_nf4_layers_hold_four_bits_a_weight_and_give_back_the_nearest_of_sixteen_values(shape):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install millrace[qlora]")
    from bitsandbytes.functional import get_4bit_type

    torch.manual_seed(3)
    linear = torch.nn.Linear(shape[1], shape[0], bias=False)
    torch.nn.init.normal_(linear.weight)
    weight = linear.weight.detach().clone()
    layer = nf4_layers().over(linear, LoraSettings(rank=2), torch.Generator())
    scales = weight.reshape(-1, 64).abs().amax(1, keepdim=True)
    values = get_4bit_type("nf4", device="cpu")
    nearest = values[(weight.reshape(-1, 64, 1) / scales[..., None] - values).abs().argmin(-1)] * scales
    # the scales are rounded to 8 bits, nothing else differs
    torch.testing.assert_close(layer.frozen(torch.float32), nearest.view(shape), rtol=0.02, atol=1e-6)
    assert layer.weight is None and sum(b.numel() * b.element_size() for b in layer.buffers()) < 0.6 * weight.numel()
    given = torch.randn(7, shape[1])
    torch.testing.assert_close(layer(given), given @ layer.frozen(torch.float32).T)
    assert torch.equal(layer.state_dict()["codes"], layer.codes)


def test_frozen_four_bit_weights_count_as_work(tiny_model):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install millrace[qlora]")
    works = []
    for kind in (LoraLinear, nf4_layers()):
        model = load_model(tiny_model)
        add_adapters(model, LoraSettings(rank=2), kind=kind)
        works.append(matrix_work(model))
    assert works[0] == works[1] and works[0].frozen > works[0].trained > 0
    merge_adapters(model)
    assert model.model.layers[0].mlp.up_proj.weight.shape == (48, 32)


def test_qlora_without_bitsandbytes_says_what_to_install(monkeypatch, tiny_model, chats, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    nf4.nf4_layers.cache_clear()
    with pytest.raises(ModelError, match=r"pip install 'millrace\[qlora\]'"):
        run(tmp_path, tiny_model, chats, **{**LORA, "method": "qlora"})
    nf4.nf4_layers.cache_clear()


def test_adapters_learn_ten_times_faster_by_default_and_settings_survive_a_round_trip():
    full, lora = SftSettings().resolved(), SftSettings(method="lora").resolved()
    assert lora.learning_rate == pytest.approx(10 * full.learning_rate) and lora.lora == LoraSettings()
    assert SftSettings(method="qlora", learning_rate=1e-4).resolved().learning_rate == 1e-4
    again = SftSettings.model_validate(lora.model_dump(mode="json"))
    assert again.resolved() == lora and SftSettings.model_validate(full.model_dump()).resolved() == full


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"method": "lora", "lora": {"rank": 0}}, "greater than or equal to 1"),
        ({"method": "lora", "lora": {"targets": []}}, "at least 1 item"),
        ({"method": "full", "lora": {"rank": 8}}, "set method to lora or qlora"),
        ({"method": "dora"}, "'full', 'lora' or 'qlora'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        SftSettings(**wrong)


def copy_of(model, into, **config):
    shutil.copytree(model, into)
    if config:
        held = json.loads((into / "config.json").read_text())
        (into / "config.json").write_text(json.dumps({**held, **config}))
    return into


def resized(model, into, rows, head=None):
    """The model with another number of embedding rows; and a head of its own with `head` rows."""
    copy_of(model, into, vocab_size=rows, tie_word_embeddings=head is None)
    tensors = load_file(into / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    grown = torch.zeros(max(rows, head or 0), embedding.shape[1], dtype=embedding.dtype)
    grown[: min(len(embedding), len(grown))] = embedding[: len(grown)]
    tensors["model.embed_tokens.weight"] = grown[:rows].clone()
    if head is not None:
        tensors["lm_head.weight"] = grown[:head].clone()
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    return into


def refused(tmp_path, model, dataset, **settings):
    """The sentence a run is refused with; nothing may have been written."""
    output = tmp_path / "refused"
    with pytest.raises(ModelError) as refusal:
        run(output, model, dataset, **{**SETTINGS, "steps": 2, **settings})
    assert not output.exists() or not any(output.iterdir())
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_rows_longer_than_the_context_are_refused_and_cut_rows_are_not(tiny_model, chats, tmp_path):
    short = copy_of(tiny_model, tmp_path / "short", max_position_embeddings=36)
    sentence = refused(tmp_path, short, chats)
    assert "context holds 36" in sentence and "max_length to at most 36" in sentence and "row train-" in sentence
    assert run(tmp_path / "cut", short, chats, **{**SETTINGS, "steps": 1, "max_length": 36})["cut_rows"] > 0


def test_an_empty_assistant_turn_is_refused_unless_it_is_not_learnt(tiny_model, tmp_path):
    rows = [conversation(i) for i in range(4)]
    rows[2][1]["content"] = "  "
    write_rows(tmp_path / "data", "train", rows)
    assert "1 of 4 rows" in (said := refused(tmp_path, tiny_model, tmp_path / "data"))
    assert "such as train-2: an assistant message has neither content nor a tool call" in said
    rows[2][1]["weight"] = 0
    write_rows(tmp_path / "data", "train", rows)
    assert run(tmp_path / "out", tiny_model, tmp_path / "data", **{**SETTINGS, "steps": 1})["dropped_rows"] == 1


def test_a_dataset_with_nothing_to_learn_is_refused(tiny_model, tmp_path):
    write_rows(tmp_path / "data", "train", [[{"role": "user", "content": "hello"}]] * 3)
    assert "none of 3 rows has an assistant message with weight 1" in refused(tmp_path, tiny_model, tmp_path / "data")
    write_rows(tmp_path / "cut", "train", [[{"role": "user", "content": "hello " * 99}, conversation(1)[1]]])
    assert "1 were cut" in refused(tmp_path, tiny_model, tmp_path / "cut", max_length=32)


def test_a_template_that_rewrites_earlier_turns_trains_on_a_context_for_each_answer(tiny_model, tmp_path):
    plain = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    rewriting = plain.replace("{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else 'gone' }}")
    write_rows(tmp_path / "data", "train", [[*conversation(1), *conversation(2)]])
    for name, template in (("plain", plain), ("rewriting", rewriting)):
        (copy_of(tiny_model, tmp_path / name) / "chat_template.jinja").write_text(template)
    kept = run(tmp_path / "out", tmp_path / "plain", tmp_path / "data", **{**SETTINGS, "steps": 1})
    rewritten = run(tmp_path / "out2", tmp_path / "rewriting", tmp_path / "data", **{**SETTINGS, "steps": 1})
    assert (kept["contexts"], rewritten["contexts"]) == (1, 2)
    assert kept["target_tokens"] == rewritten["target_tokens"] > 20


def test_a_vocabulary_that_does_not_fit_the_model_is_refused(tiny_model, chats, tmp_path):
    tokens = len(load_tokenizer(tiny_model))
    fewer = resized(tiny_model, tmp_path / "fewer", tokens - 5)
    assert f"embedding {tokens - 5} rows" in refused(tmp_path, fewer, chats)
    config_only = copy_of(tiny_model, tmp_path / "config-only", vocab_size=tokens + 999)
    assert "resized without its config" in refused(tmp_path, config_only, chats)
    head = resized(tiny_model, tmp_path / "head", tokens + 8, head=tokens + 16)
    assert f"the embedding has {tokens + 8} rows, the head {tokens + 16}" in refused(tmp_path, head, chats)
    padded = resized(tiny_model, tmp_path / "padded", tokens + 64)
    assert run(tmp_path / "out", padded, chats, **{**SETTINGS, "steps": 1})["steps"] == 1


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_a_quantized_base_is_refused(tiny_model, chats, tmp_path, method):
    quantized = copy_of(tiny_model, tmp_path / "int8", quantization_config={"quant_method": "compressed-tensors"})
    assert "is quantized (compressed-tensors)" in refused(tmp_path, quantized, chats, method=method)


def test_a_target_that_matches_nothing_is_refused_before_anything_is_written(tiny_model, chats, tmp_path):
    sentence = refused(tmp_path, tiny_model, chats, method="lora", lora={"targets": ["c_attn"]})
    assert "'c_attn' matches no layer" in sentence and "q_proj" in sentence


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_weight_that_is_no_number_is_named_instead_of_rows(tiny_model, chats, tmp_path, policy):
    broken, name = copy_of(tiny_model, tmp_path / "broken"), "model.layers.2.mlp.up_proj.weight"
    tensors = load_file(broken / "model.safetensors")
    tensors[name][3, 4] = torch.nan
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"step 0: weight {name} of the model holds values that are not finite"):
        run(tmp_path / "out", broken, chats, **{**SETTINGS, "steps": 2, "on_bad_step": policy})
