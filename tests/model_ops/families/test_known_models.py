"""The table of common models: every config is complete, and its size is the one that its makers name."""

import pytest

from model_ops.families.table import _known, known_config, parameters_of

SIZES = {
    "meta-llama/Llama-3.1-8B-Instruct": 8.03, "meta-llama/Llama-3.2-1B": 1.24, "meta-llama/Llama-3.3-70B-Instruct": 70.55,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.49, "Qwen/Qwen2.5-7B": 7.62, "Qwen/Qwen3-0.6B": 0.60, "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-32B": 32.76, "Qwen/Qwen3-30B-A3B": 30.53, "google/gemma-3-1b-it": 1.0,
    "mistralai/Mistral-7B-Instruct-v0.3": 7.25, "mistralai/Mistral-Small-24B-Instruct-2501": 23.57, "microsoft/phi-4": 14.66,
    "microsoft/Phi-4-mini-instruct": 3.84, "HuggingFaceTB/SmolLM3-3B": 3.08, "HuggingFaceTB/SmolLM2-135M": 0.135,
    "openai/gpt-oss-20b": 20.91, "openai/gpt-oss-120b": 116.83,
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), SIZES.items())
def test_size_is_what_the_makers_name(name, billions):
    assert parameters_of(known_config(name)) / 1e9 == pytest.approx(billions, rel=0.01)


def test_each_config_is_one_that_transformers_knows():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert {config["model_type"] for config in _known().values()} <= set(CONFIG_MAPPING_NAMES)
    assert all(config["max_position_embeddings"] >= 8192 for config in _known().values())


def test_names_are_found_in_any_case_and_copies_are_given():
    found = known_config("qwen/QWEN3-8b")
    found["hidden_size"] = 1
    assert known_config("Qwen/Qwen3-8B")["hidden_size"] == 4096 and known_config("nobody/nothing") is None


def test_a_hub_id_that_is_not_in_the_cache_has_a_size(tmp_path, monkeypatch):
    from huggingface_hub import constants

    from pipelines.contract.base_choice import look_at_base

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    base = look_at_base("Qwen/Qwen3-8B")
    assert (base.kind, base.layers, base.context) == ("hub", 36, 40960) and base.parameters / 1e9 == pytest.approx(
        8.19, rel=0.01
    )
    assert look_at_base("nobody/nothing").parameters is None
