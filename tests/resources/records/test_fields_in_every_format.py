"""`fields` holds in every format: each column that it may name is the row's, whichever format read the record."""

import pytest
from marked_formats import NAMES, VALUES, fields_of, write_marked

from resources.digests.user_hash import keyed_hash
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest, notes_on
from resources.sources.sources import SourceSettings
from tests.resources.records.test_formats import read

WANTED = {"user_hash": keyed_hash(VALUES["user"]), "session_id": VALUES["session"], "model": VALUES["model"],
    "provider": VALUES["provider"], "status": "failure", "cost": 0.125, "latency_ms": 321.0, "ttft_ms": 12.0,
    "prompt_tokens": 71, "completion_tokens": 93, "workload_name": "w1"}  # fmt: skip
NO_CHATS = {"feedback", "langfuse_scores"}


def read_marked(tmp_path, names, but=()):
    write_marked(tmp_path / "logs", names)
    sources = {name.partition(".")[0]: SourceSettings(uri=str(tmp_path / "logs" / name.partition(".")[0]),
            fields=fields_of(name, but), workloads={"w1": "tutor"}) for name in names}  # fmt: skip
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    ingest(tables, "tutor", sources)
    opened = [tables.open(name) for name in ("interactions", "feedback")]
    return [table.to_pyarrow_table().to_pylist() if table else [] for table in opened]


def check(tmp_path, names):
    rows, thumbs = read_marked(tmp_path, names)
    assert {row["source"] for row in rows} == {name.partition(".")[0] for name in names} - NO_CHATS
    wrong = {(row["source"], name, row[name]) for row in rows for name, value in WANTED.items() if row[name] != value}
    assert wrong == set()
    assert {str(row["ts"])[:19] for row in rows} == {"2026-01-02 03:04:05"}
    assert {row["source"] for row in rows if "ID-" not in f"{row['request_id']} {row['alias_id']}"} == set()
    rated = {thumb[name] for thumb in thumbs if thumb["value"] == 1 for name in ("given_id", "request_id")}
    assert {row["source"] for row in rows} == {
        row["source"] for row in rows if {row["interaction_id"], row["request_id"]} & rated - {None}
    }


def test_fields_hold_in_formats_of_data_sets_batches_and_spans(tmp_path):
    check(
        tmp_path, ["preferences.jsonl", "tokens.jsonl", "text.jsonl", "oasst.jsonl", "openai_batch.jsonl", "otlp_traces.jsonl"]
    )


@pytest.mark.slow
def test_fields_hold_in_every_format(tmp_path):
    check(tmp_path, NAMES)


def test_feedback_has_the_user_and_session_that_fields_name(tmp_path):
    _, thumbs = read_marked(tmp_path, ["feedback.jsonl", "langfuse_scores.jsonl"], but=("feedback",))
    assert {thumb["voter_hash"] for thumb in thumbs} == {WANTED["user_hash"]}
    assert {thumb["session_id"] for thumb in thumbs} == {VALUES["session"]}
    assert {str(thumb["ts"])[:19] for thumb in thumbs} == {"2026-01-02 03:04:05"} and len(thumbs) > 3


def test_a_path_of_the_user_that_no_record_has_is_said(tmp_path):
    pair = {"prompt": "why", "chosen": "so", "rejected": "no", "who": "ann"}
    for path, notes in (("who", []), ("whom", ["gateway: fields names the user at whom, and none of 2 rows has one"])):
        *_, report = read(tmp_path / path, [pair], fields={"user": path})
        assert [note.partition(": `")[0] for note in notes_on(report) if "fields names" in note] == notes


def test_a_user_beside_chunks_alone_is_the_answers(tmp_path):
    piece = {"id": "c7x7f", "object": "chat.completion.chunk", "who": "Ann@Mill.example"}
    chunks = [
        {"id": "c7x7f", "request": {"messages": [{"role": "user", "content": "why"}]}},
        piece | {"choices": [{"index": 0, "delta": {"content": "so"}}]},
        piece | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    [row], *_ = read(tmp_path, chunks, fields={"user": "who"})
    assert row["user_hash"] == keyed_hash("ann@mill.example") and '"so"' in row["completion"]
