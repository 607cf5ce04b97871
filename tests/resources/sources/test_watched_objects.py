"""A sensor's look at the logs: it finds what is new at the end at once, everything else in pages, and nothing that was read."""

import json
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from resources.lake.lake import LakeLayout
from resources.lake.sql_files import attach_slice, workbench
from resources.lake.tables import Tables, slice_stamp
from resources.reading.ingestion import ingest
from resources.sources import listing as remote
from resources.sources import unread_objects as watched
from resources.sources.ledger import Ledger
from resources.sources.sources import SourceError, SourceSettings, absolute_uri, is_local, list_objects, local_path, plain_path
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
    record = {
        "timestamp": f"{yesterday}T23:59:00Z",
        "request_id": "r1",
        "request": {"messages": [{"role": "user", "content": "hi"}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": "ho"}, "finish_reason": "stop"}]},
    }
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


PAIR = {
    "timestamp": 1780300000, "workload_id": "w", "client_id": "c",
    "request": {"model": "m", "messages": [{"role": "user", "content": "hello"}]},
    "response": {"id": "r1", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}]},
}  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if "forbidden" in self.path:
            self.send_error(403)
        else:
            super().do_GET()

    do_HEAD = do_GET


@pytest.fixture
def web(tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.jsonl").write_text(json.dumps(PAIR) + "\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def objects(tables):
    with workbench() as connection:
        attach_slice(connection, tables, "objects", "w")
        return connection.table("objects").to_arrow_table().to_pylist()


def test_a_file_on_a_web_server_is_read_and_one_that_is_not_there_is_told_from_a_refusal(web, tmp_path):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    assert ingest(tables, "w", {"g": SourceSettings(uri=f"{web}/a.jsonl")}).total.rows == 1
    with pytest.raises(SourceError, match="no log objects under"):
        list_objects("g", SourceSettings(uri=f"{web}/missing.jsonl"))
    with pytest.raises(SourceError, match=r"cannot be listed: the server refused \(403\)"):
        list_objects("g", SourceSettings(uri=f"{web}/forbidden.jsonl"))


def test_a_server_that_refuses_or_says_nothing_is_said_in_time(monkeypatch):
    monkeypatch.setattr(remote, "READ_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SourceError, match="the server does not answer"):
            list_objects("g", SourceSettings(uri=f"http://127.0.0.1:{port}/a.jsonl"))
    with pytest.raises(SourceError, match="cannot be listed: it cannot be had"):
        list_objects("g", SourceSettings(uri=f"http://127.0.0.1:{port}/a.jsonl"))


def test_an_error_of_a_librarys_own_while_reading_fails_the_object_and_not_the_run(tmp_path, monkeypatch):
    class OwnError(Exception):
        status = 503

    memory = fsspec.filesystem("memory")
    memory.pipe({"/own-errors/a.jsonl": json.dumps(PAIR).encode(), "/own-errors/b.jsonl": b"{}"})
    whole = type(memory)._open

    def breaking(self, path, *words, **more):
        if path.endswith("b.jsonl"):
            raise OwnError("https://host/b.jsonl?sig=hunter2")
        return whole(self, path, *words, **more)

    monkeypatch.setattr(type(memory), "_open", breaking)
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    report = ingest(tables, "w", {"g": SourceSettings(uri="memory://own-errors")})
    assert report.total.rows == 1
    assert [(row["state"], row["problem"]) for row in objects(tables)] == [("read", ""), ("failed", "the server refused (503)")]
    monkeypatch.undo()
    ingest(tables, "w", {"g": SourceSettings(uri="memory://own-errors")})
    assert [(row["state"], row["problem"]) for row in objects(tables)] == [("read", ""), ("read", "")]
    memory.rm("/own-errors", recursive=True)


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "logs/a b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for name in ("logs/a b/x.jsonl", "logs/100%25.jsonl", "logs/e\u0301.jsonl", "logs/[1].jsonl", "other/y.jsonl"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "link").symlink_to("logs")
    (tmp_path / "other/deep").symlink_to(tmp_path / "logs/a b")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("uri, meant", [
    ("logs", "logs"), ("./logs/", "logs"), ("other/../logs//a b", "logs/a b"), ("~/logs", "logs"),
    ("~nobody-here/x", "~nobody-here/x"), ("link/a b", "logs/a b"), ("other/deep/../[1].jsonl", "logs/[1].jsonl"),
    ("file://{}/logs/a%20b", "logs/a b"), ("file:{}/logs", "logs"), ("FILE://localhost{}/logs", "logs"),
    ("file://{}/logs/a b", "logs/a b"), ("file://./logs", "logs"), ("file://{}/logs/100%25.jsonl", "logs/100%25.jsonl"),
    ("file://{}/logs/100%2525.jsonl", "logs/100%25.jsonl"), ("logs/100%25.jsonl", "logs/100%25.jsonl"),
    ("logs/\u00e9.jsonl", "logs/e\u0301.jsonl"), ("link/*/x.jsonl", "logs/*/x.jsonl"),
    ("other/../link/**/*.jsonl", "logs/**/*.jsonl"), ("link/[1].jsonl", "logs/[1].jsonl"), ("missing/../gone", "gone"),
])  # fmt: skip
def test_every_spelling_is_one_place(home, uri, meant):
    assert local_path(uri.format(home)) == str(home / meant)
    assert absolute_uri(absolute_uri(uri.format(home))) == str(home / meant)


def test_relative_paths_are_those_of_the_recipes_folder(home):
    assert absolute_uri("../logs", home / "other") == absolute_uri("file://../logs", home / "other") == str(home / "logs")
    assert plain_path("link/../link/./x") == str(home / "link/x")


@pytest.mark.parametrize("uri, listed", [
    ("s3a://logs/x/", "s3://logs/x/"), ("S3://Logs//x/../%20é", "s3://Logs//x/../%20é"),
    ("https://host/a%20b", "https://host/a%20b"), ("simplecache::s3://logs/x", "simplecache::s3://logs/x"),
])  # fmt: skip
def test_remote_uris_keep_their_keys(uri, listed):
    assert local_path(uri) is None and not is_local(uri) and absolute_uri(uri, Path("/srv")) == listed


def test_a_listing_has_the_names_below_the_source_as_they_are(home):
    listed = [item.uri for item in list_objects("g", SourceSettings(uri="link/../other/"))]
    assert listed == [f"{home}/other/deep/x.jsonl", f"{home}/other/y.jsonl"]
    assert [item.uri for item in list_objects("g", SourceSettings(uri="other/../logs/[[]1].jsonl"))] == [
        f"{home}/logs/[1].jsonl"
    ]
    with pytest.raises(SourceError, match=f"there is no file or directory {home}/gone"):
        list_objects("g", SourceSettings(uri="other/../gone"))
    assert local_path("x\0y").startswith("/")
