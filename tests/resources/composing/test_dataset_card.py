"""The card: any reader of Parquet finds the splits, and every row says where it comes from."""

import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from curated_rows import built, curated, example, row, seeds
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from interaction_rows import days_of, interaction, store
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers

from assets.presentation import tell_shortages
from resources.composing import datasets as token_counts
from resources.composing.dataset_settings import DatasetSettings
from resources.composing.datasets import build_sft_dataset, count_tokens, local_tokenizers, vocabularies
from resources.composing.mixing import Pool, Take, cluster_quotas, cluster_takes, sampling_quotas, shortfalls
from resources.composing.served_answers import SERVED, build_served_answers
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.selection import curate
from resources.digests.slices import slice_digest
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables

SETTINGS = DatasetSettings(
    mix={"gateway": {"rows": 30}, "handmade": 0.5},
    limits={"handmade": {"max_repeats": 3}},
    max_rows=42,
    test_share=0.2,
    validation_share=0.2,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    home = tmp_path_factory.mktemp("card")
    rows = [
        row(n, f"question {n}", f"answer {n}", language="de" if n % 3 else None, prompt_shape="translate") for n in range(80)
    ]
    lines = [example(f"seed {n}", f"told {n}") for n in range(4)]
    report, found = built(
        curated(home / "c.parquet", rows),
        home / "sft_dataset",
        SETTINGS,
        seeds(home, lines, synthetic=True, licence="mit"),
        about={"workload": "tutor", "pii": "redact", "licences": {"handmade": "mit"}},
    )
    return home / "sft_dataset", report, found


def head(directory: Path) -> dict:
    return yaml.safe_load(re.fullmatch(r"---\n(.*?)\n---\n.*", (directory / "README.md").read_text(), re.DOTALL)[1])


def test_the_metadata_names_a_file_for_each_split(dataset):
    directory, _, _ = dataset
    [config] = head(directory)["configs"]
    assert config["config_name"] == "default"
    assert {each["split"]: (directory / each["path"]).exists() for each in config["data_files"]} == {
        "train": True,
        "validation": True,
        "test": True,
    }
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
    more = seeds(
        tmp_path / "s",
        [
            example("alpha beta", "gamma"),
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "delta"}]},
                    {"role": "assistant", "content": None, **tool},
                ]
            },
        ],
    )
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


LOGGED = {
    "prompt_token_ids": [1, 2, 3],
    "completion_token_ids": [4, 5],
    "served_model_digest": "ab" * 32,
    "params": json.dumps({"temperature": 0.7}),
}


def test_ids_and_parameters_of_the_answers_that_are_learnt(tmp_path):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    rows = [
        interaction(1, "How deep is the mill pond behind the weir?", "About two metres in spring.", **LOGGED),
        interaction(2, "Write to ada.lovelace@example.com about the wheel", "Dear Ada, the wheel turns again.", **LOGGED),
        interaction(
            3, "Name three kinds of flour that bakers use", "Rye, wheat and spelt are common.", params='{"top_p": 0.9}'
        ),
        interaction(4, "Which horse pulls the baker's cart?", "", **LOGGED),
    ]
    rows += [
        interaction(number, f"Tell me story number {number} of the river", f"Once upon a time {number} boats came by.")
        for number in range(5, 30)
    ]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), CurationSettings())
    curate(tables, "tutor", tmp_path / "curated", CurationSettings(near_duplicates={"enabled": False}), None)
    (tmp_path / "dataset").mkdir()
    build_sft_dataset(
        tmp_path / "curated" / "curated.parquet",
        None,
        tmp_path / "dataset",
        DatasetSettings(test_share=0.0, validation_share=0.1),
    )
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
        interaction(
            1,
            "Who minds the weir?",
            "The weir keeper does.",
            **LOGGED,
            reasoning='The user means "Ada",\nada.lovelace@example.com, I think.',
        ),
        interaction(2, "Who minds the sluice?", "The sluice keeper does.", **LOGGED, reasoning="A sluice has a keeper."),
        interaction(3, "Who minds the boat?", "The ferryman does.", **LOGGED),
    ]
    found, report = served(tmp_path, rows, CurationSettings(pii=pii))
    assert {name: row["completion_token_ids"] for name, row in found.items()} == {
        "i1": None if pii == "redact" else [4, 5],
        "i2": [4, 5],
        "i3": [4, 5],
    }
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


def quotas(available, **settings):
    pools = {Pool(name, name.startswith("synthetic")): rows for name, rows in available.items()}
    return {pool.source: rows for pool, rows in sampling_quotas(pools, DatasetSettings(**settings)).items()}


def notes(available, **settings):
    pools = {Pool(name): rows for name, rows in available.items()}
    chosen = DatasetSettings(**settings)
    return shortfalls(pools, sampling_quotas(pools, chosen), chosen)


names = st.sampled_from(["a", "b", "c", "synthetic"])


@given(
    available=st.dictionaries(names, st.integers(0, 400), min_size=1),
    mix=st.dictionaries(names, st.floats(0, 1) | st.fixed_dictionaries({"rows": st.integers(1, 90)})).filter(
        lambda mix: not mix or any(mix.values())
    ),
    limits=st.dictionaries(
        names,
        st.fixed_dictionaries(
            {}, optional={"max_rows": st.integers(0, 300), "max_share": st.floats(0.01, 1), "max_repeats": st.integers(1, 3)}
        ),
    ),
    max_rows=st.none() | st.integers(400, 900),
    synthetic=st.none() | st.floats(0, 1),
)
@hypothesis_settings(max_examples=200, deadline=None)
def test_law_no_bound_is_broken_and_nothing_is_invented(available, mix, limits, max_rows, synthetic):
    got = quotas(available, mix=mix, limits=limits, max_rows=max_rows, max_synthetic_share=synthetic)
    total = sum(got.values())
    assert max_rows is None or total <= max_rows
    for source, rows in got.items():
        bounds = limits.get(source, {})
        assert 0 <= rows <= available[source] * bounds.get("max_repeats", 1)
        assert rows <= bounds.get("max_rows", rows) and rows <= bounds.get("max_share", 1) * total + 1e-6
        assert not mix or source in mix or not rows
    assert synthetic is None or got.get("synthetic", 0) <= synthetic * total + 1e-6
    if not limits and synthetic is None and not any(isinstance(wish, dict) for wish in mix.values()):
        named = sum(rows for source, rows in available.items() if not mix or mix.get(source, 0) > 0)
        assert total == min(named, max_rows or named)


def test_shares_follow_the_mix_as_far_as_rows_suffice():
    assert quotas({"a": 1000, "b": 1000}, mix={"a": 3, "b": 1}, max_rows=400) == {"a": 300, "b": 100}
    assert quotas({"a": 1000, "b": 10}, mix={"a": 1, "b": 1}, max_rows=400) == {"a": 390, "b": 10}
    assert quotas({"a": 300, "b": 100}, max_rows=40) == {"a": 30, "b": 10}
    assert quotas({"a": 300, "b": 100}) == {"a": 300, "b": 100}


def test_numbers_are_served_before_shares():
    assert quotas({"a": 1000, "b": 1000}, mix={"a": 0.8, "b": {"rows": 50}}, max_rows=400) == {"a": 350, "b": 50}
    assert quotas({"a": 1000, "b": 1000}, mix={"a": 1, "b": {"rows": 50}}) == {"a": 1000, "b": 50}
    with pytest.raises(ValidationError, match="asks for 500 rows by number, and max_rows allows 400"):
        DatasetSettings(mix={"a": {"rows": 500}}, max_rows=400)


def test_rows_are_repeated_only_as_often_as_stated():
    few = {"a": 1000, "b": 10}
    assert quotas(few, mix={"a": 0.8, "b": 0.2}, max_rows=200) == {"a": 190, "b": 10}
    assert quotas(few, mix={"a": 0.8, "b": 0.2}, max_rows=200, limits={"b": {"max_repeats": 3}}) == {"a": 170, "b": 30}
    assert quotas(few, mix={"a": 0.8, "b": 0.2}, max_rows=200, limits={"b": {"max_repeats": 9}}) == {"a": 160, "b": 40}
    assert cluster_takes({"x": 6, "y": 4}, 24, "none") == {"x": Take(2, 2), "y": Take(2, 2)}
    assert cluster_takes({"x": 6, "y": 4}, 10, "none") == {"x": Take(1, 0), "y": Take(1, 0)}


def test_bounds_on_sources_and_on_synthetic_rows():
    assert quotas({"a": 900, "b": 100}, limits={"a": {"max_rows": 50}}) == {"a": 50, "b": 100}
    assert quotas({"a": 900, "b": 100}, limits={"a": {"max_share": 0.5}}) == {"a": 100, "b": 100}
    assert quotas({"a": 900, "b": 900}, mix={"a": 0.8, "b": 0.2}, max_rows=100, limits={"a": {"max_share": 0.5}}) == {
        "a": 50,
        "b": 50,
    }
    assert quotas({"a": 90, "synthetic": 900}, max_synthetic_share=0.1) == {"a": 90, "synthetic": 10}
    assert quotas({"a": 90, "synthetic": 900}, max_synthetic_share=0) == {"a": 90, "synthetic": 0}


def test_what_there_are_too_few_rows_for_is_said():
    few = {"a": 1000, "b": 10}
    assert notes(few, mix={"a": 1, "b": {"rows": 50}}) == ["mix asks for 50 rows of b, which has 10 rows for training"]
    [said] = notes(few, mix={"a": 0.8, "b": 0.2}, max_rows=200)
    assert said == "mix asks for 40 rows of b (0.2 of the shares), which has 10 rows for training"
    assert notes(few, mix={"b": 1}, max_rows=50)[-1] == "max_rows asks for 50 rows, and the mix has 10"
    assert notes({"a": 5}, mix={"a": 1, "b": 1}) == ["mix gives b a share, and it has no row for training"]
    assert notes(few, mix={"a": 1, "b": 1}) == [] and notes(few, max_rows=2000) == []
    assert notes(few, mix={"a": 1, "b": {"rows": 50}}, limits={"b": {"max_rows": 5}}) == []


@pytest.mark.parametrize("wrong", [
    {"mix": {"a": -1}}, {"mix": {"a": 0}}, {"mix": {"a": "half"}}, {"mix": {"a": True}}, {"mix": {"a": {"rows": 0}}},
    {"mix": {"a": {"rows": 3, "share": 1}}}, {"mix": {"a": {}}}, {"limits": {"a": {"max_repeats": 0}}},
    {"max_synthetic_share": 2}, {"test_share": 0.6, "validation_share": 0.4}, {"mixx": {}},
])  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        DatasetSettings(**wrong)


@given(
    sizes=st.dictionaries(st.text("abcdef#", max_size=4), st.integers(1, 300), min_size=1, max_size=30),
    wanted=st.integers(0, 4000),
    balance=st.sampled_from(["none", "sqrt", "uniform"]),
)
@hypothesis_settings(deadline=None)
def test_cluster_quotas_add_up_and_are_never_more_than_there_is(sizes, wanted, balance):
    quotas = cluster_quotas(sizes, wanted, balance)
    assert quotas.keys() == sizes.keys()
    assert sum(quotas.values()) == min(wanted, sum(sizes.values()))
    assert all(0 <= quotas[cluster] <= size for cluster, size in sizes.items())
    if balance == "uniform":
        fair = min(wanted, sum(sizes.values())) / len(sizes)
        assert all(quotas[cluster] == size for cluster, size in sizes.items() if size <= fair)
        whole = [quotas[cluster] for cluster, size in sizes.items() if quotas[cluster] < size]
        assert not whole or max(whole) - min(whole) <= 1
    if balance == "none":
        share = min(wanted, sum(sizes.values())) / sum(sizes.values())
        assert all(abs(quotas[cluster] - size * share) < 1 for cluster, size in sizes.items())


def test_cluster_quotas_between_proportional_and_equal():
    sizes = {"frequent": 9_900, "rare": 100}
    assert cluster_quotas(sizes, 200, "none") == {"frequent": 198, "rare": 2}
    assert cluster_quotas(sizes, 200, "sqrt") == {"frequent": 182, "rare": 18}
    assert cluster_quotas(sizes, 200, "uniform") == {"frequent": 100, "rare": 100}


def lines(tmp_path, monkeypatch, metrics):
    monkeypatch.setenv("MILLRACE_PROGRESS", str(tmp_path / "progress"))
    (tmp_path / "progress").touch()
    tell_shortages(dg.build_asset_context(), SimpleNamespace(name="help/best", metrics=metrics))
    return [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]


def test_a_shortage_is_told_in_one_line_with_the_mixture_that_came_out(tmp_path, monkeypatch):
    metrics = {
        "notes": [
            "mix asks for 36 rows of gateway, which has 25 rows for training",
            "max_rows asks for 60 rows, and the mix has 49",
        ],
        "sources": {"gateway": 25, "claude": 12, "rules": 12},
    }
    assert lines(tmp_path, monkeypatch, metrics) == [
        {
            "event": "note",
            "message": (
                "best: mix asks for 36 rows of gateway, which has 25 rows for training; max_rows asks for 60 rows, and the mix has 49; "
                "its training rows are claude 12 (24%), gateway 25 (51%), rules 12 (24%)"
            ),
        }
    ]


def test_a_calibration_set_names_no_mixture_and_a_whole_dataset_is_silent(tmp_path, monkeypatch):
    assert lines(tmp_path, monkeypatch, {"notes": ["too few"]})[0]["message"] == "best: too few"
    (tmp_path / "progress").unlink()
    assert lines(tmp_path, monkeypatch, {"notes": [], "sources": {"gateway": 25}}) == []
