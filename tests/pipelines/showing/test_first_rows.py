"""`millrace show` before anything was made: first records of the sources, rendered with the template of `tiny`."""

import json

import pyarrow.parquet as pq
import pytest

from pipelines.contract.recipe import load_recipe
from pipelines.showing.first_rows import HEAD, _one_object, write_first_rows
from pipelines.showing.nothing_to_show import NothingToShow
from resources.lake import Lake
from resources.reading.sources import SourceSettings
from tests.resources.inspecting.test_survey import PAIR, put


@pytest.fixture
def recipe(tmp_path):
    def write(**sources):
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps({"workload": "helper", "base_model": "tiny", "sources": sources or {"gateway": {"uri": "gateway"}}}))
        return path

    put(tmp_path / "gateway" / "2026-06-01.jsonl", PAIR)
    return write


def test_sources_are_shown_before_there_is_a_lake_or_a_model(cli, recipe, tmp_path):
    done = cli("show", recipe(), "--lake", tmp_path / "lake")
    assert "<|im_start|>assistant" in done.stdout and "«" in done.stdout
    assert "no sft_dataset was made yet" in done.stdout and "rendered with ChatML" in done.stdout
    assert not (tmp_path / "lake").exists()


def test_only_the_answer_is_learnt_of_a_request_with_history(recipe, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_first_rows(load_recipe(recipe()), folder)
    [row, *_] = pq.read_table(folder / "train.parquet")["messages"].to_pylist()
    *before, answer = json.loads(row)
    assert answer["role"] == "assistant" and all(message.get("weight") == 0 for message in before if message["role"] == "assistant")


def test_of_a_large_log_only_the_beginning_is_read(tmp_path):
    line = json.dumps({"text": "x" * 1000})
    (tmp_path / "large.jsonl").write_text(f"{line}\n" * 6_000)
    chosen = _one_object("logs", SourceSettings(uri=str(tmp_path / "large.jsonl")), tmp_path)
    head = (tmp_path / "logs.jsonl").read_text()
    assert chosen.uri == str(tmp_path / "logs.jsonl") and HEAD - 2_000 < len(head) <= HEAD and head.endswith(line)


def test_sources_without_an_answer_are_a_sentence(recipe, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "empty.jsonl").write_text("{}\n")
    with pytest.raises(NothingToShow, match="hold no answered request"):
        write_first_rows(load_recipe(recipe(logs={"uri": "empty.jsonl"})), folder)
    with pytest.raises(NothingToShow, match="nowhere"):
        write_first_rows(load_recipe(recipe(logs={"uri": "nowhere"})), tmp_path / "other")
    assert Lake.open(folder / "lake", create=False)
