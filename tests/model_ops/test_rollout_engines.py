"""Engines that reinforcement fine-tuning may sample with: vLLM's routes, weights by version, faults of servers, and drafters.

The server is a stand-in with a model of its own (policy_server.py); tests/serving/test_vllm_rollouts.py has the real one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from policy_server import policy_server
from pydantic import ValidationError
from test_rft import SETTINGS, Told, write_prompts
from tiny_models import write_target

from benchmarks.stand_in_vllm import stand_in_vllm, started
from model_ops.answers import VllmEngine, VllmServer
from model_ops.decoding.target import load_runner
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import load_model
from model_ops.operations import rft
from model_ops.operations.rollout_engine import rollout_drafting
from model_ops.reinforcement.rft_settings import RftSettings
from model_ops.speculators.factory import new_draft_model
from model_ops.speculators.registry import speculator_settings

SHORT = {**SETTINGS, "steps": 3, "prompts_per_step": 2, "answers": 4, "held_out_prompts": 0}
LORA = {"method": "lora", "learning_rate": 3e-2}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    write_target(folder / "model", layers=2, vocab_size=300, tied=False)
    write_target(folder / "other", layers=2, vocab_size=300, tied=False, seed=5)
    write_target(folder / "tied", layers=2, vocab_size=300)
    write_prompts(folder / "prompts")
    return folder


def run(start, output, model="model", progress=None, **settings):
    inputs = {"model": start / model, "prompts": start / "prompts"}
    job = Job(operation="rft", inputs=inputs, output=output, settings={**SHORT, **settings})
    return rft.run(job, progress or Progress())


def steps_of(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def asked(server, path):
    return [each["body"] for each in server.requests if each["path"] == path]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_server_answers_with_each_step_s_weights(start, tmp_path, method):
    with policy_server(start / "model", takes_adapters=method == "lora") as server:
        run(start, tmp_path / "out", engine=server.url, temperature=0.7, **(LORA if method == "lora" else {}))
        known = list(server.known)
    assert all(step["canary_gap"] < 1e-4 for step in steps_of(tmp_path / "out"))
    bodies = asked(server, "/v1/completions")
    assert len(bodies) == 3 * 8 and len({body["seed"] for body in bodies}) == 24
    assert len({body["cache_salt"] for body in bodies}) == 3, "another one for each version"
    assert {(body["temperature"], body["top_p"], body["top_k"], body["min_p"]) for body in bodies} == {(0.7, 1, -1, 0)}
    assert {(body["repetition_penalty"], body["ignore_eos"], body["logprobs"]) for body in bodies} == {(1, True, 0)}
    rows = pq.read_table(tmp_path / "out/rollouts.parquet").to_pylist()
    assert [row["version"] for row in rows] == [step for step in range(3) for _ in range(8)]
    if method == "lora":
        names = [body["lora_name"] for body in asked(server, "/v1/load_lora_adapter")]
        assert len(set(names)) == 3 and [body["model"] for body in bodies] == [name for name in names for _ in range(8)]
        gone = [body["lora_name"] for body in asked(server, "/v1/unload_lora_adapter")]
        assert gone == names and known == []
    else:
        assert {body["model"] for body in bodies} == {"m"} and len(asked(server, "/collective_rpc")) == 3


@pytest.mark.parametrize(
    ("faults", "settings", "said"),
    [
        ({"keeps_weights": True}, {}, r"round 1: .* differ from the model's own .* other weights"),
        ({"loads_half": True}, {}, r"round 1: .* other weights"),
        ({"base": "other"}, LORA, r"round 0: .* other weights"),
        (
            {"base": "other", "dtype": "torch.bfloat16"},
            LORA,
            r"round 0: .* on average \(allowed: 0.25\), so it has other weights",
        ),
        ({"forgets_temperature": True}, {"temperature": 0.7}, r"round 0: .* another temperature"),
        ({"forgets_temperature": True, "dtype": "torch.bfloat16"}, {"temperature": 0.7}, r"round 0: .* another temperature"),
        ({"forgets_temperature": True, "dtype": "torch.bfloat16"}, {"temperature": 0.9}, r"round 0: .* another temperature"),
        ({"noise": (0.02, 0.02, 0.2), "dtype": "torch.bfloat16"}, {}, r"round 2: .* on average \(allowed: 0.0\d+\), so it has"),
        ({"reads": 3}, {}, r"did not answer the \d+ tokens that it was asked \(it read 3, end 'length'\)"),
        ({"develops": False}, {}, r"/server_info refuses with HTTP 404: start vLLM 0.32 or newer with VLLM_SERVER_DEV_MODE=1"),
        ({"mode": "raw_logprobs"}, {}, r"before the temperature \(raw_logprobs\): start it with --logprobs-mode processed"),
        ({"takes_adapters": True}, {}, r"has adapters, and gets whole weights here: start it without --enable-lora"),
        ({"takes_adapters": False}, LORA, r"loads no adapters while it runs, .* VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ({"longest": 32}, {}, r"takes 32 tokens, and rft.max_length is 64: start it with --max-model-len 64"),
        ({"fails_at": 2}, {}, r"/collective_rpc refuses with HTTP 500: it must serve a model of the same shape, and see /"),
        ({"fails_at": 2}, LORA, r"/v1/load_lora_adapter refuses with HTTP 500: it must serve the base model"),
    ],
    ids=lambda given: "-".join(map(str, given)) if isinstance(given, dict) else "",
)
def test_a_server_s_fault_stops_the_training_with_a_sentence(start, tmp_path, monkeypatch, faults, settings, said):
    monkeypatch.setattr("model_ops.answers.vllm_engine.RETRIES", 0)
    with (
        policy_server(**{"takes_adapters": settings is LORA, **faults, "base": start / faults.get("base", "model")}) as server,
        pytest.raises(ModelError, match=said),
    ):
        run(start, tmp_path / "out", engine=server.url, **{"learning_rate": 3e-2, **settings})


def test_outside_float32_the_noise_of_the_first_round_is_the_measure_also_of_a_training_that_continues(start, tmp_path):
    with policy_server(start / "model", noise=(0.02,), dtype="torch.bfloat16") as server:
        with pytest.raises(Stopped):
            run(start, tmp_path / "out", progress=Told(stop_at=1), engine=server.url)
        server.noise = (0.2,)
        with pytest.raises(ModelError, match=r"round 1: .* by 0.1\d on average \(allowed: 0.0\d+\), so it has other weights"):
            run(start, tmp_path / "out", engine=server.url)
        server.noise = (0.02,)
        run(start, tmp_path / "out", engine=server.url)
    assert all(1e-3 < step["canary_gap"] < 0.1 for step in steps_of(tmp_path / "out"))


ENDS = set(range(0, 300, 7))


class Sampling:
    temperature, max_new_tokens, batch_size = 1.0, 4, 8


@pytest.mark.parametrize("says", [None, "length", "stop", "abort", "eos"])
def test_an_answer_has_ended_where_it_has_an_end_token_whatever_a_server_says(start, tmp_path, says):
    with policy_server(start / "model", says=says) as server:
        [one] = servers = [VllmServer(server.url, False, 64)]
        one.load = lambda directory: None
        engine = VllmEngine(servers, lambda directory: None, tmp_path / "policy", ENDS, Sampling(), adapters=False)
        engine.sync(0)
        asked = partial(engine.sample, [np.array([3, 4, n], np.int32) for n in range(24)], list(map(str, range(24))), 1)
        if says not in (None, "length"):
            with pytest.raises(ModelError, match=rf"end '{says}'\): switch off whatever changes or stops requests"):
                asked()
            return
        said = asked()
        assert [each.ended for each in said] == [each.tokens[-1] in ENDS for each in said]
        assert {(len(each.tokens) == Sampling.max_new_tokens, each.ended) for each in said} >= {(True, False), (False, True)}


def test_a_server_on_a_cpu_keeps_the_head_of_tied_embeddings(start, tmp_path):
    """Seen in vLLM 0.32: after a reload its log-probabilities are 0.9 nats off."""
    with (
        policy_server(start / "tied") as server,
        pytest.raises(ModelError, match="goes on with the old head when it reloads weights: train with method lora"),
    ):
        run(start, tmp_path / "full", model="tied", engine=server.url)
    with policy_server(start / "tied", takes_adapters=True) as server:
        run(start, tmp_path / "lora", model="tied", engine=server.url, **LORA)


def test_no_server_is_a_sentence(start, tmp_path, monkeypatch):
    monkeypatch.setattr("model_ops.answers.vllm_engine.RETRIES", 0)
    with pytest.raises(ModelError, match=r"http://127.0.0.1:9 does not reply \(NewConnectionError\): start the server"):
        run(start, tmp_path / "out", engine="http://127.0.0.1:9/v1")


def test_servers_share_the_prompts_and_two_versions_of_the_weights_are_kept(start, tmp_path):
    def write(directory):
        (directory / "weights").write_text("x")

    with policy_server(start / "model") as one, policy_server(start / "model") as two:
        servers = [VllmServer(each.url, False, 64) for each in (one, two)]
        for server in servers:
            server.load = lambda directory: loaded.append(sorted(path.name for path in directory.iterdir()))
        (tmp_path / "policy").mkdir()
        (tmp_path / "policy/left over").touch()
        loaded = []
        engine = VllmEngine(servers, write, tmp_path / "policy", {2}, Sampling(), adapters=False)
        for version in range(4):
            engine.sync(version)
        assert loaded == [["weights"]] * 8 and len(list((tmp_path / "policy").iterdir())) == 2
        prompts = [np.array([3, 4, place // 3], np.int32) for place in range(12)]
        said = engine.sample(prompts, [str(place) for place in range(12)], seed=1)
        by_server = [{tuple(body["prompt"]) for body in asked(each, "/v1/completions")} for each in (one, two)]
        assert by_server == [{(3, 4, 0), (3, 4, 2)}, {(3, 4, 1), (3, 4, 3)}]
        assert [len(asked(each, "/v1/completions")) for each in (one, two)] == [6, 6]
        again = engine.sample(prompts[::-1], [str(place) for place in range(12)][::-1], seed=1)
        assert all((a.tokens == b.tokens).all() and a.version == 3 for a, b in zip(said, again[::-1], strict=True))
        with pytest.raises(ModelError, match=r"a prompt has 64 tokens; http://.* takes 1 to 63"):
            engine.sample([np.arange(64, dtype=np.int32)], ["x"], seed=1)
        engine.close()


@pytest.mark.parametrize("settings", [{}, LORA])
def test_its_own_server_gets_the_words_that_it_needs(start, tmp_path, settings):
    python = stand_in_vllm(tmp_path / "stand-in")
    server = {"python": str(python), "arguments": ["--enforce-eager"]}
    with pytest.raises(
        ModelError, match=r"/server_info refuses with HTTP 404: start vLLM 0.32"
    ):  # the stand-in has no such route
        run(start, tmp_path / "out", engine="vllm", server=server, **settings)
    [words] = [each for each in started(tmp_path / "stand-in") if "serve" in each]
    text = " ".join(words)
    assert f"serve {start / 'model'} --served-model-name policy" in text and "--host 127.0.0.1" in text
    assert "--logprobs-mode processed_logprobs" in text and "--generation-config vllm" in text
    assert "--max-model-len 64" in text and "--dtype float32" in text and "--enforce-eager" in text
    assert ("--enable-lora --max-lora-rank 16 --max-loras 3" in text) == bool(settings)
    with pytest.raises(ModelError, match=r"rft.server.python: /nowhere runs no Python that has vllm"):
        run(start, tmp_path / "out", engine="vllm", server={"python": "/nowhere"}, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "sglang"}, "in_process"),
        ({"engine": []}, "it is in_process, vllm, or the address"),
        ({"engine": 7}, "it is in_process, vllm, or the address"),
        ({"engine": "http://user:secret@host"}, "holds no credentials"),
        ({"server": {}}, "leave server out"),
        ({"drafter": "ngram", "max_staleness": 1}, "leave engine and drafter out"),
        ({"engine": "vllm", "drafter": "suffix"}, "leave drafter out"),
        ({"engine": "vllm", "server": {"arguments": ["--logprobs_mode=raw_logprobs"]}}, "take it out"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        RftSettings.model_validate({"grader": "verifier", **settings})


def test_one_address_is_a_list_of_one():
    assert RftSettings.model_validate({"grader": "verifier", "engine": "http://a:1/"}).engine == ["http://a:1"]


def write_drafter(start, folder, target="model"):
    runner = load_runner(start / target)
    settings = speculator_settings(architecture="eagle3").resolved()
    new_draft_model(settings, runner, torch.arange(runner.embedding.shape[0])).save(folder, 3)
    return folder


def test_a_training_with_drafters_learns_from_the_same_answers(start, tmp_path):
    write_target(tmp_path / "deep", layers=8, vocab_size=300)
    write_target(tmp_path / "narrow", layers=8, vocab_size=300, hidden_size=24)
    write_drafter(tmp_path, tmp_path / "drafter", "deep")
    (tmp_path / "model").symlink_to(tmp_path / "deep")
    (tmp_path / "prompts").symlink_to(start / "prompts")
    learnt = {}
    for name in (None, "suffix", str(tmp_path / "drafter")):
        output = tmp_path / Path(name or "none").name
        output = output.with_name(f"out-{output.name}")
        run(tmp_path, output, drafter=name, batch_size=8, steps=2)
        assert all(step["canary_gap"] < 1e-4 for step in steps_of(output)), name
        rows = pq.read_table(output / "rollouts.parquet").to_pylist()
        learnt[name] = [(row["row_id"], row["version"], row["tokens"], row["grade"]) for row in rows]
    assert learnt[None] == learnt["suffix"]
    model = load_model(tmp_path / "narrow")
    with pytest.raises(ModelError, match=r"rft.drafter: .*drafter does not draft for narrow: "):
        rollout_drafting(str(tmp_path / "drafter"), model, tmp_path / "narrow")
    drafting = rollout_drafting(str(tmp_path / "drafter"), load_model(tmp_path / "deep"), tmp_path / "deep")
    assert drafting.most == 8 and 0 < drafting.cost < 1
