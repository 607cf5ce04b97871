"""The launcher and a real worker: results, mistakes in one sentence, a worker that dies, one that stays warm."""

import os
import signal
import threading
import time

import pytest

from model_ops.jobs import Job
from resources.launching.local_launcher import LocalLauncher, WorkerError

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("launcher")]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    with LocalLauncher(tmp_path_factory.mktemp("progress") / "progress.jsonl") as found:
        yield found


def base_job(output, steps=2):
    settings = {"steps": steps, "tokens_per_step": 256, "max_length": 64, "vocab_size": 512, "hidden_size": 32, "layers": 2}
    settings |= {"heads": 2, "kv_heads": 1, "head_dim": 16, "mlp_size": 32}
    return Job(operation="tiny_base", output=output, settings=settings, threads=1)


def test_wrong_inputs_are_the_workers_own_sentence_and_the_worker_stays(launcher, tmp_path):
    with pytest.raises(WorkerError, match=r"config\.json"):
        launcher.run(Job(operation="quantize", output=tmp_path / "out", inputs={"model": tmp_path}))
    first = launcher._worker.pid
    with pytest.raises(WorkerError):
        launcher.run(Job(operation="quantize", output=tmp_path / "out", inputs={"model": tmp_path / "nowhere"}))
    assert launcher._worker.pid == first


def test_a_worker_that_is_killed_is_said_and_the_next_job_gets_a_new_one(launcher, tmp_path):
    def kill_soon():
        deadline = time.monotonic() + 120
        while not list(tmp_path.rglob("metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(launcher._worker.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_soon)
    killer.start()
    with pytest.raises(WorkerError, match=r"killed \(SIGKILL\) before its job was done"):
        launcher.run(base_job(tmp_path / "base", steps=10_000))
    killer.join()
    metrics = launcher.run(base_job(tmp_path / "again"))
    assert metrics["steps"] == 2
    assert (tmp_path / "again" / "model.safetensors").exists()
    assert '"event": "progress"' in launcher._progress_file.read_text()
