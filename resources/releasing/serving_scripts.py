"""Serving scripts of a release: command lines for vLLM and SGLang, with the drafter if the server supports it.

    write_scripts(directory, workload="math-tutor", target="models/...", drafter="models/...", architecture="eagle3", k=3)
    vllm_drafts("eagle3", "<directory>", 3)      # vLLM's --speculative-config

Paths are relative to the lake; a script finds the lake from its own place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from resources.atomic import write_text

DRAFTS = {
    "vllm": {"eagle3": "eagle3", "eagle3.1": "eagle3", "p_eagle": "eagle3", "dflash": "dflash", "medusa": "medusa",
             "mtp": "mtp", "draft_model": "draft_model"},
    "sglang": {"eagle3": "EAGLE3", "eagle3.1": "EAGLE3", "dflash": "DFLASH", "draft_model": "STANDALONE"},
}
"""What each server calls the drafter architectures that it runs."""


def write_scripts(
    directory: Path, workload: str, target: str, drafter: str | None, architecture: str, num_speculative_tokens: int
) -> None:
    """Writes serve-vllm.sh and serve-sglang.sh. target, drafter: directories of models, relative to the lake."""
    commands = {
        "vllm": _vllm(workload, target, drafter, architecture, num_speculative_tokens),
        "sglang": _sglang(workload, target, drafter, architecture, num_speculative_tokens),
    }
    for server, command in commands.items():
        script = directory / f"serve-{server}.sh"
        write_text(script, _script(server, command, _note(server, drafter, architecture)))
        script.chmod(0o755)


def vllm_drafts(architecture: str, directory: str, num_speculative_tokens: int) -> dict[str, Any]:
    """vLLM's --speculative-config for a drafter of a kind that it runs."""
    options: dict[str, Any] = {"method": DRAFTS["vllm"][architecture], "model": directory,
                               "num_speculative_tokens": num_speculative_tokens}
    if architecture == "p_eagle":
        options["parallel_drafting"] = True
    if architecture != "medusa":  # whose heads propose their likeliest token whatever is asked for
        options |= {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
    return options


def _vllm(workload: str, target: str, drafter: str | None, architecture: str, k: int) -> str:
    command = f'vllm serve "$LAKE/{target}" --served-model-name {workload}'
    if drafter and architecture in DRAFTS["vllm"]:
        quoted = json.dumps(vllm_drafts(architecture, f"$LAKE/{drafter}", k)).replace('"', '\\"')
        command += f' --speculative-config "{quoted}"'
        if architecture == "mtp":  # vLLM reads how many such layers there are in the target's config, which has none
            command += """ --hf-overrides '{"num_nextn_predict_layers": 1}'"""
    return command


def _sglang(workload: str, target: str, drafter: str | None, architecture: str, k: int) -> str:
    command = f'python -m sglang.launch_server --model "$LAKE/{target}" --served-model-name {workload}'
    algorithm = DRAFTS["sglang"].get(architecture)
    if drafter and algorithm:
        command += f' --speculative-algorithm {algorithm} --speculative-draft-model-path "$LAKE/{drafter}"'
        if algorithm != "DFLASH":  # which drafts a whole block in one step
            command += f" --speculative-num-steps {k} --speculative-eagle-topk 1"
        command += f" --speculative-num-draft-tokens {k + 1}"
    return command


def _note(server: str, drafter: str | None, architecture: str) -> str:
    """A line of shell that says so where a server runs no drafter of this kind."""
    if drafter is None or architecture in DRAFTS[server]:
        return ""
    return f"echo '{server} runs no drafter of kind {architecture}: the target is served without it' >&2\n"


def _script(server: str, command: str, note: str) -> str:
    return f"""#!/usr/bin/env bash
# Serves this release with {server}. Arguments are passed on, e.g. --port 8000.
{note}set -euo pipefail
LAKE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")/../../.." && pwd)
exec {command} "$@"
"""
