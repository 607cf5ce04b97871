"""The card: any reader of Parquet finds the splits, and every row says where it comes from."""

import importlib.util
import json
import re
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from curated_rows import built, curated, example, row, seeds
from interaction_rows import days_of, interaction, store
from tokenizers import Tokenizer, models, pre_tokenizers

from resources.composing import datasets as token_counts
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.datasets import build_sft_dataset, count_tokens, local_tokenizers, vocabularies
from resources.composing.served_answers import SERVED, build_served_answers
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

SETTINGS = DatasetSettings(mix={"gateway": {"rows": 30}, "handmade": 0.5}, limits={"handmade": {"max_repeats": 3}}, max_rows=42,
    test_share=0.2, validation_share=0.2)  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    home = tmp_path_factory.mktemp("card")
    rows = [
        row(n, f"question {n}", f"answer {n}", language="de" if n % 3 else None, prompt_shape="translate") for n in range(80)
    ]
    lines = [example(f"seed {n}", f"told {n}") for n in range(4)]
    report, found = built(curated(home / "c.parquet", rows), home / "sft_dataset", SETTINGS,
        seeds(home, lines, synthetic=True, licence="mit"),
        about={"workload": "tutor", "pii": "redact", "licences": {"handmade": "mit"}})  # fmt: skip
    return home / "sft_dataset", report, found


def head(directory: Path) -> dict:
    return yaml.safe_load(re.fullmatch(r"---\n(.*?)\n---\n.*", (directory / "README.md").read_text(), re.DOTALL)[1])


def test_the_metadata_names_a_file_for_each_split(dataset):
    directory, _, _ = dataset
    [config] = head(directory)["configs"]
    assert config["config_name"] == "default"
    assert {each["split"]: (directory / each["path"]).exists() for each in config["data_files"]} == {"train": True,
        "validation": True, "test": True}  # fmt: skip
    assert head(directory)["language"] == ["de"] and head(directory)["size_categories"] == ["n<1K"]
    assert "synthetic" in head(directory)["tags"]


def test_the_text_has_mixture_lengths_licences_and_no_row(dataset):
    directory, report, _ = dataset
    text = (directory / "README.md").read_text()
    assert "| gateway | traffic or people | 30 | 71.4% |" in text and "| handmade | a model | 12 | 28.6% | 3 |" in text
    assert "Seed `handmade`: mit." in text and "| train | 42 |" in text and "`translate`" in text
    assert "question 1" not in text and report.synthetic == 12 and report.notes == []


def test_every_row_says_where_it_comes_from_and_repeats_are_as_stated(dataset):
    _, report, found = dataset
    assert all(each["row_id"] and each["source"] and each["split"] and each["reason"] for each in found)
    copies = [each["row_id"] for each in found if each["source"] == "handmade"]
    assert sorted(copies.count(name) for name in set(copies)) == [3, 3, 3, 3]
    assert [each["reason"] for each in found if each["source"] == "handmade"].count("repeated") == 8
    assert report.by_source_and_reason["handmade"] == {"all": 4, "repeated": 8}
    assert {each["weight"] for each in found if each["source"] == "handmade"} == {3.0}
    assert {each["reason"] for each in found if each["split"] != "train"} == {"held_out"}
    [share] = {each["weight"] for each in found if each["reason"] == "sampled"}
    assert share == 30 / (80 - report.rows["test"] - report.rows["validation"])


def test_polars_and_duckdb_read_the_directory_as_it_is(dataset):
    directory, report, _ = dataset
    counted = pl.scan_parquet(str(directory / "*.parquet")).group_by("split").len().collect()
    assert dict(counted.iter_rows()) == report.rows
    sql = duckdb.sql(f"select split, count(*) from '{directory}/*.parquet' group by all").fetchall()
    assert dict(sql) == report.rows


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the package datasets")
def test_hugging_face_datasets_reads_the_directory_as_it_is(dataset, tmp_path):
    from datasets import load_dataset

    directory, report, _ = dataset
    found = load_dataset(str(directory), cache_dir=str(tmp_path))
    assert {name: len(split) for name, split in found.items()} == report.rows


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


LOGGED = {"prompt_token_ids": [1, 2, 3], "completion_token_ids": [4, 5], "served_model_digest": "ab" * 32,
    "params": json.dumps({"temperature": 0.7})}  # fmt: skip


def test_ids_and_parameters_of_the_answers_that_are_learnt(tmp_path):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    rows = [interaction(1, "How deep is the mill pond behind the weir?", "About two metres in spring.", **LOGGED),
        interaction(2, "Write to ada.lovelace@example.com about the wheel", "Dear Ada, the wheel turns again.", **LOGGED),
        interaction(3, "Name three kinds of flour that bakers use", "Rye, wheat and spelt are common.",
            params='{"top_p": 0.9}'),
        interaction(4, "Which horse pulls the baker's cart?", "", **LOGGED)]  # fmt: skip
    rows += [
        interaction(number, f"Tell me story number {number} of the river", f"Once upon a time {number} boats came by.")
        for number in range(5, 30)
    ]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), CurationSettings())
    curate(tables, "tutor", tmp_path / "curated", CurationSettings(near_duplicates={"enabled": False}), None)
    (tmp_path / "dataset").mkdir()
    build_sft_dataset(tmp_path / "curated" / "curated.parquet", None, tmp_path / "dataset",
        DatasetSettings(test_share=0.0, validation_share=0.1))  # fmt: skip
    (tmp_path / "served").mkdir()
    report = build_served_answers(tables, "tutor", [tmp_path / "dataset"], tmp_path / "served")
    table = pq.read_table(tmp_path / "served" / "served.parquet")
    assert table.schema.equals(SERVED)
    found = {row["interaction_id"]: row for row in table.to_pylist()}
    assert found["i1"]["prompt_token_ids"] == [1, 2, 3] and found["i1"]["completion_token_ids"] == [4, 5]
    assert found["i1"]["served_model_digest"] == "ab" * 32 and json.loads(found["i1"]["params"]) == {"temperature": 0.7}
    assert found["i2"]["prompt_token_ids"] is None and found["i2"]["completion_token_ids"] is None, "an address is in them"
    assert json.loads(found["i2"]["params"]) == {"temperature": 0.7}
    assert found["i3"]["prompt_token_ids"] is None and "i4" not in found, "an empty answer is learnt by nobody"
    assert report == {"answers": len(found), "with_token_ids": 1, "with_digest": 2, "ids_miscounted": 0} and len(found) == 28


def served(tmp_path, rows, curation):
    """served.parquet by interaction, and the report, of rows that are all learnt."""
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), curation)
    (tmp_path / "dataset").mkdir()
    pq.write_table(
        pa.Table.from_pylist([{"origin": "interaction", "interaction_ids": [row["interaction_id"]]} for row in rows]),
        tmp_path / "dataset" / "train.parquet",
    )
    (tmp_path / "served").mkdir()
    report = build_served_answers(tables, "tutor", [tmp_path / "dataset"], tmp_path / "served")
    return {row["interaction_id"]: row for row in pq.read_table(tmp_path / "served" / "served.parquet").to_pylist()}, report


@pytest.mark.parametrize("pii", ["redact", "keep"])
def test_ids_of_thoughts_that_hold_personal_data_are_left_out(tmp_path, pii):
    """What was thought is in the ids, and in neither messages nor answer."""
    rows = [
        interaction(1, "Who minds the weir?", "The weir keeper does.", **LOGGED, reasoning='The user means "Ada",\nada.lovelace@example.com, I think.'),
        interaction(2, "Who minds the sluice?", "The sluice keeper does.", **LOGGED, reasoning="A sluice has a keeper."),
        interaction(3, "Who minds the boat?", "The ferryman does.", **LOGGED),
    ]  # fmt: skip
    found, report = served(tmp_path, rows, CurationSettings(pii=pii))
    assert {name: row["completion_token_ids"] for name, row in found.items()} == {"i1": None if pii == "redact" else [4, 5],
        "i2": [4, 5], "i3": [4, 5]}  # fmt: skip
    assert found["i1"]["params"] and report["with_token_ids"] == (2 if pii == "redact" else 3)


def test_ids_are_exact_only_where_they_are_as_many_as_the_server_counted(tmp_path):
    counted = {"prompt_tokens": 3, "completion_tokens": 2}
    rows = [
        interaction(1, "one", "first answer", **LOGGED, **counted),
        interaction(2, "two", "second answer", **LOGGED, prompt_tokens=2, completion_tokens=2),
        interaction(3, "three", "third answer", **LOGGED, prompt_tokens=3, completion_tokens=1),
        interaction(4, "four", "fourth answer", **LOGGED, prompt_tokens=3, completion_tokens=9),
        # two choices of one request, whose count is of both
        interaction(5, "five", "fifth answer", **LOGGED, prompt_tokens=3, completion_tokens=4, request_id="both"),
        interaction(
            6, "five", "sixth answer", **LOGGED, prompt_tokens=3, completion_tokens=4, request_id="both", choice_index=1
        ),
    ]
    found, report = served(tmp_path, rows, CurationSettings())
    assert [name for name, row in sorted(found.items()) if row["prompt_token_ids"]] == ["i1", "i5", "i6"]
    assert report["ids_miscounted"] == 3 and report["with_token_ids"] == 3


def test_ids_and_parameters_alone_renew_what_is_made_of_them(tmp_path):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    rows = [interaction(1, "one", "first answer"), interaction(2, "two", "second answer")]
    store(tables, "interactions", rows)
    before = slice_digest(tables, "interactions", "tutor", as_served=True)
    plain = slice_digest(tables, "interactions", "tutor")
    for change in ({"params": '{"temperature": 0.2}'}, {"completion_token_ids": [4, 5]}, {"served_model_digest": "ab" * 32}):
        store(tables, "interactions", [{**rows[0], **change}, rows[1]])
        assert slice_digest(tables, "interactions", "tutor") == plain
        assert slice_digest(tables, "interactions", "tutor", as_served=True) != before
    store(tables, "interactions", rows[::-1])
    assert slice_digest(tables, "interactions", "tutor", as_served=True) == before
