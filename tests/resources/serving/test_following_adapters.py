"""Several workloads' adapters in one server: loaded, tried, switched, unloaded. The server is a stand-in for vLLM
(benchmarks/stand_in_vllm.py)."""

import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from itertools import pairwise

import pytest
import urllib3

from benchmarks.small_adapter import small_adapter
from benchmarks.small_release import small_release
from benchmarks.stand_in_vllm import behave, stand_in_vllm, started
from model_ops.serving.service import fingerprint
from resources.endpoints.approvals import record_approval, roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.gateway.front import Front
from resources.gateway.pass_through import RELEASE_HEADER, TARGET_HEADER
from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseRef, read_release
from resources.serving import release_server
from resources.serving.endpoint_server import AdapterHost, TrafficSettings, serve
from resources.serving.follow import Follower, Slot
from resources.serving.programs import ServeError, find_program
from resources.serving.release_server import ServeSettings
from tests.resources.serving.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("following adapters")]

ANN = Actor("ann", "MILLRACE_USER")
AGREES = {"tokens": 10, "agreed": 10, "nll": 1.0, "prompts": 1, "same_prompts": 1}
BOTH = ("tutor", "support")


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


@pytest.fixture(autouse=True)
def compared(monkeypatch):
    """The targets of these releases are no models. What they were compared with is noted."""
    targets = []
    monkeypatch.setattr(release_server, "own_layers", lambda target: lambda answers: targets.append(target) or AGREES)
    return targets


@pytest.fixture
def settings(tmp_path):
    python = stand_in_vllm(tmp_path / "vllm")
    return ServeSettings(find_program(None, str(python)), tmp_path / "logs", start_s=10)


def champion(lake, directory):
    record_approval(lake, directory, ANN)
    Endpoint(lake, directory.parent.name).promote(ReleaseRef.of(directory), ANN)
    return directory


@contextmanager
def following(lake, settings, workloads=BOTH, **more):
    said = []
    with Front("127.0.0.1", 0, drain_s=5) as front:
        slots = [Slot(workload, "champion") for workload in workloads]
        follows = Follower(lake, AdapterHost(lake, settings, slots, said.append), front, slots, said.append, **more)
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


def test_one_server_answers_for_both_each_in_its_own_name(lake, settings, tmp_path, compared):
    tutor = champion(lake, small_adapter(lake, 1, "tutor", rank=8))
    support = champion(lake, small_adapter(lake, 1, "support", rank=12))
    with following(lake, settings) as served:
        served.following.bring_up()
        for directory in (tutor, support):
            workload, digest = directory.parent.name, read_release(directory).target.digest
            answer = served.ask(workload)
            said = answer.json()
            assert (said["model"], said["system_fingerprint"]) == (workload, fingerprint(directory.name, digest))
            assert (answer.headers[RELEASE_HEADER], answer.headers[TARGET_HEADER]) == (directory.name, digest)
            stream = served.ask(workload, stream=True).data.decode()
            assert f'"model": "{workload}"' in stream and fingerprint(directory.name, digest) in stream and "@" not in stream
            assert "millrace-base-" not in stream and stream.endswith("data: [DONE]\n\n")
        listed = urllib3.request("GET", f"{served.front.url}/v1/models").json()["data"]
        assert [each["id"] for each in listed] == list(BOTH)
        assert served.ask("millrace-base").status == 404 and served.ask(f"tutor@{tutor.name}").status == 404
        assert "there are: tutor, support" in served.ask("other").json()["error"]["message"]
        assert urllib3.request("POST", f"{served.front.url}/v1/chat/completions", body=b"{}").status == 400
    [words] = started(tmp_path / "vllm")
    given = dict(pairwise(words))
    assert (given["--max-lora-rank"], given["--max-loras"], given["--tokenizer"]) == ("16", "3", str(tutor / "adapter"))
    assert given["--generation-config"] == str(tutor) and "/base_model/" in given["serve"]
    assert compared == [lake.root / read_release(each).target.path for each in (tutor, support)]
    kept = json.loads((settings.logs / f"support-{support.name}.smoke.json").read_text())
    assert kept["workload"] == "support" and kept["findings"]


def test_a_new_adapter_is_loaded_beside_the_old_one_which_answers_its_last_request(lake, settings, tmp_path):
    one, other = champion(lake, small_adapter(lake, 1)), champion(lake, small_adapter(lake, 1, "support"))
    two = small_adapter(lake, 2)
    with looking(lake, settings) as served:
        behave(tmp_path / "vllm")
        old = served.front.routes[0].backend
        old.in_flight += 1
        champion(lake, two)
        served.following.look()
        assert (served.answering("tutor"), served.answering("support")) == (two.name, other.name)
        served.following.look()
        [server] = served.following.host.servers
        assert f"tutor@{one.name}" in server._listed() and server._listed()[f"tutor@{two.name}"] == str(two / "adapter")
        roll_back(lake, one, ANN)  # the old one is still loaded
        served.following.look()
        assert served.answering("tutor") == one.name and served.front.routes[0].backend is old
        champion(lake, two)
        served.look_until(lambda: served.answering("tutor") == two.name)
        old.in_flight -= 1
        served.look_until(lambda: f"tutor@{one.name}" not in server._listed())
        assert f"release {one.name} of tutor is unloaded" in served.said
    assert len(started(tmp_path / "vllm")) == 1


def test_a_promotion_under_load_fails_no_request(lake, settings, tmp_path):
    one, two = champion(lake, small_adapter(lake, 1)), small_adapter(lake, 2)
    champion(lake, small_adapter(lake, 1, "support"))
    behave(tmp_path / "vllm", token_s=0.01)
    settings = ServeSettings(settings.program, settings.logs, start_s=10, smoke=False)
    with looking(lake, settings) as served:
        ends, failed, releases = threading.Event(), [], []

        def load(stream):
            while not ends.is_set():
                answer = served.ask("tutor", stream=stream)
                releases.append(answer.headers.get(RELEASE_HEADER))
                if answer.status != 200 or (stream and not answer.data.endswith(b"data: [DONE]\n\n")):
                    failed.append(answer.status)

        threads = [threading.Thread(target=load, args=(number % 2 == 0,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for release in (two, one, two):
            (roll_back(lake, one, ANN) if release is one else champion(lake, release))
            served.look_until(lambda release=release: served.front.routes[0].backend.release == release.name)
        time.sleep(0.1)
        ends.set()
        for thread in threads:
            thread.join()
    assert not failed and set(releases) == {one.name, two.name} and len(started(tmp_path / "vllm")) == 1


def test_an_adapter_that_fails_its_smoke_set_never_answers(lake, settings, tmp_path, monkeypatch):
    one = champion(lake, small_adapter(lake, 1))
    with looking(lake, settings, ["tutor"]) as served:
        monkeypatch.setattr(release_server, "own_layers", lambda target: lambda answers: {**AGREES, "agreed": 1})
        two = champion(lake, small_adapter(lake, 2))
        for _ in range(2):
            served.following.look()
        assert served.answering("tutor") == one.name
        [why] = [sentence for sentence in served.said if "not tried again" in sentence]
        assert why.startswith(f"tutor: release {two.name} did not pass the smoke set: text: 10.0% of 10 greedy tokens")
        [server] = served.following.host.servers
        assert f"tutor@{two.name}" not in server._listed()
        monkeypatch.setattr(release_server, "own_layers", lambda target: lambda answers: AGREES)
        three = champion(lake, small_adapter(lake, 3))
        served.look_until(lambda: served.answering("tutor") == three.name)


def test_what_cannot_share_the_server_is_refused_in_words(lake, settings, tmp_path, make_release):
    tutor = champion(lake, small_adapter(lake, 1))
    refused = {
        "its base model is [0-9a-f]{12} and not [0-9a-f]{12}": {"base": "large"},
        "its tokenizer or chat template is another one": {"template": "other"},
        "only one of them retains nothing": {"zero_retention": True},
    }
    for number, (why, changes) in enumerate(refused.items()):
        champion(lake, small_adapter(lake, number, "support", **changes))
        said = f"support cannot be served beside the other workloads: .*{why}.*Serve it alone: millrace serve support"
        with following(lake, settings) as served, pytest.raises(ServeError, match=said):
            served.following.bring_up()
    champion(lake, small_release(lake, 1, "support"))
    with following(lake, settings) as served:
        with pytest.raises(ServeError, match=r"of support is a whole model, not an adapter.*release\.form: adapter"):
            served.following.bring_up()
        assert served.answering("tutor") == tutor.name and served.answering("support") == 404
    for arguments, why in (
        (["--api-server-count", "2"], "starts several server processes"),
        (["--max-lora-rank", "many"], "--max-lora-rank many: give one of 1, 8, 16"),
    ):
        given = ServeSettings(settings.program, settings.logs, arguments)
        with following(lake, given, ["tutor"]) as served, pytest.raises(ServeError, match=why):
            served.following.bring_up()
    behave(tmp_path / "vllm", refuses_adapters="LoRA rank 8 is greater than max_lora_rank 1.")
    why = f"release {tutor.name} of tutor was not loaded: LoRA rank 8 is greater than max_lora_rank 1"
    with following(lake, settings, ["tutor"]) as served, pytest.raises(ServeError, match=why):
        served.following.bring_up()


def test_a_larger_rank_than_the_servers_is_refused_and_another_base_gets_a_server(lake, settings, tmp_path):
    one, other = champion(lake, small_adapter(lake, 1)), champion(lake, small_adapter(lake, 1, "support"))
    with looking(lake, settings) as served:
        champion(lake, small_adapter(lake, 2, rank=64))
        served.following.look()
        why = "has rank 64, and the server was started for ranks up to 8: start it again with -- --max-lora-rank 64"
        assert served.answering("tutor") == one.name and why in served.said[-1]
        moved = champion(lake, small_adapter(lake, 3, base="large"))
        served.look_until(lambda: served.answering("tutor") == moved.name)
        assert served.answering("support") == other.name and len(served.following.host.servers) == 2
        second = champion(lake, small_adapter(lake, 3, "support", base="large"))
        served.look_until(lambda: served.answering("support") == second.name)
        served.look_until(lambda: any("is stopped: no workload uses it" in sentence for sentence in served.said))
    assert len(started(tmp_path / "vllm")) == 2


def test_a_server_that_ends_is_started_again_with_its_adapters(lake, settings, tmp_path):
    one, other = champion(lake, small_adapter(lake, 1)), champion(lake, small_adapter(lake, 1, "support"))
    with looking(lake, settings) as served:
        os.kill(served.following.host.servers[0]._server.process_id, signal.SIGKILL)
        served.look_until(lambda: len(started(tmp_path / "vllm")) == 2)
        served.look_until(lambda: (served.answering("tutor"), served.answering("support")) == (one.name, other.name))
    assert any("ended by itself and is started again" in sentence for sentence in served.said)


def test_an_adapter_that_ends_the_server_is_left_out_when_it_starts_again(lake, settings, tmp_path, monkeypatch):
    one, other = champion(lake, small_adapter(lake, 1)), champion(lake, small_adapter(lake, 1, "support"))
    with looking(lake, settings) as served:
        [server] = served.following.host.servers

        def ends_it(self, directory):
            os.kill(self._server.process_id, signal.SIGKILL)
            self._server.ends_within(10)
            raise ServeError("the server does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(type(server), "load", ends_it)
            two = champion(lake, small_adapter(lake, 2))
            served.following.look()
        served.look_until(lambda: (served.answering("tutor"), served.answering("support")) == (one.name, other.name))
        assert [words for words in served.said if two.name in words and "not tried again" in words]
    assert len(started(tmp_path / "vllm")) == 2


def test_a_changed_adapter_is_not_served(lake, settings):
    directory = champion(lake, small_adapter(lake, 1))
    with following(lake, settings, ["tutor"]) as served:
        for path, why in (
            (directory / "adapter" / "adapter_model.safetensors", "adapter_model.safetensors changed"),
            (lake.root / read_release(directory).base.path / "model.safetensors", "model.safetensors changed"),
        ):
            before = path.read_text()
            path.write_text(before + "x")
            with pytest.raises(ServeError, match=rf"release {directory.name} is not served: .*{why}"):
                served.following.bring_up()
            path.write_text(before)
        served.following.bring_up()
        assert served.answering("tutor") == directory.name


def test_the_names_of_the_workloads_are_checked(lake, settings):
    champion(lake, small_adapter(lake, 1))
    for traffic, why in (
        (TrafficSettings(port=0, beside=("support",)), "has no endpoint of 'support'; there are: tutor"),
        (TrafficSettings(port=0, beside=("tutor",)), "tutor is named twice"),
    ):
        with pytest.raises(ServeError, match=why):
            serve(lake, "tutor", traffic, settings, print)
    champion(lake, small_adapter(lake, 1, "support"))
    with pytest.raises(ServeError, match="--canary goes with one workload"):
        serve(lake, "tutor", TrafficSettings(port=0, beside=("support",), canary="canary"), settings, print)


def test_a_single_workload_whose_release_is_an_adapter_is_switched_without_another_server(lake, settings, tmp_path):
    releases, said = [champion(lake, small_adapter(lake, 1))], []

    def say(sentence):
        said.append(sentence)
        if f"release {releases[-1].name} answers" in sentence:
            if len(releases) == 2:
                raise KeyboardInterrupt
            releases.append(champion(lake, small_adapter(lake, 2)))

    serve(lake, "tutor", TrafficSettings(port=0), settings, say, watch=True, every_s=0.05)
    assert len(started(tmp_path / "vllm")) == 1 and len(releases) == 2 and f"release {releases[1].name} answers" in said[-1]
