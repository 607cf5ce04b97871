"""Keys that nothing reads: columns under other names, the notes of a run, the ledger, and `forget`."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

from benchmarks.first_day import CHATS, KEYS, write_logs
from resources.digests.user_hash import keyed_hash
from resources.erasing import raw_keys
from resources.erasing.raw_keys import named_in_logs
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest, notes_on
from resources.reading.unread_keys import UnreadKey, unread_in, unread_text
from resources.records.extraction import keys_read, looks_beside
from resources.records.formats import FORMATS
from resources.sources.sources import SourceSettings
from tests.resources.inspecting.test_survey import PAIR, put
from tests.resources.records.test_formats import read

ASKED = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}
SAID = {"id": "chatcmpl-abc1234567",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}]}  # fmt: skip
OPENAI = {
    "time": "2026-06-01T12:00:00Z", "conversation_id": "c1", "user": "U2", "user_id": "U9", "duration_ms": 1200,
    "thumb": "up", "cost_usd": 0.01, "region": "eu", "request": ASKED, "response": SAID,
}  # fmt: skip
ANTHROPIC = {"request": {**ASKED, "max_tokens": 5, "system": "x", "customer_ref": "U7"}, "thumb": "down", "durationMs": 5,
    "http": {"status": 503},
    "metadata": {"userId": "U2", "sessionId": "s9"}, "time": "2026-06-01T12:00:00Z", "actor": {"login": "bob"},
    "response": {"id": "msg_1234567", "type": "message", "role": "assistant",
        "content": [{"type": "text", "text": "hi"}]}}  # fmt: skip
MAPPED = {"q": "hi you", "a": "hello", "n_in": 4, "price": "$0.2", "took": "1.5s", "rating": 4, "squad": "x"}


def test_columns_of_two_formats_and_what_nothing_reads(tmp_path):
    rows, bad, thumbs, report = read(tmp_path, [OPENAI, ANTHROPIC])
    assert not bad and [row["user_hash"] for row in rows] == [keyed_hash("U9"), keyed_hash("U2")]
    assert [(row["session_id"], str(row["ts"])[:19], row["latency_ms"], row["cost"], row["status"]) for row in rows] == [
        ("c1", "2026-06-01 12:00:00", 1200.0, 0.01, "success"),
        ("s9", "2026-06-01 12:00:00", 5.0, None, "failure"),
    ]
    assert [(each["name"], each["value"], each["tie"], each["ts"]) for each in thumbs] == [
        ("thumbs", 1.0, "interaction", rows[0]["ts"]),
        ("thumbs", -1.0, "interaction", rows[1]["ts"]),
    ]
    assert list(notes_on(report))[-2:] == [
        "gateway: 1 record with two values of user: user_id is read, not user (`fields` can name another path)",
        "gateway: 3 keys are read by nothing: actor.login (1 record), region (1 record), user (1 record)",
    ]
    lake = LakeLayout.open(tmp_path / "lake")
    assert unread_in(Tables(lake)) == {("shop", "gateway"): report.unread_keys["gateway"]}
    [said] = named_in_logs(lake, "bob", False)
    assert said.startswith("source gateway: this user stands under actor.login in 1 record (")
    assert "fields: {user: actor.login}" in said
    [said] = named_in_logs(lake, "U2", False)  # the first record's user_id comes before it
    assert said.startswith("source gateway: this user stands under user in 1 record (")
    assert list(named_in_logs(lake, "U9", False)) == []
    assert [list(named_in_logs(lake, name, True)) for name in ("U9", "gpt")] == [[], []], "of a column, and of no record"
    [said] = named_in_logs(lake, "U7", True)
    assert said.startswith("source gateway: this user stands under request.customer_ref in 1 record (")
    assert "fields: {user: request.customer_ref}" in said


def attributes(**values):
    return [{"key": key.replace("__", "."), "value": {"stringValue": value}} for key, value in values.items()]


def test_attributes_of_spans(tmp_path):
    asked, said = json.dumps(ASKED["messages"]), json.dumps([{"role": "assistant", "content": "hi"}])
    own = {"cost_usd": "0.5", "thumb": "down", "actor__login": "bob", "metadata": '{"tier": "gold", "user_id": "U2"}'}
    content = {
        "gen_ai__input__messages": asked,
        "gen_ai__output__messages": said,
        "http__route": "/chat",
        "thread__id": "main-7",
    }
    chat = {"gen_ai__operation__name": "chat", **content, **own}
    times = {"startTimeUnixNano": "1780315200000000000", "endTimeUnixNano": "1780315201000000000"}
    spans = [
        {"traceId": "t" * 32, "spanId": "a" * 16, **times, "attributes": attributes(**chat)},
        {"traceId": "t" * 32, "spanId": "b" * 16, **times, "attributes": attributes(region="eu")},  # no call
    ]
    (row,), bad, (thumb,), report = read(tmp_path, [{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}])
    assert (row["cost"], row["user_hash"], row["session_id"]) == (0.5, keyed_hash("U2"), None) and not bad
    assert (thumb["value"], thumb["name"], thumb["source"]) == (-1, "thumbs", "log")
    assert [(key.path, key.field, key.records) for key in report.unread_keys["gateway"]] == [
        ('["actor.login"]', "", 1),
        ("metadata.tier", "", 1),
    ]
    [said] = named_in_logs(LakeLayout.open(tmp_path / "lake"), "bob", False)
    assert said.startswith('source gateway: this user stands under ["actor.login"] in 1 record (')


def test_runs_of_langsmith_and_pairs_of_a_batch(tmp_path):
    run = {
        "id": "r1",
        "run_type": "llm",
        "session_id": "a-project",
        "start_time": "2026-06-01T12:00:00",
        "end_time": "2026-06-01T12:00:01.500000",
        "first_token_time": "2026-06-01T12:00:00.250000",
        "total_cost": 0.02,
        "name": "ChatOpenAI",
        "dotted_order": "20260601T120000Zr1",
        "extra": {"metadata": {"user_id": "U2", "ls_provider": "openai", "tier": "gold"}, "runtime": {"sdk": "js"}},
        "inputs": ASKED,
        "outputs": SAID,
    }
    (row,), bad, _, report = read(tmp_path, [run, {**run, "id": "r2", "run_type": "chain", "crew": "x"}])
    assert (row["user_hash"], row["session_id"], row["cost"]) == (keyed_hash("U2"), None, 0.02) and not bad
    assert (row["latency_ms"], row["ttft_ms"]) == (1500, 250)
    assert [(key.path, key.records) for key in report.unread_keys["gateway"]] == [("extra.metadata.tier", 1)]
    body = {**ASKED, "metadata": {"customerId": "U2", "tier": "gold"}}
    request = {"custom_id": "c1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    response = {
        "id": "b1",
        "custom_id": "c1",
        "response": {"status_code": 200, "request_id": "q1", "body": SAID},
        "error": None,
    }
    (row,), bad, _, report = read(tmp_path / "batch", [request, response])
    assert row["user_hash"] == keyed_hash("U2") and not bad
    assert [(key.path, key.records) for key in report.unread_keys["gateway"]] == [("request.metadata.tier", 1)]


def test_fields_beside_a_known_format_and_names_beside_fields(tmp_path):
    record = {**OPENAI, "billing": {"amount": 0.5}, "actor": {"login": "bob"}}
    (row,), _, _, report = read(tmp_path, [record], fields={"cost": "billing.amount", "user": "actor.login"})
    assert (row["cost"], row["user_hash"], row["session_id"]) == (0.5, keyed_hash("bob"), "c1")
    assert [key.path for key in report.unread_keys["gateway"]] == ["region", "user", "user_id"] and not report.clashes
    (tmp_path / "mapped").mkdir()
    (row,), _, (stars,), report = read(
        tmp_path / "mapped", [MAPPED], fields={"prompt": "q", "answer": "a", "prompt_tokens": "n_in"}
    )
    assert (row["prompt_tokens"], row["cost"], row["latency_ms"]) == (4, 0.2, 1500.0)
    assert (stars["name"], stars["value"]) == ("rating", 4.0)
    assert [key.path for key in report.unread_keys["gateway"]] == ["squad"]


def test_the_sentence_has_the_line_that_reads_them():
    keys = [
        UnreadKey(path="actor.login", field="user", records=300),
        UnreadKey(path="who", field="user", records=2),
        *(UnreadKey(path=f"k{number}", field="", records=1) for number in range(12)),
    ]
    said = unread_text(keys, {"cost": "billing.amount"})
    assert said.startswith("14 keys are read by nothing: actor.login (300 records), who (2 records), k0 (1 record)")
    assert "and 2 more" in said and said.endswith("fields: {user: actor.login, cost: billing.amount} would read actor.login")


def test_a_user_is_found_in_the_logs_however_they_are_written(tmp_path, monkeypatch):
    log = tmp_path / "a.jsonl"
    log.write_text(
        "".join(
            json.dumps(record, ensure_ascii=is_ascii) + "\n"
            for record, is_ascii in (
                ({"tags": [{"key": "actor", "value": "Jörg"}]}, True),
                ({"tags": [{"key": "actor", "value": "Jörg"}]}, False),
                ({"crew": ["Ann", "Jörg"]}, True),
                ({"note": "Jörg"}, True),
            )
        )
    )
    keys = json.dumps([["tags.actor", "", 2], ["crew", "", 1]])
    rows = [{"source": "app", "uri": str(log), "etag": "", "bytes": 9, "unread_keys": keys}] * 2  # of two workloads
    objects = pa.Table.from_pylist(rows)
    schema = SimpleNamespace(to_arrow=lambda: objects.schema)
    table = SimpleNamespace(to_pyarrow_table=lambda columns: objects.select(columns), schema=lambda: schema)
    monkeypatch.setattr(raw_keys, "Tables", lambda lake: SimpleNamespace(open=lambda name: table))
    monkeypatch.setattr(raw_keys, "unread_in", lambda tables: {("shop", "app"): []})
    said = list(named_in_logs(None, "Jörg", False))
    assert [line.split(" (")[0] for line in said] == [
        "source app: this user stands under tags.actor in 2 records",
        "source app: this user stands under crew in 1 record",
    ]

    assert all("No path of fields leads there" in line for line in said)

    def locked(item):
        raise PermissionError("locked")

    monkeypatch.setattr(raw_keys, "open_object", locked)
    assert list(named_in_logs(None, "Jörg", False)) == [f"{log} could not be searched for keys that nothing reads: locked"]


@pytest.mark.parametrize(("name", "keys"), [
    ("openai_pairs", {"timestamp", "latency_ms", "request", "request.metadata.session_id"}),
    ("anthropic", {"request", "session_id", "ts"}),
    ("litellm", {"response_cost", "metadata.user_api_key_alias"}),
    ("messages", {"metadata.user_id", "timestamp"}),
])  # fmt: skip
def test_what_a_format_reads_comes_from_its_sql(name, keys):
    assert keys <= keys_read(FORMATS[name]) and looks_beside(FORMATS[name]) and not looks_beside(FORMATS["feedback"])
    assert json.loads(json.dumps(sorted(keys_read(FORMATS[name]))))


@pytest.mark.parametrize("kind", KEYS)
def test_nothing_that_a_product_says_is_lost(tmp_path, kind):
    write_logs(kind, tmp_path / "logs")
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    report = ingest(tables, "support", {"bot": SourceSettings(uri=str(tmp_path / "logs"))})
    rows = tables.open("interactions").to_pyarrow_table()
    assert {column: rows[column].null_count for column in KEYS[kind] if column != "feedback"} == dict.fromkeys(
        list(KEYS[kind])[:-1], 0
    )
    assert rows.num_rows == CHATS and len(set(rows["ts"].to_pylist())) == CHATS
    assert len(set(rows["user_hash"].to_pylist())) == 40
    assert set(tables.open("feedback").to_pyarrow_table()["value"].to_pylist()) == {-1.0, 1.0}
    assert report.total.attached_feedback == CHATS // 5 and not report.unread_keys.get("bot")


def test_a_word_a_currency_and_a_workload_beside_whole_answers(tmp_path):
    answer = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    pair = {"request": {"messages": [{"role": "user", "content": "hi"}]}, "response": {"choices": [answer]}}
    records = [{"status": "failed"}, {"cost": 0.2, "currency": "EUR"}, {"cost": 0.2}, {"status_code": 500, "cut": True}]
    (tmp_path / "logs.jsonl").write_text(
        "".join(
            json.dumps(
                {**pair, "request_id": f"r{n}", "team": "tutor" if n == 2 else "x", **more}
                | ({"response": {"choices": [{**answer, "finish_reason": None}]}} if "cut" in more else {})
            )
            + "\n"
            for n, more in enumerate(records)
        )
    )
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    ingest(
        tables,
        "shop",
        {"app": SourceSettings(uri=str(tmp_path / "logs.jsonl"), fields={"workload": "team"}, workloads={"tutor": "math"})},
    )
    rows = {row["request_id"]: row for row in tables.open("interactions").to_pyarrow_table().to_pylist()}
    assert [(rows[f"r{n}"]["status"], rows[f"r{n}"]["cost"], rows[f"r{n}"]["workload"]) for n in range(4)] == [
        ("success", None, "shop"),
        ("success", None, "shop"),
        ("success", 0.2, "math"),
        ("failure", None, "shop"),
    ]


def test_a_run_counts_the_records_in_quarantine_beside_whole_objects(tmp_path):
    good = {"prompt": "Why?", "completion": "Because."}
    lines = [good, {**good, "suffix": "and so on"}, {"prompt": "What?", "suffix": "more of it", "completion": "That."}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "b.jsonl").write_text(json.dumps({"some": "thing"}))
    sources = {name: SourceSettings(uri=str(tmp_path / f"{name}.jsonl")) for name in ("a", "b")}
    report = ingest(Tables(LakeLayout.open(tmp_path / "lake")), "shop", sources)
    notes = [note for note in notes_on(report) if "quarantine" in note]
    assert [note.split(" (")[0].split(":")[0] for note in notes] == [
        "1 object went to quarantine as a whole",
        "2 records went to quarantine",
    ]


def asked(number, workload):
    return PAIR | {
        "workload_id": workload,
        "request": {"model": "m", "messages": [{"role": "user", "content": f"q {number}"}]},
        "response": PAIR["response"] | {"id": f"r{number}"},
    }


def read_workloads(tmp_path, workloads):
    put(tmp_path / "log.jsonl", *[asked(number, "shop" if number % 3 == 0 else "farm") for number in range(9)])
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    report = ingest(tables, "farm", {"app": SourceSettings(uri=str(tmp_path / "log.jsonl"), workloads=workloads)})
    return list(notes_on(report)), sum(tables.rows_by_day("interactions", "farm").values())


def test_rows_of_another_workload_are_told_with_the_remedy(tmp_path):
    notes, count = read_workloads(tmp_path, {})
    assert notes == [
        "the records of source app name 2 workloads, farm (6), shop (3), and all of them become rows of farm; "
        "sources.app.workloads: {shop: shop} keeps them apart, and {shop: farm} says that they are one"
    ]
    assert count == 9


def test_a_source_that_says_what_its_names_mean_is_not_told_of(tmp_path):
    assert read_workloads(tmp_path / "apart", {"shop": "shop"}) == ([], 6)
    assert read_workloads(tmp_path / "one", {"shop": "farm"}) == ([], 9)
