"""A GGUF file as a base model: what our own writer wrote comes back with the model's answers, and a file that cannot be read
without a loss is refused."""

import pytest
import torch
from test_gguf_file import q8_0
from tiny_models import write_target
from transformers import AutoModelForCausalLM, AutoTokenizer

from model_ops.jobs import ModelError
from model_ops.models import gguf_directory, load_model
from model_ops.models.gguf_file import write_gguf
from pipelines.contract import BaseModelError, look_at_base

gguf = pytest.importorskip("gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_file(folder, model_type="llama", **changes):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 128 if model_type == "qwen3" else 16}
    write_target(folder / "model", layers=2, model_type=model_type, tied=model_type == "qwen2", **{**sizes, **changes})
    write_gguf(folder / "model", folder / "chat.gguf")
    return folder / "chat.gguf"


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_the_model_of_a_file_answers_as_the_model_that_it_was_written_from(tmp_path, model_type):
    file = write_file(tmp_path, model_type)
    directory = gguf_directory(file)
    assert gguf_directory(file) == directory  # a second look makes nothing again
    read, tokenizer = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16),
        AutoTokenizer.from_pretrained(directory),
    )
    source = AutoTokenizer.from_pretrained(tmp_path / "model")
    chat = [{"role": "user", "content": "def add(a, b):"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == source.apply_chat_template(chat, tokenize=False)
    assert read.generation_config.eos_token_id == source.eos_token_id
    weights = load_model(tmp_path / "model").float().state_dict()
    for name, value in read.state_dict().items():
        rounded = torch.from_numpy(q8_0(weights[name].numpy())) if value.ndim == 2 else weights[name]
        assert torch.equal(value, rounded.to(torch.bfloat16)), name
    base = look_at_base(str(file))
    assert (base.name, base.file, base.kind) == (str(directory), str(file), "directory")
    assert "SHA-256" in (directory / "README.md").read_text()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda file: file.write_bytes(b"no"), "is no GGUF file"),
        (lambda file: file.write_bytes(file.read_bytes()[:200]), "is damaged"),
        (lambda file: file.rename(file.with_name("chat-00001-of-00002.gguf")), "one part of several"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_sentence(tmp_path, changed, said):
    changed(write_file(tmp_path))
    with pytest.raises(ModelError, match=said):
        gguf_directory(next(tmp_path.glob("*.gguf")))
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    file = write_file(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(ModelError, match="set XDG_CACHE_HOME"):
        gguf_directory(file)


def test_what_the_loader_would_lose_is_refused(tmp_path):
    file = write_file(tmp_path, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0})
    with pytest.raises(BaseModelError, match="scaled rotary positions"):
        look_at_base(str(file))


def test_a_folder_or_a_repository_of_gguf_files_leads_to_a_file(tmp_path):
    (tmp_path / "chat.gguf").touch()
    with pytest.raises(BaseModelError, match=r"no config.json; name its file chat\.gguf"):
        look_at_base(str(tmp_path))
    with pytest.raises(BaseModelError, match="repository of GGUF files; fetch one of them"):
        look_at_base("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF")
