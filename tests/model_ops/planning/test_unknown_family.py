"""A family outside the table is allowed or refused by a trial on a small model of its config."""

import pytest
from transformers import AutoConfig

import model_ops.planning.trainable_family as trainable_family
import model_ops.planning.unknown_family as unknown_family
from model_ops.jobs.job import ModelError
from model_ops.planning.trainable_family import refuse_untrainable, small_config
from model_ops.planning.unknown_family import try_family

LARGE = {
    "vocab_size": 50_000, "hidden_size": 64, "num_hidden_layers": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 4_096, "max_position_embeddings": 4_096,
}  # fmt: skip


def config_of(name, **own):
    return AutoConfig.for_model(name, **{**LARGE, **own}).to_dict()


def test_a_family_whose_attention_goes_through_transformers_is_allowed():
    found = try_family(config_of("olmo"))
    assert (found.train, found.decode, found.quantize, found.tried) == (None, None, None, True)


def test_a_family_with_a_state_is_trained_document_by_document():
    assert try_family(config_of("stablelm")).train is None


@pytest.mark.parametrize(("name", "said"), [("mamba", "influence each other"), ("no_such_family", "transformers builds no")])
def test_what_cannot_be_trained_is_refused_in_one_sentence(name, said):
    config = config_of(name) if name == "mamba" else {**LARGE, "model_type": name}
    found = try_family(config)
    assert said in found.train and "\n" not in found.train


def test_decoding_that_differs_from_the_whole_row_is_refused(monkeypatch):
    runner = unknown_family.new_runner

    def forgetful(model):
        made = runner(model)
        whole = type(made).forward
        made.forward = lambda ids, cache, capture=(): whole(made, ids * 0 + 5, cache, capture)
        return made

    monkeypatch.setattr(unknown_family, "new_runner", forgetful)
    assert "gives other logits than without" in try_family(config_of("olmo")).decode


def test_every_kind_of_layer_is_in_the_small_model():
    kinds = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 20
    small = small_config(config_of("olmo3", layer_types=kinds))
    assert small.layer_types == kinds[:4] and small.num_hidden_layers == 4 and small.vocab_size == 64


def test_a_model_that_stays_large_is_not_tried(monkeypatch):
    monkeypatch.setattr(trainable_family, "MOST_PARAMETERS", 1_000)
    assert try_family(config_of("olmo")).tried is False


@pytest.mark.parametrize("name", ["mamba", "no_such_family"])
def test_an_untrainable_family_is_refused_with_the_remedy(name):
    config = config_of(name) if name == "mamba" else {**LARGE, "model_type": name}
    with pytest.raises(ModelError, match=r"; name a model of another family$"):
        refuse_untrainable(config)
