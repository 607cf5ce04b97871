"""Traffic of a release in a real vLLM: what is captured, what is ingested of it, and windows of its metrics that agree."""

import json

import pytest
import urllib3

from resources.catalog.build import publish
from resources.catalog.catalog import query
from resources.gateway.capture import Capture, CaptureSettings
from resources.gateway.front import Front
from resources.lake.tables import Tables
from resources.monitoring.metrics.scraper import Scraper
from resources.monitoring.metrics.target import Target
from resources.reading.ingestion import ingest
from resources.releases.release import read_release
from resources.serving.endpoint_server import ServerHost
from resources.serving.follow import Follower, Slot
from resources.serving.programs import find_program
from resources.serving.release_server import ServeSettings
from resources.sources.sources import SourceSettings

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.xdist_group("vllm")]

WORDS = ["--enforce-eager", "--max-model-len", "512"]
REQUESTS = 8


def test_windows_agree_with_the_metrics_of_captured_requests(python, toy, promoted, tmp_path):
    lake, release = promoted
    settings = ServeSettings(find_program(None, str(python)), tmp_path / "logs", WORDS, smoke=False)
    captured = CaptureSettings(str(tmp_path / "captured"), ask_for_ids=True)
    said = []
    with (
        Capture(captured) as capture,
        Scraper(lake, toy.workload, "e", 3_600, said.append) as scraper,
        Front("127.0.0.1", 0, 30, capture.recorder, capture.answers) as front,
    ):
        host = ServerHost(lake, settings, said.append, scraper)
        following = Follower(lake, host, front, [Slot(toy.workload, "champion")], said.append)
        try:
            following.bring_up()
            for number in range(REQUESTS):
                body = {
                    "model": toy.workload,
                    "messages": [{"role": "user", "content": f"def area_{number}("}],
                    "max_tokens": 24,
                    "temperature": 0,
                    "ignore_eos": True,
                }
                if number % 2:
                    body |= {"stream": True, "stream_options": {"include_usage": True}}
                answer = urllib3.request(
                    "POST",
                    f"{front.url}/v1/chat/completions",
                    body=json.dumps(body),
                    headers={"Content-Type": "application/json", "X-Session-Id": f"s{number}"},
                )
                assert answer.status == 200
            assert Target(following.loaded[toy.workload, release.name].backend.url).asked_release() == release.name
        finally:
            following.close()
    tables = Tables(lake)
    ingest(tables, toy.workload, {"capture": SourceSettings(uri=str(tmp_path / "captured"))})
    rows = tables.open("interactions").to_pyarrow_table().to_pylist()
    assert len(rows) == REQUESTS
    for row in rows:
        assert row["prompt_token_ids"] and len(row["completion_token_ids"]) == row["completion_tokens"] == 24
        assert (row["release"], row["served_model_digest"]) == (release.name, read_release(release).target.digest)
        assert json.loads(row["params"])["temperature"] == 0 and row["finish_reason"] == "length"
        assert row["ttft_ms"] > 0 and row["queue_ms"] >= 0 and row["drafts"] > 0 and row["draft_tokens"] >= row["drafts"]
        # each draft gives its accepted tokens and one more; the first token comes with the prompt, and the last draft is cut
        assert 24 <= 1 + row["drafts"] + row["accepted_tokens"] < 24 + row["draft_tokens"] / row["drafts"] + 1
    [window] = tables.open("serving_metrics").to_pyarrow_table().to_pylist()
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert window[name] == sum(row[name] for row in rows), name
    assert sum(window["accepted_per_position"]) == window["accepted_tokens"]
    assert (window["requests"], dict(window["finished"])) == (REQUESTS + 1, {"length": REQUESTS + 1})  # and the one that asked
    assert window["generation_tokens"] == 24 * REQUESTS + 1 and window["errors"] == 0 and window["refused"] == 0
    assert {"ttft_p50", "inter_token_p99", "e2e_mean", "queue_p90"} <= {name for name, _ in window["latency_ms"]}
    publish(lake)
    [shape] = query(lake, "select sum(requests) as requests, sum(drafts) as drafts from acceptance_by_shape").to_pylist()
    assert (shape["requests"], shape["drafts"]) == (REQUESTS, window["drafts"])
