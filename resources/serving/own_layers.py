"""Compares a server's answers with the target's own layers, in a child process: this one never loads a model.

    scores = own_layers(target)
    scores(answers)                          # for model_ops.evaluation.smoke.text
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil

from model_ops.errors import ModelError
from model_ops.evaluation.smoke.text import Scores
from model_ops.wording import size
from resources.launching.python_process import child_environment, python_module

MOST_OF_FREE = 0.5
"""Share of the free memory that the target may take in float32."""
LONGEST_S = 900
NOT = "not compared with the target's own layers"


def own_layers(target: Path) -> Scores:
    """What it returns raises ModelError if the target does not fit beside its server, or cannot be scored."""
    def scores(answers: list[dict[str, Any]]) -> dict[str, Any]:
        needed, free = _float32_bytes(target), psutil.virtual_memory().available
        if needed > MOST_OF_FREE * free:
            raise ModelError(f"{NOT}: they may take {size(needed)}, and {size(free)} of memory are free")
        command = python_module("model_ops.evaluation.smoke.own_layers", str(target))
        try:
            done = subprocess.run(command, input=json.dumps(answers), capture_output=True, text=True, timeout=LONGEST_S,
                                  env=child_environment(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""))
            return json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired as error:
            raise ModelError(f"{NOT}: that took more than {LONGEST_S} s") from error
        except (ValueError, IndexError) as error:  # its output is not quoted: it may hold what was asked
            raise ModelError(f"{NOT}: their process ended with exit code {done.returncode}") from error

    return scores


def _float32_bytes(target: Path) -> int:
    """At most so many bytes: stored weights have two bytes or more, quantized ones one or a half."""
    stored = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    quantized = "quantization_config" in json.loads((target / "config.json").read_text())
    return stored * (8 if quantized else 2)
