"""Examples of every kind, as seeds and as traffic, up to the labels that the trainer sees."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from model_ops.documents.conversations import read_documents, tokenize
from model_ops.documents.packing import to_batch
from model_ops.jobs import ModelError
from model_ops.models.model_directory import load_tokenizer
from model_ops.rendering.row import Row
from resources.composing.datasets import DatasetSettings, build_sft_dataset
from resources.composing.seeds import SeedError, import_seeds
from resources.curating import CurationSettings, clean, curate, stale_days
from resources.lake import LakeLayout, Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures/formats"
ALL_TRAIN = DatasetSettings(validation_share=0, test_share=0)


@pytest.fixture
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


def curated_from(logs, folder):
    """Curates a folder of logs; the decisions as {stage: {rule: rows}}."""
    tables = Tables(LakeLayout.open(folder / "lake"))
    ingest(tables, "w", {"logs": SourceSettings(uri=str(logs))})
    settings = CurationSettings()
    clean(tables, "w", stale_days(tables, "w"), settings)
    curate(tables, "w", folder / "curated", settings, None)
    decisions = tables.open("decisions").to_pyarrow_table().to_pylist()
    return folder / "curated/curated.parquet", Counter((row["stage"], row["rule"]) for row in decisions)


def chats(folder):
    folder.mkdir()
    (folder / "a.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "def q"}, {"role": "assistant", "content": "return chat"}]})
    )
    return folder


def seed_folder(folder):
    """Every fixture of examples, some of them packed, one as Parquet, and a page of prose."""
    folder.mkdir()
    for name in ("messages", "alpaca", "sharegpt", "preferences", "prompt_completion", "tokens"):
        shutil.copy(FIXTURES / f"{name}.jsonl", folder)
    (folder / "text.jsonl.zst").write_bytes(zstandard.compress((FIXTURES / "text.jsonl").read_bytes()))
    ids = pa.table({"input_ids": [[11, 12, 13]], "labels": [[-100, -100, 13]]})
    pq.write_table(ids, folder / "more.parquet")
    return folder


def test_seeds_of_every_kind_are_counted_and_reach_the_trainer_with_their_labels(tmp_path, tokenizer):
    (tmp_path / "prose.md").write_text("# Prose\n\nof a page\n")
    report = import_seeds(
        {
            "folder": SourceSettings(uri=str(seed_folder(tmp_path / "seeds"))),
            "prose": SourceSettings(uri=str(tmp_path / "prose.md"), format="text"),
        },
        tmp_path / "out",
    )
    assert report.by_source["prose"] == {"lines": 1, "rows": 1, "duplicates": 0, "bad": 0, "erased": 0}
    assert report.by_source["folder"] == {"lines": 32, "rows": 31, "duplicates": 0, "bad": 1, "erased": 0}
    (bad,) = pq.read_table(tmp_path / "out/bad_lines.parquet").to_pylist()
    assert bad["source_uri"].endswith("prompt_completion.jsonl") and bad["source_row"] == 5 and "assistant" in bad["message"]
    seeds = pq.read_table(tmp_path / "out/seeds.parquet").to_pylist()
    assert not [row for row in seeds if '"bad"' in row["messages"]]
    path, _ = curated_from(chats(tmp_path / "logs"), tmp_path)
    build_sft_dataset(path, tmp_path / "out/seeds.parquet", tmp_path / "sft", ALL_TRAIN)
    rows = {row["row_id"]: row for row in pq.read_table(tmp_path / "sft/train.parquet").to_pylist()}
    documents, counts = read_documents(tmp_path / "sft", "train", tokenizer, 512)
    assert len(rows) == 33 and counts["dropped_rows"] == 0 and len(documents) == 33
    seen = {}
    for document in documents:
        row, batch = rows[document.row_id], to_batch([document])
        learnt = [label for label in batch.labels.tolist() if label != -100]
        if row["token_ids"] is not None:
            assert batch.input_ids.tolist() == row["token_ids"]
            assert batch.labels.tolist()[:-1] == row["labels"][1:]
        elif row["text"] is not None:
            assert tokenizer.decode(document.input_ids) == row["text"] and learnt == document.input_ids.tolist()[1:]
        else:
            assert "<|im_end|>" in tokenizer.decode(learnt)
        seen[row["text"] or json.dumps(row["token_ids"]) or ""] = len(learnt)
    assert {"# Prose\n\nof a page\n", "A page of prose.", "[5, 6, 7, 8]", "[11, 12, 13]"} <= set(seen)
    assert seen["[5, 6, 7, 8]"] == 2 and seen["[11, 12, 13]"] == 1


def test_traffic_of_every_kind_is_curated_and_reaches_the_trainer(tmp_path, tokenizer):
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("text", "tokens", "preferences", "messages_rft"):
        shutil.copy(FIXTURES / f"{name}.jsonl", logs)
    (logs / "again.jsonl").write_text('{"id": "other", "token_ids": [9, 8, 7]}\n')
    path, rules = curated_from(logs, tmp_path)
    assert rules["clean", "prompt_only"] == 3 and rules["curate", "thumbs_down"] == 10
    assert rules["curate", "exact_duplicate"] == 1 and rules["clean", "empty"] == 0
    rows = pq.read_table(path).to_pylist()
    answers = [json.loads(row["completion"])["content"] for row in rows if row["completion"] and row["text"] is None]
    assert len(rows) == 16 and len(answers) == 10 and set(answers) == {"It is -3 °C.", "yes", "good", "3"}
    assert sorted(row["text"] for row in rows if row["text"]) == ["A page of prose.", "def f():\n    return 1\n"]
    labels = {tuple(row["token_ids"]): row["labels"] for row in rows if row["token_ids"]}
    assert labels == {
        (5, 6, 7, 8): [-100, -100, 7, 8],
        (1, 2, 3, 4, 5, 6): [-100, 2, -100, -100, 5, 6],
        (9, 8, 7): [9, 8, 7],
        (4, 5, 6): [-100, 5, 6],
    }
    build_sft_dataset(path, None, tmp_path / "sft", ALL_TRAIN)
    documents, counts = read_documents(tmp_path / "sft", "train", tokenizer, 512)
    assert counts["rows"] == 16 and len(documents) == 16


def test_the_kept_preference_needs_no_rule_against_thumbs_down(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    line = {"prompt": "same question", "chosen": "right", "rejected": "wrong"}
    (logs / "a.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({**line, "id": "named", "prompt": "other"}))
    path, rules = curated_from(logs, tmp_path)
    kept = [json.loads(row["completion"])["content"] for row in pq.read_table(path).to_pylist()]
    assert kept == ["right", "right"] and rules["curate", "thumbs_down"] == 2


def test_token_ids_of_another_tokenizer_are_refused_by_row(tokenizer):
    with pytest.raises(ModelError, match="row r7: token id 40000 is outside"):
        tokenize([Row("r7", [], token_ids=[1, 40000])], tokenizer, 64)
    with pytest.raises(ModelError, match="row r8: 2 token ids, but 1 labels"):
        tokenize([Row("r8", [], token_ids=[1, 2], labels=[1])], tokenizer, 64)


def test_text_and_tokens_need_no_chat_template_and_are_cut_alike(tokenizer):
    tokenizer.chat_template = None
    rows = [Row("a", [], token_ids=[1, 2, 3, 4]), Row("b", [], text="def add_1(a, b):"), Row("c", [], token_ids=[1])]
    documents, counts = tokenize(rows, tokenizer, 3)
    assert [document.row_id for document in documents] == ["a", "b"] and counts.dropped_rows == 1
    assert documents[0].input_ids.tolist() == [1, 2, 3] and counts.cut_rows == 2
    with pytest.raises(ModelError, match="chat template"):
        tokenize([*rows, Row("d", [{"role": "user", "content": "q"}])], tokenizer, 64)


def test_seeds_that_cannot_be_had_are_named(tmp_path):
    with pytest.raises(SeedError, match=r"no seed file .*nowhere"):
        import_seeds({"a": str(tmp_path / "nowhere.jsonl")}, tmp_path / "out")
    (tmp_path / "odd.jsonl").write_text('{"odd": 1}\n')
    with pytest.raises(
        SeedError, match="no usable line, of 1; the first: none of the first 1 records is of a known log format"
    ):
        import_seeds({"a": tmp_path / "odd.jsonl"}, tmp_path / "out")
    shutil.copy(FIXTURES / "alpaca.jsonl", tmp_path)
    with pytest.raises(SeedError, match="is of the format sharegpt"):
        import_seeds({"a": SourceSettings(uri=str(tmp_path / "alpaca.jsonl"), format="sharegpt")}, tmp_path / "out")
