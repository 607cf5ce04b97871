"""Two workloads' adapters in one real vLLM: each answers as its merged model does, and a promotion under load loses no
request."""

import json
import threading
import time

import pytest
import torch
import urllib3
from transformers import AutoModelForCausalLM

from benchmarks.random_adapter import random_adapter
from model_ops.evaluation.measurement import TIE_NATS
from resources.artefacts.registry import Registry
from resources.endpoints.approvals import record_approval, roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.gateway.front import Front
from resources.gateway.pass_through import RELEASE_HEADER, TARGET_HEADER
from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseRef, read_release
from resources.serving.endpoint_server import AdapterHost
from resources.serving.follow import Follower, Slot
from resources.serving.programs import find_program
from resources.serving.release_server import ServeSettings

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.xdist_group("vllm")]

BY = Actor("ann", "MILLRACE_USER")
BOTH = ("tutor", "support")
QUESTIONS = ("def area(", "Write one sentence about the sea.", "What is a list?")
NEW_TOKENS = 24


def champion(lake, base, workload, seed):
    directory = random_adapter(lake, base, workload, seed)
    record_approval(lake, directory, BY)
    Endpoint(lake, workload).promote(ReleaseRef.of(directory), BY)
    return directory


def asked(url, workload, question, **more):
    body = {
        "model": workload,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
        **more,
    }
    return urllib3.request(
        "POST",
        f"{url}/v1/chat/completions",
        body=json.dumps(body),
        headers={"Content-Type": "application/json"},
        retries=False,
        timeout=300,
    )


def agreed(model, answer):
    """Whether the merged model in transformers ranks each token of a greedy answer first, or ties with its first."""
    prompt, ids = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
    with torch.no_grad():
        scores = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    gaps = scores.max(-1).values - scores.gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return bool((gaps <= TIE_NATS).all())


def look_until(following, condition):
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        following.look()
        time.sleep(0.1)


def test_two_workloads_share_a_server_and_one_is_promoted_under_load(python, toy, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    lake = LakeLayout.open(tmp_path / "lake")
    toys = Registry(LakeLayout.open(toy.lake), toy.workload)
    base = toys.directory(toys.current("model", "base_model"))
    first = {workload: champion(lake, base, workload, seed) for seed, workload in enumerate(BOTH)}
    settings = ServeSettings(
        find_program("vllm", str(python)), tmp_path / "logs", ["--enforce-eager", "--max-model-len", "512"]
    )
    said = []
    with Front("127.0.0.1", 0, drain_s=30) as front:
        slots = [Slot(workload, "champion") for workload in BOTH]
        following = Follower(lake, AdapterHost(lake, settings, slots, said.append), front, slots, said.append)
        try:
            following.bring_up()
            texts, models = {}, {}
            for workload, directory in first.items():
                release = read_release(directory)
                models[workload] = merged = AutoModelForCausalLM.from_pretrained(
                    lake.root / release.target.path, dtype=torch.float32
                ).eval()
                answers = [asked(front.url, workload, question, return_token_ids=True) for question in QUESTIONS]
                assert {
                    (
                        answer.status,
                        answer.headers[RELEASE_HEADER],
                        answer.headers[TARGET_HEADER],
                        answer.json()["model"],
                        answer.json()["system_fingerprint"],
                    )
                    for answer in answers
                } == {(200, directory.name, release.target.digest, workload, release.service.fingerprint)}
                assert all(agreed(merged, answer.json()) for answer in answers)
                texts[workload] = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
            assert texts["tutor"] != texts["support"]

            ends, failed, releases = threading.Event(), [], []

            def load(stream):
                while not ends.is_set():
                    answer = asked(front.url, "tutor", QUESTIONS[0], stream=stream)
                    releases.append(answer.headers.get(RELEASE_HEADER))
                    whole = answer.data.endswith(b"data: [DONE]\n\n") if stream else answer.json()["choices"]
                    if answer.status != 200 or not whole:
                        failed.append(answer.status)

            threads = [threading.Thread(target=load, args=(number % 2 == 0,)) for number in range(4)]
            for thread in threads:
                thread.start()
            [server] = following.host.servers
            second = champion(lake, base, "tutor", 7)
            look_until(following, lambda: second.name in releases)
            roll_back(lake, first["tutor"], BY)
            look_until(following, lambda: front.routes[0].backend.release == first["tutor"].name)
            ends.set()
            for thread in threads:
                thread.join()
            look_until(following, lambda: f"tutor@{second.name}" not in server._listed())
            assert not failed and {first["tutor"].name, second.name} == set(releases)
            assert following.host.servers == [server] and not server.ended
            assert all(
                agreed(models["tutor"], asked(front.url, "tutor", question, return_token_ids=True).json())
                for question in QUESTIONS
            )
        finally:
            following.close()
    print(
        f"{len(releases)} requests, {len(failed)} failed, {releases.count(second.name)} answered by the second release",
        *said,
        sep="\n",
    )
