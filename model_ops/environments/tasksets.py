"""Tasks of a taskset of `verifiers` as a file of `datasets.rl_prompts.tasks`, read by an interpreter that has the library.

write_taskset({"taskset": {"id": "reverse-text"}}, Path("tasks.jsonl"), most=1_000, python="venv/bin/python")    # 1000"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ops.files import write_text
from model_ops.jobs import ModelError

TASKSET_CHILD = Path(__file__).with_name("taskset_child.py")


def write_taskset(env: Mapping[str, Any], output: Path, most: int, python: str | None = None) -> int:
    """Writes a line for each of its first tasks; returns their number. env: what verifiers takes as `env`: the taskset, and who
    plays each role. Raises ModelError where the interpreter, the library or the taskset cannot be used."""
    command = (python or sys.executable, "-P", str(TASKSET_CHILD), json.dumps(env), str(most))
    try:
        child = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError as error:
        raise ModelError(f"{command[0]} cannot be run: give the interpreter of an environment that has verifiers") from error
    if child.returncode or not child.stdout:
        reason = child.stderr.strip().rpartition("\n")[2] or "it has no task"
        wanted = "give the interpreter of an environment that has verifiers and the taskset"
        raise ModelError(f"the taskset {env['taskset']['id']} cannot be read by {command[0]}: {reason}; {wanted}")
    write_text(output, child.stdout)
    return child.stdout.count("\n")
