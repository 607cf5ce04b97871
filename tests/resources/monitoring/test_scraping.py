"""Windows of a server's metrics: what each holds, restarts, servers that are away or are none, clocks, a lake that is away."""

import json
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler

import pyarrow as pa
import pytest

from benchmarks.small_release import small_release
from resources.catalog.build import publish
from resources.catalog.catalog import query
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.monitoring.metrics import scraper as kept_windows
from resources.monitoring.metrics.scraper import Scraper, scrape
from resources.monitoring.metrics.servers import quantile, reading_of, row_of, samples_of, since
from resources.monitoring.metrics.target import ScrapeError, Target
from tests.resources.monitoring.metrics_server import metrics_server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("scraping")]

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


class Clock:
    """A wall clock and a monotonic one, which `step` moves together."""

    def __init__(self, now=NOON):
        self.now, self.seconds = now, 100.0

    def step(self, seconds, reader=None):
        self.now, self.seconds = self.now + timedelta(seconds=seconds), self.seconds + seconds
        if reader is not None:
            reader.tick()


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def scraper(lake, clock, said, endpoint="http://gpu-1:8000"):
    return Scraper(lake, "tutor", endpoint, 60, said.append, lambda: clock.now, lambda: clock.seconds)


def windows(lake):
    table = Tables(lake).open("serving_metrics")
    rows = [] if table is None else table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["window_start"], row["window_end"]))


def test_a_window_has_what_happened_in_it(lake):
    clock, said = Clock(NOON + timedelta(seconds=20)), []
    with metrics_server() as (url, metrics, _), scraper(lake, clock, said) as reader:
        metrics.drafts, metrics.requests = 1_000, 50  # before it was read: of a smoke set
        reader.begins(url, "aaa")
        metrics.drafts, metrics.requests, metrics.length, metrics.failed = 1_400, 90, 4, 2
        clock.step(40, reader)
        clock.step(60, reader)
        metrics.drafts += 3
        clock.step(30)
    first, second, last = windows(lake)
    assert (first["window_start"], first["window_end"]) == (NOON + timedelta(seconds=20), NOON + timedelta(seconds=60))
    assert (second["window_start"], second["window_end"]) == (NOON + timedelta(minutes=1), NOON + timedelta(minutes=2))
    named = [first[name] for name in ("workload", "endpoint", "release", "server")]
    assert named == ["tutor", "http://gpu-1:8000", "aaa", "vllm"]
    assert (first["drafts"], first["draft_tokens"], first["accepted_tokens"]) == (400, 1_200, 800)
    assert first["accepted_per_position"] == [400, 200, 200]
    assert (first["requests"], first["errors"], first["refused"]) == (40, 2, 0)
    assert dict(first["finished"]) == {"stop": 36, "length": 4}
    assert (first["generation_tokens"], first["tokens_per_second"], first["seconds"], first["restarts"]) == (400, 10, 40, 0)
    assert (first["requests_running"], first["requests_waiting"]) == (3, 1)
    latency = dict(first["latency_ms"])
    assert latency["ttft_p50"] == pytest.approx(75) and latency["ttft_mean"] == pytest.approx(80) and "queue_p50" not in latency
    assert (second["drafts"], second["accepted_tokens"], second["latency_ms"]) == (0, 0, [])
    assert (last["drafts"], last["window_end"]) == (3, NOON + timedelta(seconds=150))  # read when the reader ends
    assert said == []


@pytest.mark.parametrize("seen", ["falls", "starts"])
def test_a_restart_is_counted_from_nothing_and_never_below_it(lake, seen):
    clock, said = Clock(), []
    with metrics_server() as (url, metrics, _), scraper(lake, clock, said) as reader:
        metrics.drafts = 1_000
        reader.begins(url, "aaa")
        metrics.drafts, metrics.began = (30, 1e9) if seen == "falls" else (5_000, 2e9)
        clock.step(60, reader)
    first, *_ = windows(lake)
    assert (first["drafts"], first["restarts"]) == (metrics.drafts, 1)


def test_a_server_that_is_away_loses_nothing_and_is_told_once(lake):
    clock, said = Clock(), []
    with metrics_server() as (url, metrics, _), scraper(lake, clock, said) as reader:
        reader.begins(url, "aaa")
        metrics.status, metrics.text = 503, "starting"
        for _ in range(3):
            metrics.drafts += 10
            clock.step(60, reader)
        metrics.status, metrics.text = 200, None
        metrics.drafts += 10
        clock.step(60, reader)
        [row] = windows(lake)
    assert (row["drafts"], row["window_start"], row["window_end"]) == (40, NOON, NOON + timedelta(minutes=4))
    assert said == [f"{url}/metrics answers with HTTP 503: what it counts meanwhile comes with the next window"]


def test_what_is_no_server_of_ours_is_said_in_one_sentence(tmp_path):
    with metrics_server() as (url, metrics, _):
        for status, text, match in (
            (200, "node_cpu_seconds_total 5\n", "no metrics of vLLM or SGLang: give the address"),
            (200, "<!doctype html>", "no metrics of vLLM"),
            (404, "x", "HTTP 404 .vLLM always has it"),
        ):
            metrics.status, metrics.text = status, text
            with pytest.raises(ScrapeError, match=match):
                Target(url).scrape()
    with pytest.raises(ScrapeError, match=r"does not answer \(no connection\)"):
        Target(url).scrape()
    for wrong in ("gpu-1:8000", "http://me:secret@gpu-1"):
        with pytest.raises(ScrapeError, match="--url: a server's address") as raised:
            Target(wrong)
        assert "secret" not in str(raised.value)


def test_a_server_that_hangs_or_drips_holds_nobody_up():
    def drip(connection):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        try:
            while True:
                connection.sendall(b"#")
                time.sleep(0.02)
        except OSError:
            return

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ScrapeError, match=r"does not answer within 0\.2 s"):
            Target(url, seconds=0.2).scrape()  # nobody accepts
        server.accept()[0].close()
        threading.Thread(target=lambda: drip(server.accept()[0]), daemon=True).start()
        with pytest.raises(ScrapeError, match=r"does not end within 0.2 s"):
            Target(url, seconds=0.2).scrape()


def test_clocks_that_disagree_are_told_once_and_nothing_is_lost(lake, monkeypatch):
    clock, said = Clock(), []
    later = lambda self: format_datetime(datetime.now(UTC) + timedelta(hours=2))  # noqa: E731
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", later)
    with metrics_server() as (url, metrics, _), scraper(lake, clock, said) as reader:
        reader.begins(url, "aaa")
        metrics.drafts += 5
        clock.step(60, reader)
        clock.now -= timedelta(hours=1)  # somebody set this machine's clock
        metrics.drafts += 7
        clock.step(60, reader)
        metrics.drafts += 1
        clock.step(60, reader)
        found = windows(lake)
    assert sorted(row["drafts"] for row in found) == [5, 8] and all(row["window_end"] > row["window_start"] for row in found)
    assert len(said) == 2 and "ahead of this machine's" in said[0] and "went back from 2026-06-01 12:01" in said[1]


def test_windows_wait_while_the_table_cannot_be_written_and_come_once(lake, monkeypatch):
    clock, said, real = Clock(), [], Tables.append

    def lost_reply(self, name, rows):
        real(self, name, rows)
        raise OSError(5, "reply lost")

    with metrics_server() as (url, metrics, _), scraper(lake, clock, said) as reader:
        reader.begins(url, "aaa")
        for broken in (lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")), lost_reply, real):
            monkeypatch.setattr(Tables, "append", broken)
            metrics.drafts += 1
            clock.step(60, reader)
        assert reader.waiting == 0
    assert [row["drafts"] for row in windows(lake)][:3] == [1, 1, 1] and sum(row["drafts"] for row in windows(lake)) == 3
    assert "No space left on device" in said[0] and said[1] == "serving_metrics is written again, and no window is missing"


def test_a_reader_that_is_started_again_goes_on_where_the_last_one_stopped(lake, monkeypatch):
    clock, said = Clock(), []
    with metrics_server() as (url, metrics, _):
        with scraper(lake, clock, said) as reader:
            reader.begins(url, "aaa", asks=True)
            monkeypatch.setattr(Tables, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
            metrics.drafts = 4
            clock.step(60, reader)
            reader._sources.clear()  # killed: nothing is read at its end
        monkeypatch.undo()
        metrics.drafts = 9
        clock.step(600)
        with scraper(lake, clock, said) as reader:
            with pytest.raises(ScrapeError, match="another process reads the metrics"), scraper(lake, clock, said):
                pass
            reader.begins(url, "aaa", asks=True)
            clock.step(60, reader)
            found = windows(lake)
    assert [(row["drafts"], row["seconds"]) for row in found] == [(4, 60), (5, 660)]
    assert dict(found[0]["finished"]) == {} and found[0]["latency_ms"] == []


def test_a_reader_that_is_stopped_goes_on_too_when_its_server_was_away_at_its_start(lake):
    clock, said = Clock(), []
    with metrics_server() as (url, metrics, _):
        with scraper(lake, clock, said) as reader:
            reader.begins(url, "aaa", asks=True)
            metrics.drafts = 4
            clock.step(30)
        metrics.drafts, metrics.status, metrics.text = 9, 503, "starting"
        clock.step(60)
        with scraper(lake, clock, said) as reader:
            reader.begins(url, "aaa", asks=True)
            clock.step(30, reader)
            metrics.status, metrics.text = 200, None
            clock.step(60, reader)
            metrics.drafts = 10
            clock.step(60, reader)
    assert [row["drafts"] for row in windows(lake)][:2] == [4, 6]


def test_many_windows_are_merged(lake, monkeypatch):
    monkeypatch.setattr(kept_windows, "MANY_FILES", 4)
    clock = Clock()
    with metrics_server() as (url, _, _), scraper(lake, clock, []) as reader:
        monkeypatch.setattr("resources.lake.tables.MANY_FILES", 3)
        reader.begins(url, "aaa")
        for _ in range(4):
            clock.step(60, reader)
        assert len(Tables(lake).files("serving_metrics")) == 1 and len(windows(lake)) == 4


def test_the_release_is_known_from_an_answer_and_asked_again_after_a_restart(lake):
    clock, said = Clock(), []
    with metrics_server() as (url, metrics, seen), scraper(lake, clock, said) as reader:
        reader.begins(url, None, asks=True)
        assert reader.releases() == {} and "no answer of" in said[0] and "give --release" in said[0]
        metrics.release = "aaaaaaaaaaaa"
        clock.step(60, reader)
        assert reader.releases() == {url: "aaaaaaaaaaaa"} and seen[-1]["body"]["max_tokens"] == 1
        metrics.release, metrics.began, metrics.drafts = "bbbbbbbbbbbb", 2e9, 3
        clock.step(60, reader)
        [row] = windows(lake)
    assert (row["release"], row["drafts"], row["restarts"]) == ("bbbbbbbbbbbb", 3, 1)


def test_a_front_that_switched_gives_no_window_of_two_releases(lake):
    clock, said = Clock(), []
    with metrics_server() as (url, metrics, _), scraper(lake, clock, said) as reader:
        metrics.header = "aaaaaaaaaaaa"
        reader.begins(url, None, asks=True)
        metrics.header, metrics.drafts = "bbbbbbbbbbbb", 50
        clock.step(60, reader)
        metrics.drafts += 2
        clock.step(60, reader)
        [row] = windows(lake)
    assert (row["release"], row["drafts"]) == ("bbbbbbbbbbbb", 2) and "now answers with release bbbbbbbbbbbb" in said[0]


def test_sglang_counts_verifications_and_finished_requests():
    def reading(requests, tokens, verifications):
        text = f"""sglang:num_requests_total{{tp_rank="0"}} {requests}
sglang:generation_tokens_total{{tp_rank="0"}} {tokens}
sglang:spec_verify_calls_total{{tp_rank="0"}} {verifications}
sglang:num_aborted_requests_total{{tp_rank="0"}} 1
sglang:num_running_reqs{{tp_rank="0"}} 2
sglang:e2e_request_latency_seconds_bucket{{le="1"}} {requests}
sglang:e2e_request_latency_seconds_bucket{{le="+Inf"}} {requests}
sglang:e2e_request_latency_seconds_count {requests}
"""
        return reading_of(samples_of(text))

    before, after = reading(10, 200, 90), reading(14, 284, 120)
    row = row_of(since(before, after), after, 60.0)
    assert (row["server"], row["drafts"], row["accepted_tokens"], row["draft_tokens"]) == ("sglang", 30, 84 - 4 - 30, None)
    assert (row["requests"], row["requests_running"], row["errors"]) == (4, 2, None)
    assert dict(row["latency_ms"])["e2e_p50"] == 500


def test_a_quantile_lies_in_its_bucket():
    buckets = [(1.0, 10.0), (2.0, 10.0), (4.0, 20.0), (float("inf"), 21.0)]
    assert quantile(buckets, 0.25) == pytest.approx(0.525) and quantile(buckets, 0.75) == pytest.approx(3.15)
    assert quantile(buckets, 0.99) == 4.0 and quantile([], 0.5) is None and quantile([(1.0, 0.0)], 0.5) is None


def test_the_command_reads_until_it_is_stopped(lake):
    release, said = small_release(lake, 1).name, []

    class Stopped(list):
        def append(self, sentence):
            said.append(sentence)
            if "reads" in sentence:
                raise KeyboardInterrupt

    with metrics_server() as (url, metrics, _):
        metrics.release = release
        scrape(lake, "tutor", f"{url}/v1", None, 60, Stopped().append)
        with pytest.raises(ScrapeError, match="no release of 'tutr'; there are: tutor"):
            scrape(lake, "tutr", url, None, 60, said.append)
    reads = f"reads {url}/metrics every 60 s: windows of release {release} of tutor"
    assert said == [reads, "ends with the window that is open"]
    [row] = windows(lake)
    assert row["release"] == release and json.loads(json.dumps(row["drafts"])) == 0


def test_acceptance_is_joined_with_prompt_shapes(lake):
    for name, columns in (
        ("interactions", {"release": "aaa", "drafts": 10, "draft_tokens": 30, "accepted_tokens": 15}),
        ("cleaned_interactions", {"prompt_shape": "what#1"}),
    ):
        row = dict.fromkeys(SCHEMAS[name].names) | columns | {"workload": "tutor", "dt": NOON.date(), "ts": NOON}
        rows = [row | {"interaction_id": f"i{number}"} for number in range(2)]
        if name == "interactions":
            rows.append(rows[0] | {"interaction_id": "without drafts", "drafts": None})
        Tables(lake).append(name, pa.Table.from_pylist(rows, schema=SCHEMAS[name]))
    publish(lake)
    [row] = query(lake, "from acceptance_by_shape").to_pylist()
    assert (row["release"], row["prompt_shape"], row["requests"], row["drafts"], row["tau"]) == ("aaa", "what#1", 2, 20, 2.5)
