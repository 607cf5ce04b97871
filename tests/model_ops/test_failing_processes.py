"""Several processes of which one fails: its own error comes first, and is what torchrun names as the cause."""

import json
from pathlib import Path

import pytest
from failing_worker import FAILURES
from forked_script import forked_script

from model_ops.jobs import Job
from model_ops.parallel.launch import lost_another

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("failing processes")]
SETTINGS = {"steps": 12, "learning_rate": 1e-2, "tokens_per_step": 512, "max_length": 128, "mesh": {"dp_shard": 2}}


@pytest.fixture(scope="module")
def outcomes(tiny_model, chats, tmp_path_factory):
    """For each of failing_worker.FAILURES, by process and way of failing."""
    folder = tmp_path_factory.mktemp("failing")
    jobs = [folder / f"job{number}.json" for number in range(len(FAILURES))]
    for path in jobs:
        path.write_text(
            Job(
                operation="sft",
                output=path.with_suffix(".out"),
                inputs={"model": tiny_model, "dataset": chats},
                settings=SETTINGS,
            ).model_dump_json()
        )
    outcomes = forked_script(Path(__file__).with_name("failing_worker.py"), jobs, folder)
    return dict(zip(FAILURES, outcomes, strict=True))


def errors_of(outcome):
    events = [json.loads(line) for line in outcome["stdout"].splitlines() if line.startswith("{")]
    return [event for event in events if event["event"] == "error"]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_error_of_the_process_that_failed_comes_first_and_is_the_cause(outcomes, rank):
    outcome = outcomes[rank, "raise"]
    errors = errors_of(outcome)
    assert outcome["code"] == 1
    assert (errors[0]["rank"], errors[0]["kind"], errors[0]["message"]) == (rank, "ModelError", "this process's own trouble")
    assert all(error["kind"] == "LostProcess" and error["rank"] != rank for error in errors[1:])
    cause = outcome["stderr"].rpartition("Root Cause")[2]
    assert f"rank      : {rank}" in cause and "this process's own trouble" in cause


def test_a_process_that_was_killed_is_the_cause_and_no_other_pretends_to_be(outcomes):
    outcome = outcomes[1, "kill"]
    assert outcome["code"] == 1
    assert [error["kind"] for error in errors_of(outcome)] in ([], ["LostProcess"])
    cause = outcome["stderr"].rpartition("Root Cause")[2]
    assert "rank      : 1" in cause and "SIGKILL" in cause


def test_what_is_the_loss_of_another_process_and_what_is_not():
    reset = RuntimeError("[tcp/pair.cc:537] Read error [127.0.0.1]:36228: Connection reset by peer.")
    wrapped = ValueError("the checkpoint could not be written")
    wrapped.__cause__ = reset
    assert lost_another(reset) and lost_another(wrapped)
    assert not lost_another(ValueError("a template spoke of a Broken pipe"))
    assert not lost_another(RuntimeError("the size of tensor a (3) must match"))
