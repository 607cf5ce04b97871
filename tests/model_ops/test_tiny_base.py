"""The tiny base: the same every time, never the logs' text, a tokenizer that gives back what it was given."""

import json

from tiny_models import run_job

from model_ops.files.standard_library import library_sources
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.operations import tiny_base
from model_ops.operations.base_directory import check_base
from model_ops.rendering.tokens import end_of_turn_ids

SETTINGS = {"steps": 4, "vocab_size": 600, "hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16,
    "mlp_size": 48, "tokens_per_step": 512, "max_length": 64, "learning_rate": 1e-2}  # fmt: skip


def make(folder, monkeypatch):
    few = library_sources("base")[:40]
    monkeypatch.setattr(tiny_base, "library_sources", lambda part: few if part == "base" else [])
    return run_job(tiny_base, folder, **SETTINGS)


def test_it_is_the_same_every_time_and_a_sound_base(tmp_path, monkeypatch):
    first, second = make(tmp_path / "a", monkeypatch), make(tmp_path / "b", monkeypatch)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert first["validation_loss"] == second["validation_loss"]
    assert 0 < first["unigram_loss"] < 7 and first["validation_bits_per_byte"] > 0
    check_base(tmp_path / "a")
    assert load_model(tmp_path / "a").config.tie_word_embeddings
    stops = json.loads((tmp_path / "a" / "generation_config.json").read_text())["eos_token_id"]
    assert stops == load_tokenizer(tmp_path / "a").eos_token_id


def test_its_tokenizer_gives_back_any_text_and_its_turns_end(tmp_path, monkeypatch):
    make(tmp_path, monkeypatch)
    tokenizer = load_tokenizer(tmp_path)
    text = "def f(x):\n\treturn 'é 漢字 \U0001f600'  # ok\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert end_of_turn_ids(tokenizer) == [tokenizer.convert_tokens_to_ids("<|im_end|>")] == [2]


def test_held_out_files_are_not_trained_on():
    training, held_out = tiny_base.read_texts(library_sources("base"))
    assert training and held_out and not training.keys() & held_out.keys()
    assert 0.01 < len(held_out) / (len(training) + len(held_out)) < 0.12
