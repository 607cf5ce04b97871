"""Answers over HTTP: ids in, ids out, parameters as served; a server that cannot is told apart from one that is slow."""

from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loopback import loopback
from tiny_models import write_dataset, write_target

from model_ops.completions.answerers import CompletionsEndpoint, CompletionTokens
from model_ops.completions.sampling_parameters import Sampling, sampling_of
from model_ops.completions.served_answers import EarlierAnswers
from model_ops.completions.settings import EndpointSettings
from model_ops.decoding.sampling import Truncation
from model_ops.files.digests import target_digest
from model_ops.jobs import Job, ModelError, Progress
from model_ops.operations import generate


@pytest.fixture
def server():
    """A completions server: `server.behave(body) -> (status, reply)`; `server.asked` holds the requests."""

    served = SimpleNamespace(
        listed={"id": "tutor"},
        behave=lambda body: (
            200,
            {
                "choices": [
                    {
                        "token_ids": [len(body["prompt"]) % 7 + 3, 9, 2][: body["max_tokens"]],
                        "prompt_token_ids": body["prompt"],
                        "finish_reason": "stop" if body["max_tokens"] > 2 else "length",
                    }
                ]
            },
        ),
    )
    with loopback(lambda body, number: served.behave(body), lambda path: (200, {"data": [served.listed]})) as (address, seen):
        served.base_url, served.asked = f"{address}/v1/", seen
        yield served


def settings_of(server, **changes):
    return EndpointSettings(base_url=server.base_url, **{"model": "tutor", "retries": 2, "timeout_s": 5, **changes})


def test_a_request_says_what_the_log_said(server, monkeypatch):
    monkeypatch.setenv("TUTOR_KEY", "k1")
    sampling = sampling_of(
        {"temperature": 0.4, "top_k": 20, "presence_penalty": 1.0, "frequency_penalty": 0, "max_tokens": 7, "user": "x"},
        Sampling(),
    )
    with CompletionsEndpoint(settings_of(server, api_key_env="TUTOR_KEY")) as endpoint:
        endpoint.check()
        assert endpoint.answer([5, 6, 7], sampling, 7) == CompletionTokens([6, 9, 2], "stop")
        assert endpoint.answer([5, 6, 7], Sampling(), 2) == CompletionTokens([6, 9], "length")
    first, second = (request["body"] for request in server.asked)
    assert first == {
        "model": "tutor",
        "prompt": [5, 6, 7],
        "max_tokens": 7,
        "temperature": 0.4,
        "top_p": 1.0,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1,
        "presence_penalty": 1.0,
        "return_token_ids": True,
    }
    assert server.asked[0]["headers"]["Authorization"] == "Bearer k1"
    # a server takes what is not said from its generation_config.json
    assert (second["top_k"], second["min_p"], second["repetition_penalty"]) == (-1, 0.0, 1)


def test_no_more_is_asked_for_than_the_server_has_room_for(server, tmp_path):
    """Prompts that fit are answered within what is left; one that does not is left out, and the others are not lost."""
    write_target(tmp_path / "target")
    write_dataset(tmp_path / "dataset", rows=8)
    whole, longest = server.behave, 40
    server.listed = {"id": "tutor", "max_model_len": longest}
    server.behave = lambda body: whole(body) if len(body["prompt"]) + body["max_tokens"] <= longest else (400, {})
    metrics = generate.run(
        Job(
            operation="generate",
            output=tmp_path / "out",
            inputs={"target": tmp_path / "target", "dataset": tmp_path / "dataset"},
            settings={"max_new_tokens": 30, "endpoint": settings_of(server).model_dump()},
        ),
        Progress(),
    )
    rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert rows and metrics["prompts_too_long"] > 0 and all(len(row["prompt_token_ids"]) < longest for row in rows)


def test_a_busy_server_is_asked_again_and_others_are_refused_in_words(server):
    replies = [(503, {}), (200, {"choices": [{"token_ids": [4], "finish_reason": "stop"}]})]
    server.behave = lambda body: replies.pop(0)
    with CompletionsEndpoint(settings_of(server)) as endpoint:
        assert endpoint.answer([1], Sampling(), 4).tokens == [4]
        for reply, reason in [
            ((200, {"choices": [{"text": "hello", "finish_reason": "stop"}]}), "returned no token ids.*0.10.2"),
            ((200, {"choices": []}), "did not reply with a completion"),
            ((400, {}), "HTTP 400"),
            ((200, {"choices": [{"token_ids": [4], "prompt_token_ids": [0, 1]}]}), "changed a prompt of 1 token ids into 2"),
        ]:
            replies[:] = [reply]
            with pytest.raises(ModelError, match=reason):
                endpoint.answer([1], Sampling(), 4)
    with (
        CompletionsEndpoint(settings_of(server, model="other")) as endpoint,
        pytest.raises(ModelError, match="serves tutor, not"),
    ):
        endpoint.check()
    with pytest.raises(ModelError, match="the environment variable NO_SUCH_KEY holds no key"):
        CompletionsEndpoint(settings_of(server, api_key_env="NO_SUCH_KEY"))
    gone = EndpointSettings(base_url="http://127.0.0.1:9/v1", model="tutor", retries=0, timeout_s=1)
    with CompletionsEndpoint(gone) as endpoint, pytest.raises(ModelError, match="does not reply"):
        endpoint.check()


def test_a_dataset_is_answered_by_the_endpoint_and_continued_where_it_failed(server, tmp_path, monkeypatch):
    monkeypatch.setattr("model_ops.completions.answerers.CHUNK_BATCHES", 1)
    write_target(tmp_path / "target")
    write_dataset(tmp_path / "dataset", rows=9)
    whole = server.behave
    server.behave = lambda body: whole(body) if len(server.asked) < 7 else (400, {})
    job = Job(
        operation="generate",
        output=tmp_path / "out",
        inputs={"target": tmp_path / "target", "dataset": tmp_path / "dataset"},
        settings={"endpoint": settings_of(server, concurrency=2).model_dump()},
    )
    with pytest.raises(ModelError, match="HTTP 400"):
        generate.run(job, Progress())
    server.behave = whole
    before = len(server.asked)
    metrics = generate.run(job, Progress())
    assert metrics["train_rows"] == 12 and metrics["validation_rows"] == 3
    assert 15 - 6 <= len(server.asked) - before < 15, "finished chunks are not asked again"
    rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert all(row["answer_token_ids"] == [len(row["prompt_token_ids"]) % 7 + 3, 9, 2] for row in rows)


def test_parameters_as_logs_have_them():
    defaults = Sampling(temperature=0.6, truncation=Truncation(top_p=0.95))
    for params in (None, "", "not json", "[]", '{"temperature": null}', '{"temperature": "hot"}', '{"temperature": true}'):
        assert sampling_of(params, defaults) == defaults, params
    found = sampling_of(
        '{"temperature": 0, "top_p": 1, "top_k": -1, "stop": ["x"], "n": 2, "logit_bias": {}, '
        '"response_format": {"type": "json_object"}, "tool_choice": "auto", "max_completion_tokens": 9}',
        defaults,
    )
    assert found.temperature == 0 and found.truncation == Truncation() and found.max_tokens == 9
    assert found.other_names == ["response_format", "stop"]
    assert sampling_of({"top_p": 0, "temperature": 1e-7}, defaults).temperature == 0
    assert 0 < sampling_of({"top_p": 0}, defaults).truncation.top_p < 1e-5, "the likeliest token alone"
    assert sampling_of({"tool_choice": {"type": "function"}}, defaults).other_names == ["tool_choice"]


SAMPLING = Sampling(temperature=0.7)


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "target"


@pytest.fixture
def directory(tmp_path, target):
    (tmp_path / "answers").mkdir()
    rows = pa.table(
        {
            "row_id": ["a", "b"],
            "turn": pa.array([0, 1], pa.int32()),
            "origin": ["generated", "served"],
            "prompt_token_ids": [[1, 2], [3]],
            "answer_token_ids": [[7, 8], [9]],
            "finish_reason": ["stop", "length"],
            "sampling": [SAMPLING.as_json()] * 2,
        }
    )
    pq.write_table(
        rows.replace_schema_metadata({"target_digest": target_digest(target)}), tmp_path / "answers" / "train.parquet"
    )
    return tmp_path / "answers"


def test_the_same_prompt_has_its_answer(directory, target):
    found = EarlierAnswers.read(directory, target).reply("a", 0, [1, 2], SAMPLING)
    assert (found.tokens, found.finish_reason) == ([7, 8], "stop")


def test_another_prompt_turn_or_sampling_has_none_and_served_answers_come_from_the_log(directory, target):
    earlier = EarlierAnswers.read(directory, target)
    assert earlier.reply("a", 0, [1, 2, 3], SAMPLING) is None
    assert earlier.reply("a", 1, [1, 2], SAMPLING) is None
    assert earlier.reply("a", 0, [1, 2], replace(SAMPLING, temperature=0.8)) is None
    assert earlier.reply("b", 1, [3], SAMPLING) is None


def test_answers_of_other_weights_are_none(directory, target):
    (target / "model.safetensors").write_bytes(b"others!")
    assert EarlierAnswers.read(directory, target).reply("a", 0, [1, 2], SAMPLING) is None
    assert EarlierAnswers.read(None, target).reply("a", 0, [1, 2], SAMPLING) is None
