"""Runs that are stopped or killed: what is finished stays, what is half done continues, and the end is the same."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import date
from pathlib import Path

import psutil
import pytest

from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import ManifestError
from tests.once import made_once

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, toy_recipe):
    from pipelines.demo.traffic import write_traffic

    home = tmp_path_factory.mktemp("interrupted")
    write_traffic(home / "traffic", interactions=300, days=2, first_day=date(2026, 6, 1))
    path = home / "toy.yaml"
    path.write_text(toy_recipe.replace("sft: {steps: 15,", "sft: {steps: 60, checkpoint_every: 5,"))
    return path


def start(recipe, lake, select="+sft_model"):
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", "run", str(recipe), "--lake", str(lake), "--select", select],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def wait_for(condition, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def checkpoints(lake):
    return list((lake / "models" / "toy-assistant" / "sft_model").glob("*/.work/**/*.safetensors"))


def weights_digest(lake):
    return Registry(LakeLayout.open(lake), "toy-assistant").current("model", "sft_model").digest


@pytest.fixture(scope="module")
def undisturbed(recipe, tmp_path_factory):
    def make(folder):
        process = start(recipe, folder / "lake")
        output = process.communicate(timeout=900)[0]
        assert process.returncode == 0, output

    return weights_files(made_once(tmp_path_factory, "undisturbed", make) / "lake")


def weights_files(lake):
    manifest = Registry(LakeLayout.open(lake), "toy-assistant").current("model", "sft_model")
    return {file.path: file.sha256 for file in manifest.files if file.path.endswith(".safetensors")}


@pytest.mark.thorough
def test_a_run_that_is_killed_and_then_stopped_ends_with_the_same_weights(recipe, undisturbed, tmp_path):
    """kill -9 of the whole family at the first checkpoint, Ctrl-C after a later one, then to the end."""
    lake = tmp_path / "lake"
    process = start(recipe, lake)
    wait_for(lambda: checkpoints(lake), process)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        with suppress(psutil.NoSuchProcess):  # it ended with the one before it
            member.kill()
    process.wait()
    for manifest in (lake / "models").rglob("manifest.json"):
        json.loads(manifest.read_text())
    base = Registry(LakeLayout.open(lake), "toy-assistant").current("model", "base_model")

    before = set(checkpoints(lake))
    process = start(recipe, lake)
    wait_for(lambda: set(checkpoints(lake)) - before, process)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 130, output
    assert "(killed, or copied with it)" in output and "Run again to continue" in output
    assert not [child for child in psutil.process_iter(["cmdline"]) if str(lake) in " ".join(child.info["cmdline"] or [])]
    with pytest.raises(ManifestError):
        weights_digest(lake)

    process = start(recipe, lake)
    output = process.communicate(timeout=900)[0]
    assert process.returncode == 0, output
    assert Registry(LakeLayout.open(lake), "toy-assistant").current("model", "base_model") == base
    assert weights_files(lake) == undisturbed


@pytest.mark.slow
def test_a_killed_run_takes_its_worker_with_it(recipe, tmp_path):
    process = start(recipe, tmp_path / "lake", select="base_model")

    def family(words):
        found = []
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # a zombie, or gone meanwhile
                found += [child] if words in " ".join(child.cmdline()) else []
        return found

    wait_for(lambda: family("model_ops.worker"), process)
    [worker], [run] = family("model_ops.worker"), family("pipelines.running.run")
    os.kill(run.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 1
    worker.wait(timeout=120)
    assert not worker.is_running()
