"""The ledger at any size: listings are compared in pages, entries come in portions, what vanished unread is forgotten."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import psutil
import pytest

from resources import ledger as module
from resources import s3
from resources.ingest import observe
from resources.lake import Lake
from resources.ledger import Ledger
from resources.new_objects import new_objects
from resources.sources import LogObject, SourceSettings, objects_after
from resources.tables import Tables

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def tables(tmp_path):
    return Tables(Lake.open(tmp_path / "lake"))


def listed(*names: str, etag: str = "1") -> list[LogObject]:
    return [LogObject("g", f"s3://logs/{name}", 10, etag, NOW) for name in names]


def test_new_and_changed_objects_are_told_from_known_ones_across_pages(tables, monkeypatch):
    monkeypatch.setattr(module, "LISTED_TOGETHER", 2)
    with Ledger.open(tables, "w") as ledger:
        assert ledger.notice("g", listed("a", "b", "c", "d", "e")) == (5, 5)
        [portion] = ledger.portions(["g"])
        ledger.put(replace(entry, state="read", rows=3, days=(date(2026, 6, 1),)) for entry in portion)
        ledger.save(tables)
    with Ledger.open(tables, "w") as ledger:
        assert ledger.notice("g", [*listed("a", "b"), *listed("c", etag="2"), *listed("d", "e", "f")]) == (6, 2)
        assert [(entry.uri[-1], entry.etag, entry.rows) for entry in next(ledger.portions(["g"]))] == [("c", "2", None), ("f", "1", None)]
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
        found = [{"Key": f"logs/2026/06/{number // 4000 + 1:02}/{number:07}.json", "Size": 3000, "ETag": f'"{number:032x}"',
                  "LastModified": NOW + timedelta(seconds=number)} for number in range(first, min(first + MaxKeys, KEYS))]
        more = first + MaxKeys < KEYS
        return {"Contents": found, "IsTruncated": more, **({"NextContinuationToken": str(first + MaxKeys)} if more else {})}

    monkeypatch.setattr(s3, "_answer", answer)
    return asked


def test_a_prefix_of_100_000_keys_takes_bounded_memory(tables, wide_prefix):
    source = {"g": SourceSettings(uri="s3://wide/logs")}
    tracemalloc.start()
    before = psutil.Process().memory_info().rss
    with Ledger.open(tables, "w") as ledger:
        assert ledger.notice("g", objects_after("g", source["g"])) == (KEYS, KEYS) and len(wide_prefix) == 100
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        ledger.save(tables)
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
        kept = [replace(entry, days=(date(2026, 6, 1), date(2026, 6, 2)), rows=7, format="litellm", state="read") for entry in entries]
        ledger.put(kept)
        ledger.save(tables)
    with Ledger.open(tables, "w") as ledger:
        assert list(ledger.entries()) == kept and kept[0].modified == NOW
