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
from resources.gateway.capture import Capture, CaptureSettings, run_capture
from resources.gateway.front import Front
from resources.gateway.journal import CaptureError
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
