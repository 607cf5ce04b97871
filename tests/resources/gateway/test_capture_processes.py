"""The capture layer as processes: killed, stopped, with a store that is away or on S3, and beside another one."""

import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest
import urllib3
import zstandard
from chat_server import chat_server

from benchmarks.capture import killed, layer, server
from benchmarks.s3_server import s3_server
from resources.gateway.capture import Capture, CaptureSettings, News, run_capture
from resources.gateway.front import Front
from resources.gateway.journal import CaptureError, Journal, frames
from resources.gateway.keys import KeyRules
from resources.gateway.recorder import StreamEnd, TrafficRecorder
from resources.gateway.routes import Backend, Route
from resources.launching.processes import child_environment, python_module

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def ask(url, path="/v1/chat/completions", body=CHAT):
    return urllib3.request("POST", url + path, body=json.dumps(body).encode(), retries=False, timeout=20)


def lines(contents):
    return [json.loads(line) for content in contents for line in zstandard.ZstdDecompressor().decompress(content).splitlines()]


def waited_for(what, seconds=60):
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)
    return found


@pytest.mark.slow
def test_nothing_that_was_answered_is_lost_when_it_is_killed():
    with server() as place:
        found = killed(place, 2, (0.3, 1.0))
    assert found["lost"] == found["twice"] == 0 and found["answered"] > 20


@pytest.mark.slow
def test_the_command_writes_objects_says_how_it_stands_and_ships_the_rest_when_it_is_stopped(tmp_path):
    with chat_server() as behind, layer(tmp_path / "logs", behind.url.removeprefix("http://")) as (place, process):
        url = f"http://{place}"
        assert ask(url).status == 200
        status = json.loads(urllib3.request("GET", f"{url}/capture/status").data)
        assert status["kept"] == 1 and status["not_kept"] == {} and status["store"]["place"] == str(tmp_path / "logs")
        waited_for(lambda: list((tmp_path / "logs").glob("dt=*/hour=*/traffic-*")))
        [child] = process.children()
        os.kill(child.pid, signal.SIGKILL)  # the shipper: it is started again
        assert ask(url).status == 200
        waited_for(lambda: len(list((tmp_path / "logs").glob("dt=*/hour=*/traffic-*"))) == 2)
        with pytest.raises(CaptureError, match="give each its own --journal"):
            run_capture(behind.url, CaptureSettings(str(tmp_path / "logs")), "127.0.0.1", 0, 1, print)
        taken = subprocess.run(
            python_module(
                "pipelines.cli", "capture", str(tmp_path / "others"), "--to", behind.url, "--port", place.split(":")[1]
            ),
            env=child_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert taken.returncode == 2 and "another program listens there" in taken.stderr
        assert ask(url).status == 200
    assert len(lines(path.read_bytes() for path in (tmp_path / "logs").glob("dt=*/hour=*/traffic-*"))) == 3


@pytest.mark.slow
def test_requests_do_not_notice_that_s3_is_away_and_the_objects_come_later(tmp_path, monkeypatch):
    with s3_server() as s3, chat_server() as behind:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        s3.bucket("logs")
        s3.fail("busy", "PUT")
        settings = CaptureSettings("s3://logs/capture", tmp_path / "journal", segment_s=0.1)
        with Capture(settings) as capture, Front("127.0.0.1", 0, 5, capture.recorder, capture.answers) as front:
            front.switch([Route(Backend(behind.url, ""))])
            assert (
                ask(front.url).status == 200 and ask(front.url, "/feedback", {"id": "chatcmpl-1", "value": "up"}).status == 202
            )
            assert "cannot serve it now" in waited_for(lambda: capture.status()["store"]["problem"])
            assert ask(front.url).status == 200 and not s3.names("logs")
            with pytest.raises(CaptureError, match="another process"), Capture(settings):
                pass
            s3.heal()
            names = waited_for(lambda: [name for name in s3.names("logs") if "feedback" in name])
            assert names[0].startswith("capture/dt=")
            assert waited_for(lambda: not capture.status()["store"]["problem"])
        found = lines(
            s3.client.get_object(Bucket="logs", Key=name)["Body"].read() for name in s3.names("logs") if "traffic" in name
        )
        assert [SimpleNamespace(**line).response["id"] for line in found] == ["chatcmpl-1", "chatcmpl-2"]
        assert not capture.left


def test_trouble_is_said_when_it_begins_and_when_it_is_over():
    news = News("s3://logs")
    assert news.of("", 0) == []
    assert news.of("access denied", 0) == ["s3://logs takes no objects (access denied): they wait in the journal"]
    assert news.of("no route", 4) == ["exchanges are not kept now: /capture/status says how many and why"]
    assert news.of("no route", 9) == []
    assert news.of("", 9) == ["s3://logs takes objects again", "exchanges are kept again; 9 were not since the start"]
    assert news.of("", 9) == []


def test_the_capture_layer_says_it(tmp_path, monkeypatch):
    monkeypatch.setattr("resources.gateway.capture.NEWS_EVERY_S", 0.0)
    monkeypatch.setattr("resources.gateway.capture.TICKS_EVERY_S", 0.05)
    monkeypatch.setattr("resources.gateway.capture.Capture._shipped", lambda self: {"problem": "the disk is full"})
    said = []
    with Capture(CaptureSettings(str(tmp_path / "logs")), said.append) as capture:
        while not said:
            capture._ended.wait(0.05)
    assert said == [f"{tmp_path / 'logs'} takes no objects (the disk is full): they wait in the journal"]


PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
TRAP = 'data: [DONE]\\n\\n{"type": "message_stop"} event: response.completed "type":"response.failed"'


def event(name, **data):
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


STREAMS = {
    "chat": [b'data: {"choices": [{"delta": {"content": %s}}]}\n\n' % json.dumps(TRAP).encode(), b"data: [DONE]\n\n"],
    "messages": [event("content_block_delta", delta={"type": "text_delta", "text": TRAP}), event("message_stop")],
    "responses": [
        event("response.output_text.delta", delta=TRAP),
        event("response.incomplete", response={"id": "r", "output": "x" * 3_000}),
    ],
}
"""All but the last event, and the last one."""


def written(form, whole, ends):
    """The same stream with other line ends, and without the names of events."""
    parts = [part.replace(b"\n", ends) for part in STREAMS[form]]
    return (
        parts if whole else [b"\n".join(line for line in part.split(b"\n") if not line.startswith(b"event:")) for part in parts]
    )


@pytest.mark.parametrize("form", STREAMS)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_the_last_event_is_seen_when_it_is_whole_and_no_sooner(form, named, ends, size):
    *_, last = parts = written(form, named, ends)
    text = b"".join(parts)
    cuts = [text[place : place + size] for place in range(0, len(text), size)]
    end = StreamEnd(form)
    seen = [end.seen(cut) for cut in cuts]
    first = seen.index(True)
    assert not any(seen[:first]) and first * size + size >= len(text) - len(last)
    read = b"".join(cuts[: first + 1]).rstrip()
    assert read == text.rstrip()  # nothing of the answer comes after it


def test_a_stream_of_chat_that_ends_without_an_empty_line():
    end = StreamEnd("chat")
    assert not end.seen(b"data: [DO") and end.seen(b"NE]")


@pytest.mark.parametrize("form", STREAMS)
def test_the_journal_has_the_answer_before_its_last_part_is_passed_on(tmp_path, form):
    journal = Journal(tmp_path, "run-1")
    recorder = TrafficRecorder(journal, KeyRules())
    exchange = recorder.begins(SimpleNamespace(method="POST", path=PATHS[form], headers={}), b"{}")
    exchange.starts(Backend("http://127.0.0.1:9", ""), 200, {"Content-Type": "text/event-stream"}, None)
    kept = []
    for part in STREAMS[form]:
        exchange.part(part)
        kept.append(journal.written)
    exchange.ends()
    assert kept == [0, 1] and journal.written == 1
    journal.close()
    [frame] = [frame for path in tmp_path.iterdir() for frame in frames(path)]
    assert frame.answer == b"".join(STREAMS[form])


def test_a_long_answer_of_known_length_is_kept_with_its_last_byte(tmp_path):
    journal = Journal(tmp_path, "run-1")
    exchange = TrafficRecorder(journal, KeyRules()).begins(
        SimpleNamespace(method="POST", path=PATHS["chat"], headers={}), b"{}"
    )
    exchange.starts(Backend("http://127.0.0.1:9", ""), 200, {"Content-Type": "application/json"}, 6)
    exchange.part(b"{ab")
    assert journal.written == 0
    exchange.part(b"cd}")
    assert journal.written == 1
