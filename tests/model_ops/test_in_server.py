"""The models of a release in a server: what it says is compared with own layers, and what goes wrong is a result with a reason.

The server is a stand-in whose answers and log-probabilities are written here, from full forward passes without any code of the
evaluation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from stand_in_server import key_of, living, stand_in, started
from tiny_models import write_dataset, write_target

from model_ops.decoding.prompts import read_prompts
from model_ops.drafting.drafts import NO_DRAFTING, Drafting
from model_ops.evaluation import report as evaluate
from model_ops.evaluation.in_server import in_server
from model_ops.evaluation.measurement import find, measured_draftings
from model_ops.evaluation.served_forms import held_out_texts
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import load_tokenizer
from model_ops.operations import generate, quantize
from model_ops.quantization.quantized_model import load_quantized
from model_ops.speculators import operation as speculator
from resources.manifests.manifest import describe_files, files_digest
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("in server")]

NEW_TOKENS = 6
FLIPPED = 2e-3
"""Nats, on average over the rows: an activation that lies between two codes of int8 may go to either, by the order of a sum."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("in-server")
    write_target(root / "float", layers=4)
    write_dataset(root / "dataset", rows=12)
    quantize.run(Job(operation="quantize", output=root / "int8", inputs={"model": root / "float"}), Progress())
    generate.run(
        Job(
            operation="generate",
            output=root / "answers",
            settings={"max_new_tokens": 6},
            inputs={"target": root / "int8", "dataset": root / "dataset"},
        ),
        Progress(),
    )
    speculator.run(
        Job(
            operation="speculator",
            output=root / "speculator",
            inputs={"target": root / "int8", "dataset": root / "answers"},
            settings={"steps": 1, "tokens_per_step": 256, "learning_rate": 1e-3, "max_length": 256, "ttt_steps": 2},
        ),
        Progress(),
    )
    return root


@pytest.fixture(scope="module")
def says(place):
    """What a server of the int8 model says: greedy answers to the held-out prompts, and log-probabilities of the rows."""
    model = load_quantized(place / "int8", torch.float32).eval()

    @torch.no_grad()
    def logs(ids):
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)

    answers, logprobs = {}, {}
    for prompt in read_prompts(place / "dataset", "test", load_tokenizer(place / "int8")):
        ids = list(prompt.ids)
        for _ in range(NEW_TOKENS):
            ids.append(int(logs(ids)[-1].argmax()))
        answers[key_of(prompt.ids)] = ids[len(prompt.ids) :]
    for text in held_out_texts(job(place, place), settings("python")):
        ids = text.input_ids.tolist()
        logprobs[key_of(ids)] = logs(ids)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()
    return {"answers": answers, "logprobs": logprobs}


def settings(python, **changes):
    return EvaluateSettings(
        num_speculative_tokens=2,
        server={
            "python": str(python),
            "max_new_tokens": NEW_TOKENS,
            "concurrencies": [1, 4],
            "start_s": 20,
            "unquantized": False,
            "arguments": ["--seed", "0"],
            "drafting": {"methods": []},
            **changes,
        },
    )


def job(place, output, *roles, **inputs):
    every = {"dataset": place / "dataset", "target": place / "int8", "reference": place / "float"}
    return Job(operation="evaluate", output=output, inputs={**every, **{role: place / role for role in roles}, **inputs})


def asked(place, output, python, *roles, **changes):
    output.mkdir(exist_ok=True)
    return in_server(job(place, output, *roles), settings(python, **changes), Progress(), {"ngram": 4})


def test_a_server_that_computes_as_own_layers_agrees_in_every_form(place, says, tmp_path):
    python = stand_in(tmp_path, **says)
    found = asked(place, tmp_path / "report", python, "speculator", unquantized=True)
    assert found.not_measured == {} and living(tmp_path) == []
    assert {name: form["loaded"] for name, form in found.summary["forms"].items()} == {
        "reference": True,
        "target": True,
        "target with drafter": True,
    }
    distance = find(found.measurements, "served_distance", of="target", against="own layers")
    assert 0 <= distance.value < FLIPPED and distance.n == 12 and distance.low <= distance.value <= distance.high
    for form in ("target", "target with drafter"):
        agreement = find(found.measurements, "served_agreement", of=form)
        assert (agreement.value, agreement.n, agreement.counted) == (1.0, 12, "prompts")
    assert found.summary["samples"][0]["text"] == "four" and found.summary["version"] == "0.0.1"
    for form in found.speed["forms"].values():
        assert set(form["tokens_per_second"]) == {"1", "4"} and form["memory_mb"] > 1
        assert all(0 < rate["lowest"] <= rate["median"] <= rate["highest"] for rate in form["tokens_per_second"].values())
    assert set(found.speed["ratios"]) == {"target", "target with drafter"}
    commands = started(tmp_path)
    assert [words[3] for words in commands] == [str(place / "float"), str(place / "int8"), str(place / "int8")]
    assert all(words[4:6] == ["--served-model-name", "served"] and "--seed" in words for words in commands)
    drafted = json.loads(commands[2][commands[2].index("--speculative-config") + 1])
    assert drafted["model"] == str(place / "speculator") and drafted["num_speculative_tokens"] == 2
    assert "--speculative-config" not in commands[1]


@pytest.mark.slow
def test_the_served_model_is_measured_with_each_drafting(place, says, tmp_path, monkeypatch):
    """The lookups at their own lengths, the drafter with fewer tokens; greedy answers that differ are told."""
    # a busy machine's noise would promise more from a K that varies: the next test has it
    monkeypatch.setattr("model_ops.evaluation.in_server.varying_drafting", lambda measured, can_vary: None)
    python = stand_in(tmp_path, **says)
    found = asked(place, tmp_path / "report", python, "speculator", drafting={"methods": ["drafter", "ngram", "suffix"]})
    names = [
        "target",
        "target with drafter",
        "target with n-gram lookup, K = 4",
        "target with suffix lookup, K = 2",
        "target with drafter, K = 1",
    ]
    assert list(found.summary["forms"]) == names and found.not_measured == {}
    configs = [
        json.loads(words[words.index("--speculative-config") + 1]) if "--speculative-config" in words else None
        for words in started(tmp_path)
    ]
    assert [config and (config["method"], config["num_speculative_tokens"], "model" in config) for config in configs] == [
        None,
        ("eagle3", 2, True),
        ("ngram", 4, False),
        ("suffix", 2, False),
        ("eagle3", 1, True),
    ]
    measured = measured_draftings(found.speed["forms"])
    assert [f"target with {each.drafting.label}" for each in measured[2:]] == names[2:] and measured[0].drafting == NO_DRAFTING
    assert all(set(each.rates) == {1, 4} and each.rates[4].p99_s > 0 for each in measured)
    assert found.summary["greedy_differences"] == {
        name: {"prompts": 12, "identical": 12, "ties": 0, "others": []} for name in names[1:]
    }


def test_k_by_batch_size_is_measured_where_it_promises_more(place, says, tmp_path, monkeypatch):
    python = stand_in(tmp_path, **says)
    proposed = Drafting(method="ngram", num_speculative_tokens=4, by_batch_size=((1, 1, 4), (2, 4, 0)))
    monkeypatch.setattr("model_ops.evaluation.in_server.varying_drafting", lambda measured, can_vary: proposed)
    found = asked(place, tmp_path / "report", python)
    assert list(found.summary["forms"]) == ["target", f"target with {proposed.label}"]
    config = json.loads(started(tmp_path)[1][started(tmp_path)[1].index("--speculative-config") + 1])
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 4], [2, 4, 0]] and config["num_speculative_tokens"] == 4


def test_speed_is_measured_as_the_traffic_is_sampled(place, says, tmp_path):
    """generation_config.json says how requests without parameters are sampled."""
    sampled = tmp_path / "sampled"
    shutil.copytree(place / "int8", sampled)
    (sampled / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "eos_token_id": 2}))
    bodies = tmp_path / "bodies"
    (tmp_path / "report").mkdir()
    python = stand_in(tmp_path, **says, writes=str(bodies))
    given = job(place, tmp_path / "report", target=sampled)
    form = in_server(given, settings(python), Progress()).speed["forms"]["target"]
    assert set(form["as_logged"]["rates"]) == {"1", "4"} and form["as_logged"]["rates"] != form["tokens_per_second"]
    seen = [json.loads(line) for line in bodies.read_text().splitlines()]
    fixed = [body for body in seen if body.get("ignore_eos")]
    assert [(body["temperature"], body["top_p"]) for body in fixed[:40]] == [(0.0, 1)] * 40
    assert [(body["temperature"], body["top_p"]) for body in fixed[40:]] == [(0.6, 0.9)] * 40


def test_a_server_that_computes_something_else_is_measured_by_definition(place, says, tmp_path):
    """Log-probabilities half a nat off, and every second answer another than the likeliest."""
    texts = {key_of(text.input_ids): text for text in held_out_texts(job(place, place), settings("python"))}
    shifted, off = {}, []
    for number, (key, values) in enumerate(says["logprobs"].items()):
        shifted[key] = [value + 0.25 * (number % 3) for value in values]
        off += [0.25 * (number % 3)] * int(texts[key].targets[1:].sum())
    answers = {
        key: [(tokens[0] + 7) % 300, *tokens[1:]] if number % 2 else tokens
        for number, (key, tokens) in enumerate(says["answers"].items())
    }
    found = asked(place, tmp_path / "report", stand_in(tmp_path, logprobs=shifted, answers=answers))
    distance = find(found.measurements, "served_distance")
    assert distance.value == pytest.approx(np.mean(off), abs=FLIPPED)
    assert found.summary["median_distance"] == pytest.approx(np.median(off), abs=1e-4)
    assert distance.low < distance.value < distance.high
    agreement = find(found.measurements, "served_agreement", of="target")
    assert agreement.value == pytest.approx(agrees(place, answers))
    assert 0.3 < agreement.value < 0.95 and agreement.low < agreement.value < agreement.high


@torch.no_grad()
def agrees(place, answers):
    """Share of answer tokens that are at most 0.25 nats behind the likeliest, one forward pass an answer."""
    model = load_quantized(place / "int8", torch.float32).eval()
    near = []
    for key, tokens in answers.items():
        prompt = list(map(int, key.split()))
        logs = torch.log_softmax(model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].double(), -1)
        near += (logs.amax(-1) - logs.gather(1, torch.tensor(tokens)[:, None])[:, 0] <= 0.25).tolist()
    return np.mean(near)


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (
            {"exits": "ValueError: no kernel for this layer"},
            "vllm did not load it: it ended with exit code 1 before it could be asked: ValueError: no kernel for this layer",
        ),
        pytest.param(
            {"late_s": 600},
            "vllm did not load it: it could not be asked after 1 s: the server starts",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"html": True},
            "vllm loaded it and did not answer as it should: http://127.0.0.1:PORT lists no model at "
            "/v1/models: is it an OpenAI-compatible server? (server.log in the report's folder has what it wrote)",
            marks=pytest.mark.thorough,
        ),
        ({"dies_at": 3}, "vllm loaded it and ended while it was asked (server.log in the report's folder has what it wrote)"),
        (
            {"longest": 8},
            "none of 12 test prompts fits into the 2 tokens that the server leaves to a prompt: raise its longest context "
            "in evaluation.server.arguments, or lower evaluation.server.max_new_tokens",
        ),
    ],
)
def test_what_goes_wrong_is_a_result_that_quotes_no_users_text(place, says, tmp_path, behaviour, why):
    python = stand_in(tmp_path, **says, **behaviour)
    found = asked(place, tmp_path / "report", python, start_s=1 if "late_s" in behaviour else 20)
    [(name, said)] = found.not_measured.items()
    port = started(tmp_path)[0][-1]
    assert (name, said.replace(port, "PORT")) == ("target in a server", why) and living(tmp_path) == []
    assert found.measurements == [] and found.summary["forms"] == {"target": {"loaded": False}} and found.speed == {}
    assert not list((tmp_path / "report/.work").glob("server-*"))  # so that the next run tries again


def test_a_drafter_is_not_tried_on_a_target_that_did_not_load(place, says, tmp_path):
    python = stand_in(tmp_path, **says, exits="ValueError: no kernel")
    found = asked(place, tmp_path / "report", python, "speculator")
    assert len(started(tmp_path)) == 1 and len(set(found.not_measured.values())) == 1
    assert set(found.not_measured) == {"target in a server", "target with drafter in a server"}


def test_a_drafter_that_does_not_load_takes_nothing_from_the_target(place, says, tmp_path):
    python = stand_in(tmp_path, **says, exits="ValueError: unknown drafter", only="--speculative-config")
    found = asked(place, tmp_path / "report", python, "speculator")
    assert {each.of for each in found.measurements} == {"target"}
    assert list(found.not_measured) == ["target with drafter in a server"]


def test_without_token_ids_only_the_answers_are_not_compared(place, says, tmp_path):
    found = asked(place, tmp_path / "report", stand_in(tmp_path, **says, without_ids=True))
    assert [each.what for each in found.measurements] == ["served_distance"]
    assert list(found.not_measured) == ["served_agreement of target"] and found.summary["forms"]["target"]["loaded"]


@pytest.mark.slow
def test_the_report_of_an_evaluation_with_a_server(place, says, tmp_path):
    """A form that does not load takes nothing from the others; a second run asks it alone again; figures of one run do not
    enter the report's digest."""
    python = stand_in(tmp_path, **says, exits="ValueError: too large", only=str(place / "float"))
    given = job(place, tmp_path / "report").model_copy(
        update={
            "settings": {
                "prompts": 1,
                "max_new_tokens": 2,
                "temperatures": [0.0],
                "num_speculative_tokens": 1,
                "server": settings(python, unquantized=True).server.model_dump(),
            }
        }
    )
    numbers = evaluate.run(given, Progress())
    report, speed = (json.loads((tmp_path / "report" / name).read_text()) for name in ("report.json", "speed.json"))
    assert numbers["loads_in_server_target"] and not numbers["loads_in_server_reference"]
    assert (
        numbers["served_agreement_target"] == 1.0
        and numbers["served_distance_target"] < FLIPPED
        and numbers["served_distance_median"] < 1e-5
    )
    rates = speed["in_server"]["forms"]["target"]["tokens_per_second"]
    assert numbers["tokens_per_second_served_target_c4"] == rates["4"]["median"] and speed["in_server"]["ratios"] == {}
    assert list(report["not_measured"]) == ["reference in a server"] and numbers["recovery"] > 0.9
    digest = files_digest(describe_files(tmp_path / "report"))
    assert evaluate.run(given, Progress()) == numbers and len(started(tmp_path)) == 3
    (tmp_path / "report/speed.json").write_text("{}")
    assert files_digest(describe_files(tmp_path / "report")) == digest


def test_a_server_that_is_not_installed_is_refused_before_anything_is_measured(place, tmp_path):
    given = job(place, tmp_path / "report").model_copy(update={"settings": {"server": {"python": "/bin/false"}}})
    with pytest.raises(ModelError, match=r"evaluation.server.python: /bin/false runs no Python that has vllm"):
        evaluate.run(given, Progress())
    assert not (tmp_path / "report").exists()


def test_a_stop_ends_the_server_and_is_no_result(place, says, tmp_path):
    class StopsOnceStarted(Progress):
        def stop_if_requested(self):
            if started(tmp_path):
                raise Stopped

    (tmp_path / "report").mkdir()
    with pytest.raises(Stopped):
        in_server(job(place, tmp_path / "report"), settings(stand_in(tmp_path, **says, late_s=600)), StopsOnceStarted())
    assert living(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("stop", thorough_except(["kill"], ["terminate", "kill"]))
def test_a_worker_that_is_ended_leaves_no_server(place, says, tmp_path, stop):
    python = stand_in(tmp_path, **says, late_s=600)
    given = job(place, tmp_path / "report").model_copy(
        update={
            "settings": {
                "prompts": 1,
                "max_new_tokens": 2,
                "temperatures": [0.0],
                "server": settings(python, start_s=600).server.model_dump(),
            }
        }
    )
    (tmp_path / "job.json").write_text(given.model_dump_json())
    worker = subprocess.Popen(
        [sys.executable, "-m", "model_ops.worker", tmp_path / "job.json"], stdout=subprocess.PIPE, text=True
    )
    while not started(tmp_path):
        time.sleep(0.1)
    getattr(worker, stop)()
    events = [json.loads(line)["event"] for line in worker.communicate(timeout=60)[0].splitlines()]
    assert events[-1] == "stopped" if stop == "terminate" else "stopped" not in events
    until = time.monotonic() + 30
    while living(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert living(tmp_path) == []
