"""What two products say under their own keys of user, session, time, latency, cost and thumb reaches its column."""

import json

import pytest

from benchmarks.first_day import CHATS, KEYS, write_logs
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings


@pytest.mark.parametrize("kind", KEYS)
def test_nothing_that_a_product_says_is_lost(tmp_path, kind):
    write_logs(kind, tmp_path / "logs")
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    report = ingest(tables, "support", {"bot": SourceSettings(uri=str(tmp_path / "logs"))})
    rows = tables.open("interactions").to_pyarrow_table()
    assert {column: rows[column].null_count for column in KEYS[kind] if column != "feedback"} == dict.fromkeys(
        list(KEYS[kind])[:-1], 0
    )
    assert (
        rows.num_rows == CHATS and len(set(rows["ts"].to_pylist())) == CHATS and len(set(rows["user_hash"].to_pylist())) == 40
    )
    assert set(tables.open("feedback").to_pyarrow_table()["value"].to_pylist()) == {-1.0, 1.0}
    assert report.total.attached_feedback == CHATS // 5 and not report.unread_keys.get("bot")


def test_a_word_a_currency_and_a_workload_beside_whole_answers(tmp_path):
    answer = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    pair = {"request": {"messages": [{"role": "user", "content": "hi"}]}, "response": {"choices": [answer]}}
    records = [{"status": "failed"}, {"cost": 0.2, "currency": "EUR"}, {"cost": 0.2}, {"status_code": 500, "cut": True}]
    (tmp_path / "logs.jsonl").write_text("".join(json.dumps({**pair, "request_id": f"r{n}", "team": "tutor" if n == 2 else "x",
                    **more} | (
                    {"response": {"choices": [{**answer, "finish_reason": None}]}} if "cut" in more else {})) + "\n" for n,
            more in enumerate(records)))  # fmt: skip
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    ingest(
        tables,
        "shop",
        {"app": SourceSettings(uri=str(tmp_path / "logs.jsonl"), fields={"workload": "team"}, workloads={"tutor": "math"})},
    )
    rows = {row["request_id"]: row for row in tables.open("interactions").to_pyarrow_table().to_pylist()}
    assert [(rows[f"r{n}"]["status"], rows[f"r{n}"]["cost"], rows[f"r{n}"]["workload"]) for n in range(4)] == [
        ("success", None, "shop"), ("success", None, "shop"), ("success", 0.2, "math"), ("failure", None, "shop"),
    ]  # fmt: skip
