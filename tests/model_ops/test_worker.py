"""The worker as a process: what it writes to stdout, how it fails, how it stops, and that it goes on from there."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model_ops.jobs import Job
from tests.thorough_cases import thorough_except

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("worker")]

ROOT = Path(__file__).parents[2]
SETTINGS = {"steps": 30, "learning_rate": 1e-2, "tokens_per_step": 512, "max_length": 128, "checkpoint_every": 5}


def start(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "model_ops.worker", *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )


def job_file(folder, name, tiny_model, chats, **changes):
    job = Job(
        operation="sft",
        output=folder / name,
        inputs={"model": tiny_model, "dataset": chats},
        settings={**SETTINGS, **changes},
        threads=1,
    )
    path = folder / f"{name}.json"
    path.write_text(job.model_dump_json())
    return path


def events(text):
    return [json.loads(line) for line in text.splitlines()]


def test_one_process_does_several_jobs_and_survives_a_wrong_one(tiny_model, chats, tmp_path):
    from dagster_pipes import encode_param

    messages = tmp_path / "messages.jsonl"
    context = {
        "asset_keys": ["a"],
        "code_version_by_asset_key": {"a": None},
        "provenance_by_asset_key": {"a": None},
        "partition_key": None,
        "partition_key_range": None,
        "partition_time_window": None,
        "run_id": "r",
        "job_name": None,
        "retry_number": 0,
        "extras": {},
    }
    pipes = {"context": {"data": context}, "messages": {"path": str(messages)}}
    encoded = {name: encode_param(value) for name, value in pipes.items()}
    good = job_file(tmp_path, "good", tiny_model, chats, steps=2)
    again = job_file(tmp_path, "again", tiny_model, chats, steps=2)
    wrong = job_file(tmp_path, "wrong", tmp_path / "nowhere", chats)
    lines = [
        json.dumps({"job": str(good), "pipes": pipes}),
        "no json",
        json.dumps({"job": str(wrong), "pipes": None}),
        json.dumps({"job": str(again), "pipes": encoded}),
    ]
    worker = start("--stdin")
    out, err = worker.communicate("\n".join(lines), timeout=120)
    found = events(out)
    assert worker.returncode == 0, err
    assert found[0] == {"event": "ready"}
    ends = [event for event in found if event["event"] in ("result", "error")]
    assert [event["event"] for event in ends] == ["result", "error", "error", "result"]
    assert ends[0]["job"] == str(good) and ends[0]["metrics"]["steps"] == 2
    assert ends[2]["kind"] == "ModelError" and "nowhere" in ends[2]["message"]
    assert any(event["event"] == "progress" and event["phase"] == "sft" for event in found)
    sent = [json.loads(line) for line in messages.read_text().splitlines()]
    payloads = [line["params"]["payload"] for line in sent if line["method"] == "report_custom_message"]
    assert [payload["output"] for payload in payloads] == [str(tmp_path / "good"), str(tmp_path / "again")]
    assert [line["method"] for line in sent].count("closed") == 2


def test_a_job_that_is_none_is_one_sentence_and_exit_code_1(tmp_path):
    path = tmp_path / "job.json"
    path.write_text('{"operation": "fly", "output": "x"}')
    worker = start(str(path))
    out, _ = worker.communicate(timeout=120)
    assert worker.returncode == 1
    assert events(out)[-1]["event"] == "error" and "unknown operation 'fly'" in events(out)[-1]["message"]


@pytest.mark.parametrize("number", thorough_except([signal.SIGKILL], [signal.SIGTERM, signal.SIGKILL]))
def test_a_killed_worker_goes_on_to_the_same_weights(tiny_model, chats, tmp_path, number):
    straight = start(str(job_file(tmp_path, "straight", tiny_model, chats, steps=60)))
    whole, _ = straight.communicate(timeout=300)
    path = job_file(tmp_path, "killed", tiny_model, chats, steps=60)
    worker = start(str(path))
    written = []
    for line in worker.stdout:
        written.append(json.loads(line))
        if list((tmp_path / "killed" / ".work" / "checkpoints").glob("step-*/state.json")):
            worker.send_signal(number)
            break
    written += events(worker.stdout.read().rpartition("\n")[0])
    code = worker.wait(timeout=60)
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    if number == signal.SIGTERM:
        assert code == 0 and written[-1] == {"event": "stopped", "job": str(path)}
    else:
        assert code == -signal.SIGKILL
    resumed = start(str(path))
    out, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, err
    metrics, expected = events(out)[-1]["metrics"], events(whole)[-1]["metrics"]
    assert 0 < metrics["resumed_from"] < 60
    assert metrics["validation_loss"] == expected["validation_loss"]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "killed"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
