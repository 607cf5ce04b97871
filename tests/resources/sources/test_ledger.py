"""The ledger at any size: listings are compared in pages, entries come in portions, what vanished unread is forgotten."""

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import psutil
import pyarrow as pa
import pytest

from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.reading.ingestion import ingest, observe
from resources.sources import ledger as module
from resources.sources.ledger import Ledger
from resources.sources.sources import LogObject, SourceError, SourceSettings, objects_after
from resources.sources.unread_objects import new_objects
from stores import s3

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def tables(tmp_path):
    return Tables(LakeLayout.open(tmp_path / "lake"))


def listed(*names: str, etag: str = "1") -> list[LogObject]:
    return [LogObject("g", f"s3://logs/{name}", 10, etag, NOW) for name in names]


def test_new_and_changed_objects_are_told_from_known_ones_across_pages(tables, monkeypatch):
    monkeypatch.setattr(module, "LISTED_TOGETHER", 2)
    with Ledger.open(tables, "w") as ledger:
        assert ledger.notice("g", listed("a", "b", "c", "d", "e")) == (5, 5)
        [portion] = ledger.portions(["g"])
        ledger.put(replace(entry, state="read", rows=3, days=(date(2026, 6, 1),)) for entry in portion)
        ledger.save()
    with Ledger.open(tables, "w") as ledger:
        assert ledger.notice("g", [*listed("a", "b"), *listed("c", etag="2"), *listed("d", "e", "f")]) == (6, 2)
        assert [(entry.uri[-1], entry.etag, entry.rows) for entry in next(ledger.portions(["g"]))] == [
            ("c", "2", None),
            ("f", "1", None),
        ]
        assert ledger.days() == [date(2026, 6, 1)] and ledger.unread()[0] == 2
        assert not list(ledger.portions(["other"])) and not list(ledger.portions(["g"], days=[date(2026, 6, 1)]))


def test_what_vanished_is_forgotten_if_it_was_never_read_and_kept_if_it_was(tables):
    with Ledger.open(tables, "w") as ledger:
        ledger.notice("g", listed("a", "b", "c"))
        ledger.put(replace(entry, state="read") for entry in next(ledger.portions(["g"])) if entry.uri.endswith("a"))
        assert ledger.notice("g", listed("c")) == (1, 1)
        assert [(entry.uri[-1], entry.state) for entry in ledger.entries()] == [("a", "read"), ("c", "found")]


def test_portions_give_each_object_once_whatever_becomes_of_it(tables, monkeypatch):
    monkeypatch.setattr(module, "READ_TOGETHER", 2)
    with Ledger.open(tables, "w") as ledger:
        ledger.notice("g", listed(*"abcdef"))
        portions = []
        for portion in ledger.portions(["g"]):
            portions.append([entry.uri[-1] for entry in portion])
            ledger.put(replace(entry, state="failed") for entry in portion)
            ledger.put(replace(entry, state="read") for entry in ledger.named(["s3://logs/e"], ["g"]))
        assert portions == [["a", "b"], ["c", "d"], ["f"]]


KEYS = 100_000


@pytest.fixture
def wide_prefix(monkeypatch) -> list[int]:
    """A prefix of 100,000 keys, answered a page at a time as S3 does; the pages that were asked for."""
    asked: list[int] = []

    def answer(bucket, operation, Bucket, Prefix, MaxKeys, StartAfter="", ContinuationToken=""):
        assert operation == "list_objects_v2" and Bucket == "wide"
        first = int(ContinuationToken or StartAfter.rpartition("/")[2].removesuffix(".json") or -1) + (not ContinuationToken)
        if MaxKeys == 1:
            return {}
        asked.append(first)
        found = [
            {
                "Key": f"logs/2026/06/{number // 4000 + 1:02}/{number:07}.json",
                "Size": 3000,
                "ETag": f'"{number:032x}"',
                "LastModified": NOW + timedelta(seconds=number),
            }
            for number in range(first, min(first + MaxKeys, KEYS))
        ]
        more = first + MaxKeys < KEYS
        return {"Contents": found, "IsTruncated": more, **({"NextContinuationToken": str(first + MaxKeys)} if more else {})}

    monkeypatch.setattr(s3, "_answer", answer)
    return asked


@pytest.mark.slow
@pytest.mark.thorough
def test_a_prefix_of_100_000_keys_takes_bounded_memory(tables, wide_prefix):
    source = {"g": SourceSettings(uri="s3://wide/logs")}
    tracemalloc.start()
    before = psutil.Process().memory_info().rss
    with Ledger.open(tables, "w") as ledger:
        assert ledger.notice("g", objects_after("g", source["g"])) == (KEYS, KEYS) and len(wide_prefix) == 100
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        ledger.save()
    assert python < 24 << 20, f"{python >> 20} MiB of Python objects at once"
    growth = psutil.Process().memory_info().rss - before
    assert growth < 400 << 20, f"{growth >> 20} MiB more resident"
    assert observe(tables, "w", source).new_objects == 0


def test_a_tick_asks_for_no_more_pages_than_it_looks_at_and_goes_on_behind_them(tables, wide_prefix):
    cursor, seen = {}, 0
    for _ in range(3):
        found = new_objects(tables, "w", {"g": SourceSettings(uri="s3://wide/logs/")}, cursor, 5000)
        seen, cursor = seen + found.objects, found.cursor
    assert seen == 15_000 and len(wide_prefix) <= 18
    assert cursor["g"].endswith("0014999.json")


def pages(count: int) -> Iterator[LogObject]:
    for number in range(count):
        yield LogObject("g", f"s3://logs/{number:09}", 1, "1", NOW)


def test_entries_come_back_as_they_were(tables):
    with Ledger.open(tables, "w") as ledger:
        ledger.notice("g", pages(3))
        [entries] = ledger.portions(["g"])
        kept = [
            replace(entry, days=(date(2026, 6, 1), date(2026, 6, 2)), rows=7, format="litellm", state="read")
            for entry in entries
        ]
        ledger.put(kept)
        ledger.save()
    with Ledger.open(tables, "w") as ledger:
        assert list(ledger.entries()) == kept and kept[0].modified == NOW


def test_an_object_in_two_sources_is_refused_before_anything_is_written(tables, tmp_path):
    for name in ("a.jsonl", "sub/b.jsonl"):
        (tmp_path / "logs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "logs" / name).write_text("{}\n")
    sources = {"all": SourceSettings(uri=str(tmp_path / "logs")), "part": SourceSettings(uri=str(tmp_path / "logs/sub"))}
    for look in (observe, ingest):
        with pytest.raises(
            SourceError, match=r"sources all and part both hold .*/logs/sub/b\.jsonl: give each a uri of its own"
        ):
            look(tables, "w", sources)
    assert tables.open("objects") is None
    assert (
        observe(tables, "w", {"all": SourceSettings(uri=f"{tmp_path}/logs/*.jsonl"), "part": sources["part"]}).new_objects == 2
    )


def test_a_renamed_source_takes_its_objects_over(tables, tmp_path):
    path = tmp_path / "logs/a.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({
        "timestamp": 1780300000,
        "request": {"messages": [{"role": "user", "content": "q"}]},
        "response": {"id": "1", "choices": [{"message": {"role": "assistant", "content": "a"}}]},
    }))  # fmt: skip
    for name in ("before", "after", "after"):
        ingest(tables, "w", {name: SourceSettings(uri=str(path))})
    assert [row["source"] for row in tables.open("interactions").to_pyarrow_table().to_pylist()] == ["after"]
    with Ledger.open(tables, "w") as ledger:
        assert [(entry.source, entry.state) for entry in ledger.entries()] == [("after", "read")]


def test_a_lake_of_before_a_column_was_added_gets_it(tables, monkeypatch):
    whole = SCHEMAS["objects"]
    monkeypatch.setitem(SCHEMAS, "objects", whole.remove(whole.get_field_index("format")))
    tables.append("objects",
        pa.table({name: pa.nulls(1, whole.field(name).type) for name in whole.names if name != "format"} | {"workload": ["w"],
                "source": ["g"], "uri": ["s3://logs/a"], "etag": ["1"], "bytes": pa.array([10], pa.int64()),
                "state": ["read"]}))  # fmt: skip
    monkeypatch.setitem(SCHEMAS, "objects", whole)
    with Ledger.open(tables, "w") as ledger:
        assert ledger.notice("g", listed("b"))[0] == 1
        ledger.save()
    found = tables.open("objects").to_pyarrow_table()
    assert set(found.schema.names) == set(whole.names) and sorted(found["format"].to_pylist()) == ["", ""]
