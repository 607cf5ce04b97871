"""A new drafter architecture is one file and one line: a copy of the project with both trains, checks, measures and serves
it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import run_job, write_dataset, write_target

from model_ops.operations import generate
from resources.digests.code import PACKAGES
from tests.reports import process_report

PROJECT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
LINE = "from model_ops.speculators.architectures.toy import TOY as TOY\n"


@pytest.mark.slow
def test_a_new_architecture_is_one_file_and_one_line(tmp_path):
    copy, place = tmp_path / "copy", tmp_path / "place"
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = copy / "model_ops" / "speculators" / "architectures"
    shutil.copyfile(HERE / "toy_architecture.py", folder / "toy.py")
    with (folder / "__init__.py").open("a") as lines:
        lines.write(LINE)
    write_target(place / "target", layers=4)
    write_dataset(place / "dataset", rows=6)
    run_job(generate, place / "answers", {"target": place / "target", "dataset": place / "dataset"}, max_new_tokens=8)
    done = subprocess.run(
        [sys.executable, "-P", HERE / "use_toy.py", place], cwd=copy, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(copy)},
    )  # fmt: skip
    assert done.returncode == 0, process_report(done)
    found = json.loads((place / "found.json").read_text())
    assert (found["settings"], found["kind"], found["class"], found["layers"], found["steps"]) == (
        "ToySettings", "toy", "Toy", 2, 3,
    )  # fmt: skip
    assert found["problems"] == [] and 1 <= found["tau"] <= 3
    assert "toy_layers is set, but architecture is eagle3 and only toy has it" in found["refused"]
    assert found["explained"] and found["in_schema"]
    script = (place / "release" / "serve-vllm.sh").read_text()
    assert '\\"method\\": \\"toy_method\\"' in script
    assert "sglang runs no drafter of kind toy" in (place / "release" / "serve-sglang.sh").read_text()
