"""Tokens of a dataset's splits, in the tokenizers of local models."""

import json

import pytest
from curated_rows import built, curated, example, row, seeds
from tokenizers import Tokenizer, models, pre_tokenizers

from resources.composing import token_counts
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.token_counts import count_tokens, local_tokenizers, vocabularies


@pytest.fixture
def words(tmp_path):
    """A model's directory whose tokenizer makes each word a token."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


def test_manifest_and_card_have_the_tokens_of_what_the_rows_say(tmp_path, words, monkeypatch):
    rows = [row(n, f"one two three {n}", f"four five {n}") for n in range(40)]  # 7 words
    tool = {"tool_calls": [{"type": "function", "id": "1", "function": {"name": "look", "arguments": '{"at": 1}'}}]}
    more = seeds(tmp_path / "s", [
        example("alpha beta", "gamma"),
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "delta"}]}, {"role": "assistant", "content": None, **tool}]},
    ])  # fmt: skip
    path = curated(tmp_path / "c.parquet", rows)
    spec = DatasetSettings(test_share=0.3, validation_share=0.2)
    report, found = built(path, tmp_path / "d", spec, more, tokenizers={"base": words})
    held = {
        split: sum(each["split"] == split and each["origin"] == "interaction" for each in found)
        for split in ("train", "validation", "test")
    }
    expected = {"train": 7 * held["train"] + 3 + 4, "validation": 7 * held["validation"], "test": 7 * held["test"]}
    assert report.as_metrics()["tokens"] == {"base": expected} and all(expected.values())
    assert (
        f"| base | {expected['train']} | {expected['validation']} | {expected['test']} |"
        in (tmp_path / "d" / "README.md").read_text()
    )
    monkeypatch.setattr(token_counts, "ROWS", 5)
    sampled = count_tokens(tmp_path / "d", {"base": words})["base"]
    assert sampled["test"] == expected["test"] and abs(sampled["train"] - expected["train"]) < 20, "scaled up from a sample"


def test_only_models_in_directories_are_counted(tmp_path, words):
    found = local_tokenizers({"base": str(words), "teacher": "org/name", "student": None, "other": str(tmp_path)})
    assert found == {"base": words} and json.dumps(vocabularies(found)) != "{}" and vocabularies({}) == {}
