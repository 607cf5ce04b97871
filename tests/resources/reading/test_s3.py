"""Sources on S3, against a local server: keys in order, content as it was listed, errors in one sentence, no secrets."""

import gzip
import json
import socket
import threading
from datetime import date

import pytest

from benchmarks.s3_server import KEY, SECRET, s3_server
from resources.lake.sql_files import attach_slice, workbench
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest, observe
from resources.sources import ledger as prefetch
from resources.sources.sources import SourceError, SourceSettings, list_objects, objects_after, open_object
from resources.sources.unread_objects import new_objects
from stores import s3

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("s3")]

pytest.importorskip("moto", reason="moto is not installed: no local S3 server")


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def bucket(server, monkeypatch, request):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    name = f"b{abs(hash(request.node.name))}"
    server.bucket(name)
    return name


def record(number: int, answer: str = "fine", day: str = "2026-06-01") -> bytes:
    return (
        json.dumps(
            {
                "timestamp": f"{day}T10:00:00Z",
                "client_id": "c",
                "workload_id": "w",
                "request": {"model": "m", "messages": [{"role": "user", "content": f"question {number}"}]},
                "response": {
                    "id": f"chatcmpl-{number}",
                    "model": "m",
                    "choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}],
                },
            }
        ).encode()
        + b"\n"
    )


def rows_of(tables: Tables, name: str = "interactions") -> list[dict]:
    with workbench() as connection:
        attach_slice(connection, tables, name, "w")
        return connection.table(name).to_arrow_table().to_pylist()


KEYS = ["a/x.jsonl", "a.jsonl", "a/dt=2026-06-01/p.jsonl", "a/dt=2026-06-02/q r+ü%41?.jsonl", "b-c/r.jsonl", "b/s.jsonl"]


def test_keys_come_in_order_pages_and_from_any_place_on(server, bucket, monkeypatch):
    for key in [*KEYS, "a/.hidden.jsonl", "a/_temporary/part.jsonl", "b/part.tmp", "folder/"]:
        server.put(bucket, f"logs/{key}", b"{}\n")
    server.put(bucket, "logs-of-others/z.jsonl", b"{}\n")
    monkeypatch.setattr(s3, "PAGE_KEYS", 2)
    source = SourceSettings(uri=f"s3://{bucket}/logs")
    uris = [item.uri for item in objects_after("g", source)]
    assert uris == sorted(f"s3://{bucket}/logs/{key}" for key in KEYS)
    for place in range(len(uris)):
        assert [item.uri for item in objects_after("g", source, after=uris[place])] == uris[place + 1 :]
    with open_object(list_objects("g", SourceSettings(uri=uris[2]))[0]) as file:
        assert file.read() == b"{}\n"


def test_globs_and_single_objects_mean_what_they_mean_for_local_files(server, bucket, tmp_path):
    for key in KEYS:
        server.put(bucket, key, b"{}\n")
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"{}\n")
    for pattern in ["a/*.jsonl", "*/*.jsonl", "a*", "**/*.jsonl", "a/dt=2026-06-0[12]", "b?c/r.jsonl", "a.jsonl", "a", "a/"]:
        remote = [
            item.uri.removeprefix(f"s3://{bucket}/")
            for item in list_objects("g", SourceSettings(uri=f"s3://{bucket}/{pattern}"))
        ]
        local = [
            item.uri.removeprefix(f"{tmp_path}/") for item in list_objects("g", SourceSettings(uri=f"{tmp_path}/{pattern}"))
        ]
        if pattern == "a":  # the object a, were there one, and those under a/; a.jsonl is neither
            assert "a.jsonl" not in remote
        assert remote == local, pattern


def test_content_is_that_of_the_listed_version_or_an_error(server, bucket):
    server.put(bucket, "one.jsonl", b"old")
    (item,) = list_objects("g", SourceSettings(uri=f"s3://{bucket}/one.jsonl"))
    server.put(bucket, "one.jsonl", b"new")
    with pytest.raises(OSError, match="changed after it was listed"), open_object(item) as file:
        file.read()
    ((_, opened),) = prefetch.prefetch([item])
    with pytest.raises(OSError, match="changed after it was listed"):
        opened()


def test_large_objects_are_read_in_ranges_of_one_version(server, bucket, monkeypatch):
    monkeypatch.setattr(s3, "RANGE_BYTES", 1000)
    content = bytes(range(256)) * 41
    server.put(bucket, "big", content)
    (item,) = list_objects("g", SourceSettings(uri=f"s3://{bucket}/big"))
    with open_object(item) as file:
        assert file.read(100) == content[:100] and file.read() == content[100:]
    with open_object(item) as file:
        file.read(10)
        server.put(bucket, "big", content[::-1])
        with pytest.raises(OSError, match="changed after it was listed"):
            file.read()


def test_a_changed_object_replaces_its_rows_and_rereading_or_vanishing_changes_nothing(server, bucket, tables):
    sources = {"g": SourceSettings(uri=f"s3://{bucket}/logs")}
    server.put(bucket, "logs/dt=2026-06-01/a.jsonl", record(1) + record(2))
    server.put(bucket, "logs/dt=2026-06-01/b.jsonl.gz", gzip.compress(record(3)))
    assert ingest(tables, "w", sources).total.rows == 3
    before = rows_of(tables)
    assert ingest(tables, "w", sources).total.read == 0 and rows_of(tables) == before

    server.put(bucket, "logs/dt=2026-06-01/a.jsonl", record(1, "better") + record(4, day="2026-06-03"))  # late lines
    server.delete(bucket, "logs/dt=2026-06-01/b.jsonl.gz")
    assert ingest(tables, "w", sources).total.rows == 2
    kept = {row["request_id"]: row for row in rows_of(tables)}
    assert kept.keys() == {"chatcmpl-1", "chatcmpl-3", "chatcmpl-4"}
    assert "better" in kept["chatcmpl-1"]["completion"] and kept["chatcmpl-4"]["dt"] == date(2026, 6, 3)
    states = {row["uri"].rpartition("/")[2]: (row["state"], row["rows"]) for row in rows_of(tables, "objects")}
    assert states == {"a.jsonl": ("read", 2), "b.jsonl.gz": ("read", 1)}


def test_an_object_that_changes_between_listing_and_reading_is_read_next_time(server, bucket, tables, monkeypatch):
    import resources.reading.ingestion as module

    server.put(bucket, "logs/a.jsonl", record(1))
    server.put(bucket, "logs/b.jsonl", record(2))
    sources = {"g": SourceSettings(uri=f"s3://{bucket}/logs")}
    whole = module.Staging.batches

    def meanwhile(stage, entries):
        server.put(bucket, "logs/a.jsonl", record(1, "changed") + record(5))
        return whole(stage, entries)

    monkeypatch.setattr(module.Staging, "batches", meanwhile)
    first = ingest(tables, "w", sources)
    assert first.total.rows == 1 and first.failed_objects == [f"s3://{bucket}/logs/a.jsonl"]
    (failure,) = map(str, first.failures.values())
    assert failure == f"s3://{bucket}/logs/a.jsonl: {rows_of(tables, 'objects')[0]['problem']}"
    assert "the object changed after it was listed" in failure
    monkeypatch.setattr(module.Staging, "batches", whole)
    assert ingest(tables, "w", sources).total.rows == 2
    etags = {row["uri"]: row["etag"] for row in rows_of(tables, "objects") if not row["problem"]}
    assert etags == {item.uri: item.etag for item in objects_after("g", sources["g"])}


def test_a_bucket_that_is_missing_or_shut_and_missing_settings_are_said_in_one_sentence(server, bucket, monkeypatch):
    with pytest.raises(SourceError, match="there is no bucket nowhere-at-all") as missing:
        list_objects("g", SourceSettings(uri="s3://nowhere-at-all/x"))
    assert "127.0.0.1" in str(missing.value) and "\n" not in str(missing.value)
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(SourceError, match="AWS settings cannot be used"):
        list_objects("g", SourceSettings(uri=f"s3://{bucket}/x"))


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch")]
)
def test_denied_access_names_what_to_check_and_no_secret(answering, monkeypatch, status, code):
    answering(
        status, f"<Error><Code>{code}</Code><Message>{KEY} may not</Message><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>"
    )
    with pytest.raises(SourceError, match=f"access denied .{code}.; check AWS_ACCESS_KEY_ID") as denied:
        list_objects("g", SourceSettings(uri="s3://private/x"))
    assert KEY not in str(denied.value) and SECRET not in str(denied.value)


def test_a_silent_endpoint_is_given_up_after_as_many_attempts_as_said(answering, monkeypatch):
    monkeypatch.setattr(s3, "READ_SECONDS", 0.2)
    s3._connected.cache_clear()
    held = answering(None, "")
    with pytest.raises(SourceError, match=r"does not answer \(ReadTimeoutError\)"):
        list_objects("g", SourceSettings(uri="s3://logs/x"))
    assert len(held) == s3.ATTEMPTS  # botocore's attempts, not ours on top of them
    s3._connected.cache_clear()


def test_a_body_that_breaks_off_is_asked_for_again(bucket, monkeypatch):
    class Body:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            return None

        async def read(self):
            asked.append(1)
            if len(asked) < s3.ATTEMPTS or broken:
                raise ConnectionResetError
            return b"whole"

    async def call(operation, **words):
        return {"Body": Body()}

    asked, broken = [], False
    monkeypatch.setattr(s3._filesystem(), "_call_s3", call, raising=False)
    assert s3.start_fetch("s3://b/x", "e").result(20) == b"whole" and len(asked) == s3.ATTEMPTS
    asked, broken = [], True
    with pytest.raises(s3.UnreachableError, match=r"s3://b/x: .* breaks off \(ConnectionResetError\)"):
        s3.start_fetch("s3://b/x", "e").result(20)
    assert len(asked) == s3.ATTEMPTS


@pytest.mark.parametrize("endpoint", ["localhost:9000", "me:hunter2@storage", "ftp://storage"])
def test_an_endpoint_that_is_no_url_and_a_uri_without_a_bucket_are_said(monkeypatch, bucket, endpoint):
    with pytest.raises(SourceError, match="names no bucket"):
        list_objects("g", SourceSettings(uri="s3://"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(SourceError, match="AWS_ENDPOINT_URL is no URL such as") as refused:
        list_objects("g", SourceSettings(uri="s3://logs/x"))
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def answering(monkeypatch):
    """An endpoint that gives one answer to everything, or none at all."""
    listener = socket.create_server(("127.0.0.1", 0))

    held: list[socket.socket] = []

    def start(status: int | None, body: str) -> list[socket.socket]:
        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                held.append(connection)
                if status is not None:
                    connection.recv(65536)
                    connection.sendall(
                        f"HTTP/1.1 {status} X\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
                        f"Connection: close\r\n\r\n{body}".encode()
                    )

        threading.Thread(target=serve, daemon=True).start()
        return held

    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for name, value in {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    yield start
    listener.close()


def test_without_keys_requests_are_unsigned(server, bucket, monkeypatch, tmp_path):
    server.put(bucket, "x.jsonl", b"{}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert len(list_objects("g", SourceSettings(uri=f"s3://{bucket}/x.jsonl"))) == 1 and s3._filesystem().anon


def test_a_profile_brings_its_keys_and_endpoint(server, bucket, monkeypatch, tmp_path):
    server.put(bucket, "x.jsonl", b"{}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        f"[profile mill]\nregion = us-east-1\nendpoint_url = {server.endpoint}\n"
        f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mill")
    assert len(list_objects("g", SourceSettings(uri=f"s3://{bucket}/x.jsonl"))) == 1 and not s3._filesystem().anon


@pytest.mark.parametrize("uri", [
    "s3://me:hunter2@bucket/logs", "https://host/x.jsonl?X-Amz-Signature=hunter2", "https://host/x?sv=1&sig=hunter2",
    "s3://bucket/x?AWSAccessKeyId=hunter2", "https://host/x?a=1;token=hunter2",
])  # fmt: skip
def test_a_uri_with_credentials_is_refused_and_not_shown(uri, tmp_path):
    from pipelines.contract.recipe import load_recipe
    from pipelines.contract.text import RecipeProblemsError

    with pytest.raises(ValueError, match="carries credentials") as refused:
        SourceSettings(uri=uri)
    assert "hunter2" not in str(refused.value)
    (tmp_path / "r.yaml").write_text(json.dumps({"workload": "w", "base_model": "tiny", "sources": {"g": {"uri": uri}}}))
    with pytest.raises(RecipeProblemsError, match=r"sources.g.uri: the uri carries credentials") as refused:
        load_recipe(tmp_path / "r.yaml")
    assert "hunter2" not in str(refused.value)
    (tmp_path / "r.yaml").write_text(
        json.dumps({"workload": "w", "base_model": "tiny", "sources": {"g": {"uri": "logs"}}, "evals": {"suite": {"uri": uri}}})
    )
    with pytest.raises(RecipeProblemsError, match=r"evals.suite.uri: the uri carries credentials") as refused:
        load_recipe(tmp_path / "r.yaml")
    assert "hunter2" not in str(refused.value)


def test_nothing_that_a_run_writes_holds_a_secret(server, bucket, tables, caplog, capfd):
    server.put(bucket, "logs/a.jsonl", record(1))
    server.put(bucket, "logs/b.jsonl", b"\x00\xff junk")
    caplog.set_level("INFO")
    sources = {"g": SourceSettings(uri=f"s3://{bucket}/logs")}
    observe(tables, "w", sources)
    ingest(tables, "w", sources)
    from resources.catalog.build import rebuild

    rebuild(tables.lake)
    written = [file.read_bytes() for file in tables.lake.root.rglob("*") if file.is_file()]
    assert len(written) > 5
    # Parquet pages are compressed: their rows are looked at as text
    written += [str(rows_of(tables, name)).encode() for name in ("objects", "interactions", "quarantine")]
    shown = capfd.readouterr()
    written += [caplog.text.encode(), shown.out.encode(), shown.err.encode()]
    assert not any(secret.encode() in content for content in written for secret in (KEY, SECRET))


def test_an_endpoint_that_stops_answering_half_way_costs_the_rest_only_and_not_its_time(server, bucket, tables, monkeypatch):
    for number in range(30):
        server.put(bucket, f"logs/{number:02}.jsonl", record(number))
    sources = {"g": SourceSettings(uri=f"s3://{bucket}/logs")}
    content, asked = s3._content, []

    async def silent(filesystem, uri, etag, span):
        asked.append(uri)
        if uri[-8:-6] in ("03", *map(str, range(10, 30))):
            raise s3.UnreachableError(f"{uri}: the endpoint does not answer")
        return await content(filesystem, uri, etag, span)

    monkeypatch.setattr(s3, "_content", silent)
    monkeypatch.setattr(prefetch, "AT_ONCE", 4)
    report = ingest(tables, "w", sources)
    assert report.total.rows == 9 and len(report.failed_objects) == 21
    assert len(asked) < 25  # ten to seventeen did not answer: those after them were left alone
    monkeypatch.setattr(s3, "_content", content)
    assert ingest(tables, "w", sources).total.rows == 21 and len(rows_of(tables)) == 30


def test_bytes_in_flight_are_bounded_and_the_order_is_that_given(server, bucket, monkeypatch):
    for number in range(40):
        server.put(bucket, f"logs/{number:02}.jsonl", b"x" * 1000)
    items = list_objects("g", SourceSettings(uri=f"s3://{bucket}/logs"))
    started, most, whole = [], 0, s3.start_fetch
    monkeypatch.setattr(s3, "start_fetch", lambda uri, etag: (started.append(uri), whole(uri, etag))[1])
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", 5000)
    for done, (item, opened) in enumerate(prefetch.prefetch(reversed(items))):
        assert item is items[-1 - done]
        most = max(most, len(started) - done)
        with opened() as file:
            assert len(file.read()) == 1000
    assert done == 39 and most == 5


def test_pages_of_the_sensor_see_every_object_once(server, bucket, tables):
    for key in KEYS:
        server.put(bucket, f"logs/{key}", b"{}\n")
    cursor, seen = {}, 0
    for _ in range(10):
        found = new_objects(tables, "w", {"g": SourceSettings(uri=f"s3://{bucket}/logs")}, cursor, 2)
        seen, cursor = seen + found.objects, found.cursor
        if not cursor:
            break
    assert seen == len(KEYS) and not cursor
