"""The smoke set against a server that does what it should, and against servers that do not."""

import contextlib
import json
import socket
import subprocess
import time

import pytest
import urllib3

from benchmarks.stand_in_vllm import stand_in_vllm
from model_ops.evaluation.smoke.answers import SmokePrompt
from model_ops.evaluation.smoke.smoke_set import TriedServer, failures, run_smoke_set
from model_ops.jobs import ModelError

ROW = SmokePrompt(
    "row-1",
    [{"role": "user", "content": "a secret"}],
    request={"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "required": ["answer"]}}}},
)
AGREES = {"tokens": 100, "agreed": 99, "nll": 40.0, "prompts": 2, "same_prompts": 2}


@contextlib.contextmanager
def server(folder, **behaviour):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    python = stand_in_vllm(folder, **behaviour)
    process = subprocess.Popen([python, "serve", "--speculative-config", "{}", "--port", str(port)])
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                urllib3.request("GET", f"http://127.0.0.1:{port}/health", retries=False)
                break
            time.sleep(0.02)
        yield TriedServer(f"http://127.0.0.1:{port}", "served", drafts=True, timeout_s=5)
    finally:
        process.kill()
        process.wait()


def found_in(folder, scores=lambda answers: AGREES, rows=(ROW,), **behaviour):
    with server(folder, **behaviour) as tried:
        return run_smoke_set(tried, [SmokePrompt("row-2", [{"role": "user", "content": "another secret"}])], rows, scores)


def test_a_good_server_passes_every_check(tmp_path):
    asked = []
    found = found_in(tmp_path, lambda answers: asked.extend(answers) or AGREES)
    assert failures(found) == [] and all(finding.passed for finding in found)
    assert [finding.name for finding in found] == [
        "answers",
        "stream",
        "stop",
        "json schema",
        "schema rows",
        "tool call",
        "regex",
        "grammar",
        "long prompt",
        "drafting",
        "template",
        "text",
    ]
    assert [answer["row_id"] for answer in asked] == ["built-in", "row-2"]
    assert asked[0]["prompt_ids"] == [5, 6, 7] and len(asked[0]["ids"]) == len(asked[0]["text"].split())
    assert found[-1].said == ("99.0% of 100 greedy tokens equal those of the target's own layers, perplexity 1.49")
    assert "secret" not in json.dumps([finding.said for finding in found])


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (
            {"ignores": ["json"]},
            [
                "json schema: an answer breaks the constraint",
                "schema rows: row row-1: the answer breaks the schema of its request",
            ],
        ),
        ({"ignores": ["tools"]}, ["tool call: an answer breaks the constraint"]),
        (
            {"ignores": ["regex", "grammar"]},
            ["regex: an answer breaks the constraint", "grammar: an answer breaks the constraint"],
        ),
        ({"ignores": ["stop"]}, ["stop: row built-in: the answer goes on after its stop text"]),
        ({"without_drafts": True}, ["drafting: it was started with a drafter and made no draft"]),
        ({"refuses_long": 500}, ["long prompt: a prompt longer than its context is answered with HTTP 500"]),
        ({"html": True}, ["answers: row built-in: its answer is no JSON"]),
    ],
)
def test_what_a_server_does_wrong_is_named(tmp_path, behaviour, said):
    assert failures(found_in(tmp_path, **behaviour)) == said


def test_a_server_that_says_something_else_than_its_model_is_found_out(tmp_path):
    nonsense = {"tokens": 100, "agreed": 7, "nll": 900.0, "prompts": 2, "same_prompts": 1}
    assert failures(found_in(tmp_path, lambda answers: nonsense)) == [
        "template: 1 of 2 prompts have the tokens that the target was trained with",
        "text: 7.0% of 100 greedy tokens equal those of the target's own layers, perplexity 8103.08: at least 80% have to agree",
    ]


def too_large(answers):
    raise ModelError("not compared: too large")


@pytest.mark.parametrize(
    ("gap", "passed", "said"),
    [
        (0.1, True, "100.0% of 32 greedy tokens equal those of the server when it reads its own answers, perplexity 2.72"),
        (
            3.0,
            False,
            "0.0% of 32 greedy tokens equal those of the server when it reads its own answers, perplexity 2.72: at least 80% "
            "have to agree",
        ),
        (None, None, "it gives no log-probabilities of a prompt (echo, logprobs)"),
    ],
)
def test_a_target_that_is_too_large_is_compared_with_the_server_s_own_reading(tmp_path, gap, passed, said):
    found = found_in(tmp_path, too_large, rows=(), gap=gap)
    assert [(finding.name, finding.passed, finding.said) for finding in found[-2:]] == [
        ("own layers", None, "not compared: too large"),
        ("text", passed, said),
    ]


def test_a_server_without_a_parser_of_tool_calls_is_told_apart(tmp_path):
    found = {finding.name: finding for finding in found_in(tmp_path, without_parser=True)}
    assert found["tool call"].passed is None and "without --tool-call-parser" in found["tool call"].said
    assert failures(list(found.values())) == []


def test_prompts_that_do_not_fit_the_server_s_context_are_left_out(tmp_path):
    long, short = (SmokePrompt(f"row-{size}", [{"role": "user", "content": "x" * size}]) for size in (900, 9))
    with server(tmp_path) as tried:
        found = run_smoke_set(tried, [long, *[short] * 8], [SmokePrompt("row-900", long.messages, request=ROW.request)], None)
    assert failures(found) == [] and found[0].said == "5 prompts; 1 more did not fit its context"
    assert [finding.passed for finding in found if finding.name == "schema rows"] == [None]


def test_a_server_without_constraints_is_asked_only_what_it_takes(tmp_path):
    with server(tmp_path) as tried:
        plain = TriedServer(tried.url, "served", "transformers")
        found = run_smoke_set(plain, [], [ROW], lambda answers: {**AGREES, "prompts": 0})
    assert {finding.name: finding.passed for finding in found} == {
        "answers": True,
        "stream": True,
        "stop": True,
        "constraints": None,
        "long prompt": None,
        "text": True,
    }


def test_sglang_is_asked_for_what_it_shares_with_vllm(tmp_path):
    with server(tmp_path, ignores=["regex", "grammar", "tools"]) as tried:
        found = run_smoke_set(TriedServer(tried.url, "served", "sglang"), [], [ROW], None)
    assert failures(found) == [] and [finding.name for finding in found if finding.passed is None] == [
        "tool call, regex, grammar"
    ]


def test_a_server_that_is_gone_fails_at_once(tmp_path):
    found = run_smoke_set(TriedServer("http://127.0.0.1:9", "served", timeout_s=2), [], [], None)
    assert failures(found) == ["answers: row built-in: it did not answer /v1/chat/completions (NewConnectionError)"]
