"""The last two pages of the first hour, run from top to bottom in an empty folder, as a reader would; blocks marked `not run:
REASON` are left out."""

import json
import os
import subprocess
import sys

import pytest

from pipelines.demo.traffic import write_traffic
from tests.docs.pages import PROJECT, blocks, commands
from tests.reports import process_report

PAGES = "docs/own-logs.md", "docs/read-and-approve.md"
STEPS = [block for block in blocks("bash", "console") if block.page in PAGES]


def test_only_steps_that_need_a_server_a_gpu_or_minutes_are_not_run():
    skipped = {block.note.removeprefix("not run: ") for block in STEPS if block.note}
    assert skipped <= {"takes a minute", "needs a server", "stays open", "needs your own model"}, skipped


@pytest.mark.slow
@pytest.mark.thorough
def test_the_tutorial_runs(tmp_path):
    """The logs are those of `millrace demo --quick`, written here without running its graph."""
    write_traffic(tmp_path / "demo/quick/traffic", interactions=400, days=2)
    command = tmp_path / "bin" / "millrace"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pipelines.cli "$@"\n')
    command.chmod(0o755)
    script = "\n".join(["set -euo pipefail", *(line for block in STEPS if not block.note for line in commands(block.text))])
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PATH": f"{command.parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    done = subprocess.run(["bash", "-x", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, process_report(done)

    endpoint = json.loads((tmp_path / "lake/endpoints/code-helper.json").read_text())
    assert endpoint["champion"] in done.stdout and "approved by ana" in done.stdout
    assert "check counts_add_up: passed" in done.stdout and "reused (made" in done.stdout
