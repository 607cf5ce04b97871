"""Serving an alias: verified, tried, followed. The server is a stand-in for vLLM (benchmarks/stand_in_vllm.py)."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3
import zstandard

from benchmarks.stand_in_vllm import behave, stand_in_vllm, started
from resources.endpoints.approvals import record_approval, roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.gateway.capture import CaptureSettings
from resources.gateway.front import Front
from resources.gateway.pass_through import RELEASE_HEADER, TARGET_HEADER
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.monitoring.metrics.scraper import Scraper
from resources.releases.release import ReleaseRef, read_release
from resources.serving import release_server
from resources.serving.endpoint_server import ServerHost, TrafficSettings, scraping, serve
from resources.serving.follow import Follower, Slot
from resources.serving.programs import ServeError, find_program
from resources.serving.release_server import ServeSettings
from tests.resources.serving.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("following")]

ANN = Actor("ann", "MILLRACE_USER")
AGREES = {"tokens": 10, "agreed": 10, "nll": 1.0, "prompts": 1, "same_prompts": 1}


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture(autouse=True)
def compared(monkeypatch):
    """The target of these releases is no model, and no processor's dtype counts (test_serving_programs.py)."""
    monkeypatch.setattr(release_server, "own_layers", lambda target: lambda answers: AGREES)
    monkeypatch.setattr(release_server, "dtype_words", lambda *given: [])


@pytest.fixture
def settings(tmp_path):
    python = stand_in_vllm(tmp_path / "vllm")
    return ServeSettings(find_program(None, str(python)), tmp_path / "logs", ["--max-model-len", "256"], start_s=10)


def champion(lake, directory):
    record_approval(lake, directory, ANN)
    return Endpoint(lake, "tutor").promote(ReleaseRef.of(directory), ANN)


@contextmanager
def following(lake, settings, slots=None, wait_s=0.0, scraper=None, **more):
    said = []
    with Front("127.0.0.1", 0, drain_s=5, wait_s=wait_s) as front:
        host = ServerHost(lake, settings, said.append, scraper)
        follows = Follower(lake, host, front, slots or [Slot("tutor", "champion")], said.append, **more)
        try:
            yield Served(follows, front, said)
        finally:
            follows.close()


@contextmanager
def looking(*words, **more):
    """The same, after a first look."""
    with following(*words, **more) as served:
        served.following.look()
        yield served


def test_the_release_is_served_with_the_flags_of_its_script(lake, settings, make_release, tmp_path):
    release = make_release(lake, 3, drafts=True)
    champion(lake, release)
    with following(lake, settings) as served:
        served.following.bring_up()
        assert served.answering() == release.name
    [words] = started(tmp_path / "vllm")
    assert words[:3] == ["-m", "vllm.entrypoints.cli.main", "serve"] and words[-6:-4] == ["--max-model-len", "256"]
    script = (release / "serve-vllm.sh").read_text()
    flags = {word for word in words if word.startswith("--")} - {"--max-model-len", "--host", "--port"}
    assert all(word in script for word in flags)
    assert json.loads(words[words.index("--speculative-config") + 1])["num_speculative_tokens"] == 3
    kept = json.loads((settings.logs / f"{release.name}.smoke.json").read_text())
    assert (kept["release"], kept["server"]) == (release.name, "vllm") and len(kept["findings"]) == 12
    assert f"champion: release {release.name} answers on {served.front.url} (vllm, drafting)" in served.said


def test_the_alias_is_followed_forward_and_back(lake, settings, make_release, tmp_path):
    one, two = make_release(lake, 1), make_release(lake, 2)
    champion(lake, one)
    with looking(lake, settings) as served:
        assert served.answering() == one.name
        champion(lake, two)
        served.look_until(lambda: served.answering() == two.name)
        served.look_until(lambda: f"release {one.name} is stopped" in served.said)
        roll_back(lake, one, ANN)
        served.look_until(lambda: served.answering() == one.name)
    assert len(started(tmp_path / "vllm")) == 3


def test_windows_are_those_of_each_release_from_its_first_request_to_its_last(lake, settings, make_release):
    one, two = make_release(lake, 3, drafts=True), make_release(lake, 4, drafts=True)
    champion(lake, one)
    with Scraper(lake, "tutor", "e", 3_600) as scraper, looking(lake, settings, scraper=scraper) as served:
        for _ in range(3):
            served.answering()
        champion(lake, two)
        served.look_until(lambda: served.answering() == two.name)
        served.look_until(lambda: f"release {one.name} is stopped" in served.said)
        last = served.answering()
    found = {row["release"]: row for row in Tables(lake).open("serving_metrics").to_pyarrow_table().to_pylist()}
    assert last == two.name and set(found) == {one.name, two.name}
    assert found[one.name]["drafts"] >= 3 and found[two.name]["drafts"] >= 2  # without those of the smoke set
    assert found[one.name]["drafts"] + found[two.name]["drafts"] < 100 and found[one.name]["endpoint"] == "e"


def test_a_lake_that_cannot_be_written_is_served_without_metrics(lake):
    said = []
    (lake.root / ".serving").write_text("no folder")
    with scraping(lake, "tutor", TrafficSettings(), said.append) as scraper:
        assert scraper is None
    assert said and said[0].startswith("metrics of the servers are not kept: ")


def test_a_rollback_finds_the_old_server_while_it_still_answers(lake, settings, make_release, tmp_path):
    one, two = make_release(lake, 1), make_release(lake, 2)
    champion(lake, one)
    with looking(lake, settings) as served:
        backend = served.front.routes[0].backend
        backend.in_flight += 1
        champion(lake, two)
        served.following.look()
        assert served.answering() == two.name
        roll_back(lake, one, ANN)
        served.following.look()
        assert served.answering() == one.name and served.front.routes[0].backend is backend
        backend.in_flight -= 1
    assert len(started(tmp_path / "vllm")) == 2


def test_a_release_that_fails_its_smoke_set_never_answers_and_is_tried_once(lake, settings, make_release, tmp_path):
    one, two, three = (make_release(lake, number, drafts=True) for number in (1, 2, 3))
    champion(lake, one)
    with looking(lake, settings) as served:
        behave(tmp_path / "vllm", only='"num_speculative_tokens": 2', ignores=["tools", "stop"])
        champion(lake, two)
        for _ in range(3):
            served.following.look()
            assert served.answering() == one.name
        [why] = [sentence for sentence in served.said if "not tried again" in sentence]
        assert why.startswith(f"champion: release {two.name} did not pass the smoke set: stop: ")
        assert f"; tool call: an answer breaks the constraint (log: {settings.logs / two.name}.log)" in why
        assert f"release {one.name} goes on, and release {two.name} is not tried again until the alias moves" in why
        assert len(started(tmp_path / "vllm")) == 2
        champion(lake, three)
        served.look_until(lambda: served.answering() == three.name)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"never_healthy": True}, "vllm did not start release {}: it could not be asked after 1 s"),
        (
            {"exits": "OSError: no such kernel"},
            "vllm did not start release {}: it ended with exit code 1 before it could be asked: OSError: no such kernel",
        ),
        ({"html": True}, "release {} did not pass the smoke set: answers: row built-in: its answer is no JSON"),
    ],
)
def test_a_server_that_does_not_come_up_is_said_in_one_sentence(lake, settings, make_release, tmp_path, behaviour, said):
    release = make_release(lake, 1)
    champion(lake, release)
    behave(tmp_path / "vllm", **behaviour)
    settings = ServeSettings(settings.program, settings.logs, start_s=1)
    with following(lake, settings) as served, pytest.raises(ServeError) as failed:
        served.following.bring_up()
    assert str(failed.value).startswith(said.format(release.name))
    assert str(failed.value).endswith(f"(log: {settings.logs / release.name}.log)")


def test_where_nothing_served_before_a_release_is_tried_again(lake, settings, make_release, tmp_path):
    release = make_release(lake, 1)
    champion(lake, release)
    behave(tmp_path / "vllm", exits="OSError: no space left")
    with following(lake, settings) as served:
        for _ in range(3):
            served.following.look()
        assert served.answering() == 503 and len(started(tmp_path / "vllm")) == 1
        assert len(served.said) == 2 and "cannot be served now, and is tried again: vllm did not start" in served.said[-1]
        behave(tmp_path / "vllm")
        served.look_until(lambda: served.answering() == release.name)


def test_what_was_changed_or_not_approved_is_not_served(lake, settings, make_release):
    one, two = make_release(lake, 1), make_release(lake, 2)
    with following(lake, settings) as served:
        with pytest.raises(ServeError, match="tutor has no release under the alias champion; there are: none"):
            served.following.bring_up()
        champion(lake, one)
        script = one / "serve-vllm.sh"
        content = script.read_text()
        script.write_text(content + "# changed")
        with pytest.raises(ServeError, match=rf"release {one.name} is not served: .*serve-vllm\.sh changed"):
            served.following.bring_up()
        script.write_text(content)
        aliases = json.loads(lake.endpoint("tutor").read_text())
        lake.endpoint("tutor").write_text(json.dumps({**aliases, "champion": two.name}))
        with pytest.raises(ServeError, match=f"release {two.name} is not served: release {two.name} is not approved"):
            served.following.bring_up()
        lake.endpoint("tutor").write_text(json.dumps({**aliases, "champion": "000000000000"}))
        with pytest.raises(ServeError, match=r"names release 000000000000, which is not in .*: restore it from a copy"):
            served.following.bring_up()
    assert served.front.routes == ()


def test_a_candidate_is_served_before_its_approval(lake, settings, make_release):
    release = make_release(lake, 1)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    with following(lake, settings, [Slot("tutor", "candidate")]) as served:
        served.following.bring_up()
        assert served.answering() == release.name


def test_a_canary_takes_its_share_of_the_sessions_until_its_alias_is_removed(lake, settings, make_release):
    one, two = make_release(lake, 1), make_release(lake, 2)
    champion(lake, one)
    record_approval(lake, two, ANN)
    endpoint = Endpoint(lake, "tutor")
    endpoint.name("canary", ReleaseRef.of(two), ANN)
    with looking(lake, settings, [Slot("tutor", "champion"), Slot("tutor", "canary", 0.25)]) as served:
        sessions = [f"session {number}" for number in range(60)]
        chosen = {session: served.answering(headers={"X-Session-Id": session}) for session in sessions}
        assert 5 <= list(chosen.values()).count(two.name) <= 25
        assert chosen == {session: served.answering(headers={"X-Session-Id": session}) for session in sessions}
        assert served.answering(headers={RELEASE_HEADER: two.name}) == two.name
        endpoint.unname("canary", ANN)
        served.following.look()
        assert {served.answering(headers={"X-Session-Id": session}) for session in sessions} == {one.name}
        assert served.answering(headers={RELEASE_HEADER: two.name}) == 503


def test_a_server_that_ends_is_started_again(lake, settings, make_release, tmp_path):
    release = make_release(lake, 1)
    champion(lake, release)
    with looking(lake, settings) as served:
        os.kill(served.following.loaded["tutor", release.name]._server.process_id, signal.SIGKILL)
        served.look_until(lambda: len(started(tmp_path / "vllm")) == 2)
        assert served.answering() == release.name
    assert any(f"the server of release {release.name} ended by itself" in sentence for sentence in served.said)


def test_what_serves_beside_a_refused_release_is_started_again_where_it_ends(lake, settings, make_release, tmp_path):
    one, two = (make_release(lake, number, drafts=True) for number in (1, 2))
    champion(lake, one)
    with looking(lake, settings) as served:
        behave(tmp_path / "vllm", only='"num_speculative_tokens": 2', ignores=["tools", "stop"])
        champion(lake, two)
        served.following.look()
        assert any("not tried again" in sentence for sentence in served.said)
        os.kill(served.following.loaded["tutor", one.name]._server.process_id, signal.SIGKILL)
        served.look_until(lambda: len(started(tmp_path / "vllm")) == 3)
        assert served.answering() == one.name


def test_requests_of_a_server_that_is_killed_are_answered_by_the_one_that_follows(lake, settings, make_release, tmp_path):
    release = make_release(lake, 1)
    champion(lake, release)
    behave(tmp_path / "vllm", token_s=0.2)
    with looking(lake, replace(settings, smoke=False), wait_s=20) as served, ThreadPoolExecutor(3) as threads:
        backend = served.front.routes[0].backend
        asked = [threads.submit(served.answering) for _ in range(2)]
        served.look_until(lambda: backend.in_flight == 2)
        behave(tmp_path / "vllm")
        os.kill(served.following.loaded["tutor", release.name]._server.process_id, signal.SIGKILL)
        asked.append(threads.submit(served.answering))
        served.look_until(lambda: all(each.done() for each in asked))
        assert [each.result() for each in asked] == [release.name] * 3 and served.front.refused == 0


def test_aliases_that_cannot_be_read_change_nothing_and_are_told_once(lake, settings, make_release):
    release = make_release(lake, 1)
    champion(lake, release)
    with looking(lake, settings) as served:
        lake.endpoint("tutor").write_text("{")
        told = len(served.said)
        for _ in range(3):
            served.following.look()
        assert served.answering() == release.name
    assert len(served.said) == told + 1 and "cannot be read, so what serves goes on" in served.said[-1]


def test_a_lake_that_cannot_be_read_refuses_no_release(lake, settings, make_release, monkeypatch):
    one, two = make_release(lake, 1), make_release(lake, 2)
    champion(lake, one)
    with looking(lake, settings) as served:
        champion(lake, two)
        monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", str(lake.root / "none"))
        served.following.look()
        assert served.answering() == one.name and "cannot be served now, and is tried again" in served.said[-1]
        monkeypatch.delenv("MILLRACE_TRUSTED_KEYS")
        served.look_until(lambda: served.answering() == two.name)


def test_replaced_servers_have_their_time_and_no_more(lake, settings, make_release):
    one, two = make_release(lake, 1), make_release(lake, 2)
    champion(lake, one)
    with looking(lake, settings, drain_s=0.3) as served:
        served.front.routes[0].backend.in_flight += 1
        champion(lake, two)
        served.following.look()
        assert served.answering() == two.name and f"release {one.name} is stopped" not in " ".join(served.said)
        served.look_until(lambda: any("is stopped" in sentence for sentence in served.said))
    assert f"release {one.name} is stopped, 1 requests that took more than 0.3 s were cut off" in served.said


def test_serving_ends_with_the_server_where_nothing_is_followed(lake, settings, make_release):
    release = make_release(lake, 1)
    champion(lake, release)
    said = []

    def say(sentence):
        said.append(sentence)
        if "answers on" in sentence:
            [started_by_it] = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _serves(path, lake)]
            threading.Timer(0.2, os.kill, (started_by_it, signal.SIGKILL)).start()

    with pytest.raises(ServeError, match=f"the server of release {release.name} ended by itself"):
        serve(lake, "tutor", TrafficSettings(port=0), settings, say, every_s=0.05)


def test_the_traffic_of_a_release_is_captured_with_the_digest_of_its_weights(lake, settings, make_release, tmp_path):
    release = make_release(lake, 1)
    champion(lake, release)
    headers = []

    def say(sentence):
        if "answers on" in sentence:
            url = sentence.split("answers on ")[1].split()[0] + "/v1/chat/completions"
            body = json.dumps({"model": "tutor", "messages": [{"role": "user", "content": "hello"}]})
            headers.append(urllib3.request("POST", url, body=body, retries=False).headers)
            [started_by_it] = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _serves(path, lake)]
            threading.Timer(0.2, os.kill, (started_by_it, signal.SIGKILL)).start()

    captured = CaptureSettings(str(tmp_path / "captured"), ask_for_ids=True)
    with pytest.raises(ServeError, match="ended by itself"):
        serve(lake, "tutor", TrafficSettings(port=0, capture=captured), settings, say, every_s=0.05)
    [path] = (tmp_path / "captured").glob("dt=*/hour=*/traffic-*")
    [record] = map(json.loads, zstandard.ZstdDecompressor().decompress(path.read_bytes()).splitlines())
    digest = read_release(release).target.digest
    assert (record["served_model_digest"], record["release"]) == (digest, release.name) and headers[0][TARGET_HEADER] == digest
    assert record["response"]["prompt_token_ids"] == [5, 6, 7] and record["response"]["choices"][0]["token_ids"]


def test_names_that_are_not_there(lake, settings, make_release):
    with pytest.raises(ServeError, match="has no endpoint of 'tutor'; there are: none yet"):
        serve(lake, "tutor", TrafficSettings(port=0), settings, print)
    champion(lake, make_release(lake, 1))
    with pytest.raises(ServeError, match="--canary champion is the alias that is served anyway"):
        serve(lake, "tutor", TrafficSettings(port=0, canary="champion"), settings, print)
    with Front("127.0.0.1", 0) as front, pytest.raises(ServeError, match="another program listens there"):
        serve(lake, "tutor", TrafficSettings(port=front.port), settings, print)


def _serves(process, lake):
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return any(b"stand_in_vllm" in word for word in words) and any(str(lake.root).encode() in word for word in words)
    except OSError:
        return False
