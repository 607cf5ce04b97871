"""What is measured at a server: latency, tokens/s, its draft counters, and refusals in one sentence."""

import pytest
from fake_vllm import fake_vllm

from model_ops.answering.served import ServedModel, measure_served, read_counters
from model_ops.jobs.job import ModelError


def test_token_ids_go_in_and_come_out_and_only_this_runs_drafts_are_counted():
    with fake_vllm(latency_s=0.02) as (url, seen), ServedModel(url + "/v1/", api_key="secret") as server:
        measured = measure_served(server, [[1, 2], [3]], concurrency=1, max_tokens=6, temperature=1.0, seed=10, ignore_eos=True)
    assert [request["path"] for request in seen] == ["/v1/completions"] * 2
    assert seen[0]["body"] == {
        "model": "m",
        "temperature": 1.0,
        "max_tokens": 6,
        "seed": 10,
        "ignore_eos": True,
        "prompt": [1, 2],
        "return_token_ids": True,
    }
    assert seen[1]["body"]["seed"] == 11 and seen[1]["headers"]["Authorization"] == "Bearer secret"
    assert measured.replies[0].token_ids == [5] * 6 and measured.tokens == 12
    counted = measured.acceptance
    assert (counted.drafts, counted.drafted, counted.accepted, counted.accepted_at) == (6, 12, 6, [4, 2])
    assert counted.tau == 2.0
    assert 0.02 <= measured.latency_s["p50"] <= measured.latency_s["p90"] <= measured.latency_s["p99"]
    assert measured.tokens_per_second == pytest.approx(12 / measured.seconds) and measured.seconds >= 0.04


def test_messages_and_tools_are_sent_as_a_chat_several_at_a_time():
    chat, tool = [{"role": "user", "content": "2 and 2"}], {"type": "function", "function": {"name": "add"}}
    with fake_vllm(latency_s=0.2, drafting=False) as (url, seen), ServedModel(url, model="mine") as server:
        measured = measure_served(server, [chat] * 6, tools=[[tool], *[None] * 5], concurrency=6, max_tokens=9)
    assert {request["path"] for request in seen} == {"/v1/chat/completions"}
    assert sum("tools" in request["body"] for request in seen) == 1 and seen[0]["body"]["model"] == "mine"
    assert measured.acceptance is None and measured.replies[0].text == "four" and measured.replies[0].token_ids is None
    assert measured.seconds < 6 * 0.2


def test_what_cannot_be_measured_is_said_in_one_sentence():
    with pytest.raises(ModelError, match="begins with http://"):
        ServedModel("localhost:8000")
    with pytest.raises(ModelError, match="is the server running"), ServedModel("http://127.0.0.1:9") as server:
        measure_served(server, [[1]], concurrency=1, max_tokens=2)
    with fake_vllm(status=500) as (url, _), ServedModel(url) as server, pytest.raises(ModelError, match="HTTP 500"):
        measure_served(server, [[1]], concurrency=1, max_tokens=2)


def test_counters_add_up_over_engines():
    lines = [
        f'vllm:spec_decode_num_{name}_total{{engine="{engine}"{more}}} {value}'
        for engine in (0, 1)
        for name, more, value in (
            ("drafts", "", 4),
            ("draft_tokens", "", 1.2e1),
            ("accepted_tokens", "", 5),
            ("accepted_tokens_per_pos", ',position="1"', 2),
            ("accepted_tokens_per_pos", ',position="0"', 3),
        )
    ]
    counted = read_counters("\n".join(lines))
    assert (counted.drafts, counted.drafted, counted.accepted, counted.accepted_at) == (8, 24, 10, [6, 4])
    assert read_counters("vllm:num_requests_running 3\n") is None
