"""The ledger at any size: listings are compared in pages, entries come in portions, what vanished unread is forgotten."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from pipelines.contract.recipe import load_recipe
from resources.curating.cleaning import clean, stale_days
from resources.curating.curation import CurationSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.reading.ingestion import ingest, observe
from resources.sources import ledger as module
from resources.sources import ledger as moved_module
from resources.sources.ledger import Ledger
from resources.sources.sources import LogObject, SourceError, SourceSettings, objects_after
from resources.sources.unread_objects import new_objects
from stores import s3
from tests.thorough_cases import thorough_except

NOW = datetime(2026, 6, 1, tzinfo=UTC)


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
    path.write_text(
        json.dumps(
            {
                "timestamp": 1780300000,
                "request": {"messages": [{"role": "user", "content": "q"}]},
                "response": {"id": "1", "choices": [{"message": {"role": "assistant", "content": "a"}}]},
            }
        )
    )
    for name in ("before", "after", "after"):
        ingest(tables, "w", {name: SourceSettings(uri=str(path))})
    assert [row["source"] for row in tables.open("interactions").to_pyarrow_table().to_pylist()] == ["after"]
    with Ledger.open(tables, "w") as ledger:
        assert [(entry.source, entry.state) for entry in ledger.entries()] == [("after", "read")]


def test_a_lake_of_before_a_column_was_added_gets_it(tables, monkeypatch):
    whole = SCHEMAS["objects"]
    monkeypatch.setitem(SCHEMAS, "objects", whole.remove(whole.get_field_index("format")))
    tables.append(
        "objects",
        pa.table(
            {name: pa.nulls(1, whole.field(name).type) for name in whole.names if name != "format"}
            | {
                "workload": ["w"],
                "source": ["g"],
                "uri": ["s3://logs/a"],
                "etag": ["1"],
                "bytes": pa.array([10], pa.int64()),
                "state": ["read"],
            }
        ),
    )
    monkeypatch.setitem(SCHEMAS, "objects", whole)
    with Ledger.open(tables, "w") as ledger:
        assert ledger.notice("g", listed("b"))[0] == 1
        ledger.save()
    found = tables.open("objects").to_pyarrow_table()
    assert set(found.schema.names) == set(whole.names) and sorted(found["format"].to_pylist()) == ["", ""]


READ_AS = SourceSettings(uri="s3://old").read_as
NAMES = ("interactions", "feedback", "quarantine", "decisions", "objects")


def pair(identity, ts=1780300000):
    return {
        "timestamp": ts,
        "request": {"messages": [{"role": "user", "content": f"hello {identity}"}]},
        "response": {"id": identity, "choices": [{"message": {"role": "assistant", "content": f"re: {identity}"}}]},
    }


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def product(home: Path, uri: str = "traffic") -> Path:
    """A recipe with its traffic: two days, a copy, a bad line, a picture and a thumb."""
    write(home / "traffic/dt=2026-06-01/part-0.jsonl", pair("a"), pair("b"), pair("a"))
    write(home / "traffic/dt=2026-06-02/part-0.jsonl", pair("c"), pair("a"))
    (home / "traffic/dt=2026-06-02/bad.jsonl").write_text('{"no json\n' + json.dumps(pair("d")) + "\n")
    (home / "traffic/dt=2026-06-02/picture.bin").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    write(home / "traffic/thumbs.jsonl", {"response_id": "b", "value": "up", "timestamp": 1780300000})
    return recipe(home / "w.yaml", uri)


def recipe(path: Path, uri: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"workload: w\nbase_model: tiny\nsources:\n  gateway: {{uri: {json.dumps(uri)}}}\n")
    return path


def read(tables: Tables, place: Path):
    return ingest(tables, "w", load_recipe(place).sources)


def content(tables: Tables):
    found = {}
    for name in NAMES:
        rows = tables.open(name).to_pyarrow_table().to_pylist()
        found[name] = sorted(
            json.dumps({key: value for key, value in row.items() if key not in ("etag", "modified")}, default=str)
            for row in rows
        )
    return found


def copied(old: Path, new: Path) -> None:
    """A copy that keeps no times, as `cp -r` and `git clone` make, and the original is gone."""
    shutil.copytree(old, new, copy_function=shutil.copyfile)
    for path in new.rglob("*"):
        os.utime(path, (1790000000, 1790000000))
    shutil.rmtree(old)


@pytest.mark.parametrize("move", thorough_except([shutil.move], [shutil.move, copied]))
def test_recipe_and_traffic_moved_together_are_read_once(tables, tmp_path, move):
    first = read(tables, product(tmp_path / "here"))
    assert first.total.rows == 4 and first.total.repeated == 2 and first.total.quarantined == 2
    move(tmp_path / "here", tmp_path / "backup-2026-07-09/there")
    place = tmp_path / "backup-2026-07-09/there/w.yaml"
    again = read(tables, place)
    assert again.total.read == 0 and again.moved_objects == 5
    other = Tables(LakeLayout.open(tmp_path / "other"))
    read(other, place)
    ours, fresh = content(tables), content(other)
    named = [name for name in NAMES if name != "objects"]  # thumbs.jsonl has no day in its own name; its row has a time
    assert {name: ours[name] for name in named} == {name: fresh[name] for name in named}
    assert str(tmp_path / "here") not in str(ours)
    assert read(tables, place).moved_objects == 0 and observe(tables, "w", load_recipe(place).sources).unread_objects == 0


def test_decisions_of_other_stages_stay_as_they_are_when_objects_move(tables, tmp_path):
    """Their details are words, not JSON: `length`, `looks like a refusal`."""
    place = product(tmp_path / "here")
    cut = pair("e")
    cut["response"]["choices"][0]["finish_reason"] = "length"
    write(tmp_path / "here/traffic/dt=2026-06-02/cut.jsonl", cut)
    read(tables, place)
    clean(tables, "w", stale_days(tables, "w"), CurationSettings())
    before = [row for row in tables.open("decisions").to_pyarrow_table().to_pylist() if row["stage"] == "clean"]
    assert "length" in {row["detail"] for row in before}
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert read(tables, tmp_path / "there/w.yaml").moved_objects == 6
    rows = tables.open("decisions").to_pyarrow_table().to_pylist()
    assert sorted(map(str, before)) == sorted(str(row) for row in rows if row["stage"] == "clean")
    assert str(tmp_path / "here") not in str(rows)


SPELLINGS = ["../here/traffic", "{}/here/./traffic//", "{}/link/traffic", "file://{}/here/traffic",
    "file://localhost{}/here/%74raffic", "{}/here/../link/traffic/", "{}/he[r]e/traffic/"]  # fmt: skip


@pytest.mark.parametrize("spelled", thorough_except(SPELLINGS[-2:], SPELLINGS))
def test_another_spelling_of_a_source_is_the_same_source(tables, tmp_path, spelled):
    read(tables, product(tmp_path / "here"))
    (tmp_path / "link").symlink_to("here")
    before = content(tables)
    again = read(tables, recipe(tmp_path / "recipes/w.yaml", spelled.format(tmp_path)))
    assert again.total.read == 0 and again.moved_objects == 0 and content(tables) == before


def test_a_lake_of_before_with_detours_in_its_uris_and_no_digests_is_not_read_again(tables, tmp_path):
    place = product(tmp_path / "here")
    read(tables, place)
    whole = content(tables)
    detour = f"{tmp_path}/recipes/../here/traffic/"
    for name in NAMES:
        rows = tables.open(name).to_pyarrow_table()
        text = [
            json.loads(json.dumps(row, default=str).replace(f"{tmp_path}/here/traffic/", detour)) for row in rows.to_pylist()
        ]
        for column in ("source_uri", "uri", "detail"):
            if column in rows.column_names:
                index = rows.column_names.index(column)
                rows = rows.set_column(index, column, pa.array([row[column] for row in text], pa.string()))
        if name == "objects":
            rows = rows.set_column(
                rows.column_names.index("content_sha256"), "content_sha256", pa.nulls(len(rows), pa.string())
            )
        tables.replace(name, rows, workload="w")
    again = read(tables, place)
    assert again.total.read == 0 and again.moved_objects == 5
    ours = content(tables)
    assert [ours[name] for name in NAMES[:4]] == [whole[name] for name in NAMES[:4]]


def test_a_copy_beside_its_original_is_read_and_its_records_are_repeated(tables, tmp_path):
    place = product(tmp_path / "here")
    read(tables, place)
    shutil.copytree(tmp_path / "here/traffic/dt=2026-06-01", tmp_path / "here/traffic/copy")
    again = read(tables, place)
    assert again.moved_objects == 0 and again.total.objects == 1
    assert len(tables.open("interactions").to_pyarrow_table()) == 4
    assert len(tables.open("decisions").to_pyarrow_table()) == 2 + 3


def test_another_content_of_the_same_name_and_size_is_no_move(tables, tmp_path):
    for number, day in enumerate((1, 2)):
        path = tmp_path / f"logs/dt=2026-06-0{day}/part-0.jsonl"
        write(path, pair("ab"[number]))
        os.utime(path, (1790000000, 1790000000))  # as archives that can be built again have it
    sources = {day: {"g": SourceSettings(uri=f"{tmp_path}/logs/dt=2026-06-0{day}")} for day in (1, 2)}
    ingest(tables, "w", sources[1])
    second = ingest(tables, "w", sources[2])
    assert second.moved_objects == 0 and second.total.rows == 1


def test_a_renamed_object_is_known_by_its_content_and_a_changed_one_is_read(tables, tmp_path):
    place = product(tmp_path / "here")
    read(tables, place)
    day = tmp_path / "here/traffic/dt=2026-06-01"
    (day / "part-0.jsonl").rename(day / "gateway e\u0301.jsonl")
    write(tmp_path / "here/traffic/dt=2026-06-02/part-1.jsonl", pair("e"))
    again = read(tables, place)
    assert again.moved_objects == 1 and again.total.read == 1 and again.total.rows == 1
    rows = tables.open("interactions").to_pyarrow_table().to_pylist()
    assert {Path(row["source_uri"]).name for row in rows if row["request_id"] in "ab"} == {"gateway e\u0301.jsonl"}


def test_a_moved_object_under_other_settings_is_read_again_in_place_of_its_rows(tables, tmp_path):
    place = product(tmp_path / "here")
    read(tables, place)
    shutil.move(tmp_path / "here/traffic", tmp_path / "there")
    again = ingest(tables, "w", {"gateway": SourceSettings(uri=str(tmp_path / "there"), workloads={"x": "w"})})
    assert again.moved_objects == 5 and again.total.rows == 4 and again.total.repeated == 2
    assert len(tables.open("interactions").to_pyarrow_table()) == 4 and len(tables.open("decisions").to_pyarrow_table()) == 2


@pytest.mark.slow
def test_a_run_killed_while_rows_are_renamed_ends_the_same(tables, tmp_path, monkeypatch):
    read(tables, product(tmp_path / "here"))
    shutil.move(tmp_path / "here", tmp_path / "there")
    done, whole = [], Tables.replace

    def struck(self, name, rows, **where):
        whole(self, name, rows, **where)
        done.append(name)
        raise KeyboardInterrupt

    for _ in range(4):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Tables, "replace", struck)
            read(tables, tmp_path / "there/w.yaml")
    assert done == ["decisions", "quarantine", "feedback", "interactions"]
    again = read(tables, tmp_path / "there/w.yaml")
    assert again.moved_objects == 5 and again.total.read == 0 and f"{tmp_path}/here" not in str(content(tables))


def test_many_moved_objects_take_a_look_and_no_reading(tables, monkeypatch):
    from resources.sources.sources import LogObject

    monkeypatch.setattr(moved_module, "prefetch", lambda items: (_ for item in items for _ in (1 / 0,)))

    def listing(bucket):
        return (
            LogObject(
                "g", f"s3://{bucket}/{number // 100}/part-{number % 100}.gz", 0 if number % 2 else number, f"{number}", NOW
            )
            for number in range(3_000)
        )

    with Ledger.open(tables, "w") as ledger:
        ledger.notice("g", listing("old"), READ_AS)
        for portion in ledger.portions(["g"]):
            ledger.put(
                replace(entry, state="read", read_as=READ_AS, rows=2, content_sha256=entry.etag * 8) for entry in portion
            )
        ledger.notice("g", listing("new"), READ_AS)
        moved, _ = ledger.follow_moved("g", READ_AS)
        assert len(moved) == 3_000
        assert [
            pair
            for pair in moved.to_pylist()
            if pair["old_uri"].removeprefix("s3://old") != pair["uri"].removeprefix("s3://new")
        ] == []
        assert {entry.state for entry in ledger.entries()} == {"read"} and ledger.unread()[0] == 0
