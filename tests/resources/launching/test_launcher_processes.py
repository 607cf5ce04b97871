"""Jobs over several processes: the same output directory, a process that dies, a stop that reaches all of them."""

import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster_pipes import decode_param
from safetensors.torch import load_file

from model_ops.jobs import Job
from resources.launching import processes as subject
from resources.launching.local_launcher import LocalLauncher, WorkerError, accelerators, laid_out
from resources.launching.processes import DevicesError, devices, leased_devices

SETTINGS = {"steps": 6, "tokens_per_step": 512, "max_length": 128, "learning_rate": 1e-3, "precision": "float32"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    from tests.model_ops.tiny_models import write_dataset, write_target

    folder = tmp_path_factory.mktemp("inputs")
    write_target(folder / "model", layers=2)
    return {"model": folder / "model", "dataset": write_dataset(folder / "rows", rows=24)}


def sft(inputs, output, mesh, **changes):
    return Job(operation="sft", inputs=inputs, output=output, settings={**SETTINGS, **changes, "mesh": mesh}, threads=1)


def test_a_mesh_becomes_numbers_before_anything_starts(tmp_path):
    job, processes = laid_out(sft({}, tmp_path, {"processes": 4, "tp": 2}))
    assert processes == 4 and job.settings["mesh"]["dp_shard"] == 2
    assert laid_out(sft({}, tmp_path, {}))[1] == 1
    assert laid_out(Job(operation="quantize", output=tmp_path))[1] == 1


def test_more_processes_than_accelerators_are_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("resources.launching.local_launcher.accelerators", lambda: 2)
    with pytest.raises(WorkerError, match="the mesh is of 4 processes and this machine has 2 accelerators"):
        laid_out(sft({}, tmp_path, {"dp_shard": 4}))
    assert laid_out(sft({}, tmp_path, {"dp_shard": -1}))[1] == 2


def test_hidden_accelerators_do_not_count(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert accelerators() == 0


@pytest.mark.slow
@pytest.mark.thorough
def test_processes_of_a_mesh_report_to_the_dagster_run_that_started_them(inputs, tmp_path):
    with LocalLauncher(tmp_path / "progress.jsonl") as launcher:

        @dg.asset
        def model(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            metrics = launcher.run(sft(inputs, tmp_path / "out", {"processes": 2}, steps=1), context)
            return dg.MaterializeResult(metadata={"loss": metrics["loss"]})

        done = dg.materialize([model])
    [found] = done.asset_materializations_for_node("model")
    assert done.success and found.metadata["loss"].value > 0


def test_the_environment_of_a_mesh_says_where_dagster_listens(tmp_path, monkeypatch):
    said = {}

    def start(launcher, command, environment, stdin=None):
        said.update(environment)
        program = [sys.executable, "-c", """print('{"event": "result", "metrics": {"loss": 1.5}}')"""]
        return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(LocalLauncher, "_start", start)
    with LocalLauncher(tmp_path / "progress.jsonl") as launcher:

        @dg.asset
        def model(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            return dg.MaterializeResult(metadata=launcher.run(sft({}, tmp_path / "out", {"processes": 2}), context))

        done = dg.materialize([model])
    assert done.asset_materializations_for_node("model")[0].metadata["loss"].value == 1.5
    assert Path(decode_param(said["DAGSTER_PIPES_CONTEXT"])["path"]).name
    assert decode_param(said["DAGSTER_PIPES_MESSAGES"])


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_leave_what_one_leaves(inputs, tmp_path):
    with LocalLauncher(tmp_path / "progress.jsonl") as launcher:
        one = launcher.run(sft(inputs, tmp_path / "one", {}))
        two = launcher.run(sft(inputs, tmp_path / "two", {"dp_shard": 2}))
        tensors = launcher.run(sft(inputs, tmp_path / "tensors", {"tp": 2}))
    assert one.keys() == two.keys() and one["tokens"] == two["tokens"] == tensors["tokens"]
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-4) and tensors["loss"] == pytest.approx(one["loss"], abs=1e-4)
    assert two["validation_loss"] == pytest.approx(one["validation_loss"], abs=1e-4)
    assert tensors["validation_loss"] == pytest.approx(one["validation_loss"], abs=1e-4)
    files = {path.name for path in (tmp_path / "one").iterdir()}
    for name in ("two", "tensors"):
        assert {path.name for path in (tmp_path / name).iterdir()} == files
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
        whole, gathered = load_file(tmp_path / "one" / "model.safetensors"), load_file(tmp_path / name / "model.safetensors")
        assert whole.keys() == gathered.keys()
        for key, value in whole.items():
            assert (value.float() - gathered[key].float()).abs().max() < 1e-2, key  # bfloat16 files
    progress = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [event["done"] for event in progress if event["phase"] == "sft"].count(1) == 3


@pytest.mark.parametrize(("method", "mesh"), [("lora", {"tp": 2}), ("lora", {"dp_shard": 2}), ("qlora", {"dp_shard": 2})])
@pytest.mark.slow
@pytest.mark.thorough
def test_adapters_on_two_processes_are_those_of_one(inputs, tmp_path, method, mesh):
    if method == "qlora":
        pytest.importorskip("bitsandbytes")
    with LocalLauncher() as launcher:
        one = launcher.run(sft(inputs, tmp_path / "one", {}, method=method))
        two = launcher.run(sft(inputs, tmp_path / "two", mesh, method=method))
        again = launcher.run(sft({**inputs, "model": tmp_path / "two"}, tmp_path / "again", {}))
    saved = two.pop("saved_validation_loss", None)  # of other roundings than one's: the draws follow from the values
    if method == "qlora":  # every process has the whole nf4 weights, and merged ones are four times as large
        assert saved is None
    else:
        assert saved == pytest.approx(again["before_validation_loss"], abs=1e-5)
    assert one.keys() - {"saved_validation_loss"} == two.keys() and two["trained_parameters"] == one["trained_parameters"]
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
    for name in ("adapter/adapter_model.safetensors", "model.safetensors"):
        whole, gathered = load_file(tmp_path / "one" / name), load_file(tmp_path / "two" / name)
        assert whole.keys() == gathered.keys()
        for key, value in whole.items():
            assert (value.float() - gathered[key].float()).abs().max() < 1e-2, key


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("mesh", [{"dp_shard": 2}, {"tp": 2}])
def test_a_student_on_two_processes_is_that_of_one(inputs, tmp_path, mesh):
    def job(output, mesh):
        given = {"teacher": inputs["model"], "dataset": inputs["dataset"]}
        settings = {**SETTINGS, "layers": 1, "label_weight": 0.3, "temperature": 1.5, "mesh": mesh}
        return Job(operation="distill", output=output, threads=1, inputs=given, settings=settings)

    with LocalLauncher() as launcher:
        one = launcher.run(job(tmp_path / "one", {}))
        two = launcher.run(job(tmp_path / "two", mesh))
    for name in ("loss", "validation_loss"):
        assert two[name] == pytest.approx(one[name], abs=1e-4)
    whole, gathered = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert whole.keys() == gathered.keys()


@pytest.mark.slow
@pytest.mark.thorough
def test_a_wrong_model_is_the_workers_own_sentence(inputs, tmp_path):
    with LocalLauncher() as launcher, pytest.raises(WorkerError, match="ep 2 cannot be used with this qwen3 model"):
        launcher.run(sft(inputs, tmp_path / "experts", {"ep": 2}))


@pytest.mark.slow
@pytest.mark.thorough
def test_processes_of_which_one_was_killed_start_again_where_the_mesh_says_so(inputs, tmp_path):
    output = tmp_path / "again"

    def strike():
        deadline = time.monotonic() + 300
        while not list(output.glob(".work/checkpoints/*/state.json")) and time.monotonic() < deadline:
            time.sleep(0.02)
        agent = launcher._worker.pid
        children = [int(child) for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
        os.kill(children[-1], signal.SIGKILL)

    with LocalLauncher(tmp_path / "progress.jsonl") as launcher:
        thread = threading.Thread(target=strike)
        thread.start()
        found = launcher.run(sft(inputs, output, {"dp_shard": 2, "restarts": 1}, steps=300, checkpoint_every=10))
        thread.join()
    assert found["resumed_from"] >= 10 and found["steps"] == 300
    assert "start again from the newest checkpoint" in (tmp_path / "progress.jsonl").read_text()
    steps = [json.loads(line)["step"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 301))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_a_process_that_dies_is_named_and_a_stop_saves(inputs, tmp_path, number):
    output = tmp_path / "long"
    failures = []

    def strike():
        deadline = time.monotonic() + 300
        while not (output / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        agent = launcher._worker.pid
        if number == signal.SIGTERM:
            os.kill(agent, number)
            return
        children = [int(child) for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
        os.kill(children[-1], number)

    with LocalLauncher() as launcher:
        thread = threading.Thread(target=strike)
        thread.start()
        try:
            launcher.run(sft(inputs, output, {"dp_shard": 2}, steps=100_000, checkpoint_every=100_000))
        except Exception as error:
            failures.append(error)
        thread.join()
    assert len(failures) == 1
    if number == signal.SIGKILL:
        assert "process 1 of 2 was killed (SIGKILL)" in str(failures[0])
    else:
        assert type(failures[0]).__name__ == "WorkerStopped"
        assert list((output / ".work" / "checkpoints").glob("step-*/state.json"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(subject.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(subject, "WAITS_S", 0.01)
    monkeypatch.delenv("MILLRACE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("given", "groups"),
    [("", []), ("0", ["0"]), ("0;1", ["0", "1"]), (" 0, 1 ; 2,3 ;", ["0,1", "2,3"]), ("GPU-8f;MIG-1a", ["GPU-8f", "MIG-1a"])],
)
def test_groups_are_named_as_cuda_names_devices(given, groups, monkeypatch):
    monkeypatch.setenv("MILLRACE_DEVICES", given)
    assert devices() == groups


@pytest.mark.parametrize("given", ["cuda:0", "0,,1", "0;0", ";", "../x"])
def test_what_names_no_devices_is_refused(given, monkeypatch):
    monkeypatch.setenv("MILLRACE_DEVICES", given)
    with pytest.raises(DevicesError, match="a device twice" if given == "0;0" else "name groups"):
        devices()


def test_without_the_variable_nothing_is_taken(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with leased_devices() as leased:
        assert leased is False and os.environ["CUDA_VISIBLE_DEVICES"] == "3"


def _leased(pipe):
    with leased_devices():
        os.write(pipe, f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\n".encode())
        time.sleep(60)


def test_two_workers_have_different_devices_and_a_third_waits_until_one_is_killed(monkeypatch):
    monkeypatch.setenv("MILLRACE_DEVICES", "0,1;2,3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reading, writing = os.pipe()
    workers = [multiprocessing.get_context("fork").Process(target=_leased, args=(writing,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        with os.fdopen(reading) as lines:
            held = dict(lines.readline().split() for _ in range(2))
            assert set(held.values()) == {"0,1", "2,3"}
            assert not select.select([lines], [], [], 0.3)[0]
            pid, group = next(iter(held.items()))
            os.kill(int(pid), signal.SIGKILL)
            next_pid, next_group = lines.readline().split()
            assert next_group == group and next_pid not in held
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        os.close(writing)
    with leased_devices() as leased:
        assert leased and os.environ["CUDA_VISIBLE_DEVICES"] in ("0,1", "2,3")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
