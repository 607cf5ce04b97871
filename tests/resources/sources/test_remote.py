"""Logs on web servers and other filesystems: read where they lie, and what goes wrong is a sentence, never a secret."""

import json
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from resources.lake.lake import LakeLayout
from resources.lake.sql_files import attach_slice, workbench
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources import listing as remote
from resources.sources.sources import SourceError, SourceSettings, absolute_uri, is_local, list_objects, local_path, plain_path

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
