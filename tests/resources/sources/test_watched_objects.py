"""A sensor's look at the logs: it finds what is new at the end at once, everything else in pages, and nothing that was read."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from resources.lake.tables import slice_stamp
from resources.reading.ingestion import ingest
from resources.sources import unread_objects as watched
from resources.sources.ledger import Ledger
from resources.sources.sources import SourceError, SourceSettings, list_objects
from resources.sources.unread_objects import KnownObjects, new_objects

COUNT = 130


@pytest.fixture
def source(tmp_path):
    for number in range(COUNT):
        path = tmp_path / "logs" / f"dt=2026-06-{1 + number // 10:02}" / f"part-{number:04}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    return SourceSettings(uri=str(tmp_path / "logs"))


def read_all(tables, source):
    with Ledger.open(tables, "tutor") as ledger:
        ledger.notice("gateway", list_objects("gateway", source))
        [seen] = ledger.portions(["gateway"])
        ledger.put(replace(entry, state="read", read_as=source.read_as) for entry in seen)
        ledger.save()


def look(tables, source, cursor=None, limit=5_000):
    return watched.watched_objects(tables, "tutor", {"gateway": source}, cursor or {}, limit)


def test_before_anything_was_read_everything_is_new(tables, source):
    assert look(tables, source).objects == COUNT
    assert look(tables, SourceSettings(uri=source.uri + "/dt=2026-06-01")).objects == 10


def test_what_was_read_is_not_new_and_other_settings_make_it_new_again(tables, source):
    read_all(tables, source)
    assert look(tables, source).objects == 0
    assert look(tables, SourceSettings(uri=source.uri, format="litellm")).objects == COUNT


def test_a_new_object_at_the_end_is_found_at_once_and_a_late_one_within_a_walk(tables, source, tmp_path, monkeypatch):
    monkeypatch.setattr(watched, "LEAST_PAGE", 20)
    read_all(tables, source)
    first = look(tables, source)
    assert first.objects == 0 and first.cursor
    (tmp_path / "logs" / "dt=2026-06-14").mkdir()
    (tmp_path / "logs" / "dt=2026-06-14" / "part.jsonl").write_text("{}\n")
    assert [day.isoformat() for day in look(tables, source, first.cursor).days] == ["2026-06-14"]
    (tmp_path / "logs" / "dt=2026-06-14" / "part.jsonl").unlink()
    (tmp_path / "logs" / "dt=2026-06-02" / "late.jsonl").write_text("{}\n")
    found, cursor = [], first.cursor
    for _ in range(COUNT // 20 + 2):
        seen = look(tables, source, cursor)
        found, cursor = [*found, seen.objects], seen.cursor
    assert sum(found) == 1


def test_a_changed_object_is_new(tables, source, tmp_path):
    read_all(tables, source)
    (tmp_path / "logs" / "dt=2026-06-03" / "part-0025.jsonl").write_text("{}\n{}\n")
    assert look(tables, source).objects == 1


def test_the_hashes_are_made_once_for_each_state_of_the_ledger(tables, source, monkeypatch):
    read_all(tables, source)
    first, stamp = KnownObjects.of(tables, "tutor"), slice_stamp(tables, "objects", "tutor")
    assert len(first) == COUNT and first.ends["gateway"].endswith("part-0079.jsonl")
    monkeypatch.setattr("resources.sources.unread_objects._of_ledger", lambda *_: pytest.fail("the ledger was read again"))
    assert len(KnownObjects.of(tables, "tutor")) == COUNT
    monkeypatch.undo()
    tables.replace("objects", tables_rows(tables).slice(0, 5), workload="tutor")
    assert slice_stamp(tables, "objects", "tutor") != stamp
    assert len(KnownObjects.of(tables, "tutor")) == 5
    kept = list((tables.lake.root / ".remembered" / "known_objects" / "tutor").iterdir())
    assert len(kept) == 2  # those of earlier states are gone


def tables_rows(tables):
    from resources.lake.sql_files import attach_slice, workbench

    with workbench() as connection:
        attach_slice(connection, tables, "objects", "tutor")
        return connection.sql("from objects").to_arrow_table()


def test_a_commit_of_one_workload_changes_only_its_own_stamp(tables, source):
    read_all(tables, source)
    rows = tables_rows(tables)
    tables.append("objects", rows.set_column(0, "workload", [["other"] * COUNT]))
    before = slice_stamp(tables, "objects", "tutor")
    tables.append("objects", rows.slice(0, 1).set_column(0, "workload", [["other"]]))
    assert slice_stamp(tables, "objects", "tutor") == before != ""
    assert slice_stamp(tables, "objects", "nobody") == "" and slice_stamp(tables, "drift", "tutor") == ""


def test_an_object_whose_records_are_of_an_earlier_day_is_asked_for_again_by_that_day(tables, tmp_path):
    """Its key names no day: the first run looks for the day on which it was written, and finds which day it is of."""
    today = datetime.now(UTC).date()
    yesterday = today - timedelta(days=1)
    (tmp_path / "late").mkdir()
    record = {"timestamp": f"{yesterday}T23:59:00Z", "request_id": "r1",
        "request": {"messages": [{"role": "user", "content": "hi"}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": "ho"}, "finish_reason": "stop"}]}}  # fmt: skip
    (tmp_path / "late" / "new-1.jsonl").write_text(json.dumps(record) + "\n")
    sources = {"gateway": SourceSettings(uri=str(tmp_path / "late"))}

    def seen():
        return watched.watched_objects(tables, "tutor", sources, {}, 100)

    first = seen()
    assert first.days == [today]
    assert ingest(tables, "tutor", sources, first.days).total.read == 0
    second = seen()
    assert second.days == [yesterday] and second.digest != first.digest and seen().digest == second.digest
    assert ingest(tables, "tutor", sources, second.days).total.read == 1
    assert seen().objects == 0


KEYS = ["a/x.jsonl", "a.jsonl", "a/dt=2026-06-01/p.jsonl", "a/dt=2026-06-02/q.jsonl", "b-c/r.jsonl", "b/s.jsonl", "z.jsonl"]


@pytest.fixture(params=["local", "memory"])
def listed_source(request, tmp_path):
    if request.param == "memory":
        MemoryFileSystem.store.clear()
        filesystem = MemoryFileSystem()
        for key in [*KEYS, "a/.hidden.jsonl", "b/part.tmp"]:
            filesystem.pipe(f"/logs/{key}", b"{}\n")
        return SourceSettings(uri="memory://logs")
    for key in [*KEYS, "a/.hidden.jsonl", "b/part.tmp"]:
        path = tmp_path / "logs" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")
    return SourceSettings(uri=str(tmp_path / "logs"))


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_of_any_size_see_every_object_once(tables, listed_source, limit):
    cursor, seen, ticks = {}, 0, 0
    while True:
        found = new_objects(tables, "tutor", {"gateway": listed_source}, cursor, limit)
        seen += found.objects
        ticks += 1
        cursor = found.cursor
        if not cursor:
            break
        assert ticks < 20
    assert seen == len(KEYS)


def test_what_was_read_is_not_new_and_what_was_only_seen_still_is(tables, listed_source):
    with Ledger.open(tables, "tutor") as ledger:
        assert ledger.notice("gateway", list_objects("gateway", listed_source)) == (len(KEYS), len(KEYS))
        ledger.save()
        assert new_objects(tables, "tutor", {"gateway": listed_source}, {}, 100).objects == len(KEYS)
        [seen] = ledger.portions(["gateway"])
        ledger.put(replace(entry, state="read", read_as=listed_source.read_as) for entry in seen)
        ledger.save()
    assert new_objects(tables, "tutor", {"gateway": listed_source}, {}, 100).objects == 0


def test_days_come_from_the_keys_and_the_digest_from_the_objects(tables, listed_source):
    first = new_objects(tables, "tutor", {"gateway": listed_source}, {}, 100)
    again = new_objects(tables, "tutor", {"gateway": listed_source}, {}, 100)
    assert first.digest == again.digest
    assert {day.isoformat() for day in first.days} >= {"2026-06-01", "2026-06-02"}


def test_an_empty_prefix_has_nothing_new_and_an_unknown_protocol_is_said(tables, tmp_path):
    (tmp_path / "empty").mkdir()
    assert new_objects(tables, "tutor", {"a": SourceSettings(uri=str(tmp_path / "empty"))}, {}, 9).objects == 0
    with pytest.raises(SourceError, match="cannot be listed"):
        new_objects(tables, "tutor", {"a": SourceSettings(uri="nosuch://bucket/x")}, {}, 9)
