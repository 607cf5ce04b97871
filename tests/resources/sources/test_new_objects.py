"""Pages of new log objects: every object is seen once a round, in pages of any size; what was read is not new."""

from dataclasses import replace

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.sources.ledger import Ledger
from resources.sources.sources import SourceError, SourceSettings, list_objects
from resources.sources.unread_objects import new_objects

KEYS = ["a/x.jsonl", "a.jsonl", "a/dt=2026-06-01/p.jsonl", "a/dt=2026-06-02/q.jsonl", "b-c/r.jsonl", "b/s.jsonl", "z.jsonl"]


@pytest.fixture
def tables(tmp_path):
    return Tables(LakeLayout.open(tmp_path / "lake"))


@pytest.fixture(params=["local", "memory"])
def source(request, tmp_path):
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
def test_pages_of_any_size_see_every_object_once(tables, source, limit):
    cursor, seen, ticks = {}, 0, 0
    while True:
        found = new_objects(tables, "tutor", {"gateway": source}, cursor, limit)
        seen += found.objects
        ticks += 1
        cursor = found.cursor
        if not cursor:
            break
        assert ticks < 20
    assert seen == len(KEYS)


def test_what_was_read_is_not_new_and_what_was_only_seen_still_is(tables, source):
    with Ledger.open(tables, "tutor") as ledger:
        assert ledger.notice("gateway", list_objects("gateway", source)) == (len(KEYS), len(KEYS))
        ledger.save()
        assert new_objects(tables, "tutor", {"gateway": source}, {}, 100).objects == len(KEYS)
        [seen] = ledger.portions(["gateway"])
        ledger.put(replace(entry, state="read", read_as=source.read_as) for entry in seen)
        ledger.save()
    assert new_objects(tables, "tutor", {"gateway": source}, {}, 100).objects == 0


def test_days_come_from_the_keys_and_the_digest_from_the_objects(tables, source):
    first = new_objects(tables, "tutor", {"gateway": source}, {}, 100)
    again = new_objects(tables, "tutor", {"gateway": source}, {}, 100)
    assert first.digest == again.digest
    assert {day.isoformat() for day in first.days} >= {"2026-06-01", "2026-06-02"}


def test_an_empty_prefix_has_nothing_new_and_an_unknown_protocol_is_said(tables, tmp_path):
    (tmp_path / "empty").mkdir()
    assert new_objects(tables, "tutor", {"a": SourceSettings(uri=str(tmp_path / "empty"))}, {}, 9).objects == 0
    with pytest.raises(SourceError, match="cannot be listed"):
        new_objects(tables, "tutor", {"a": SourceSettings(uri="nosuch://bucket/x")}, {}, 9)
