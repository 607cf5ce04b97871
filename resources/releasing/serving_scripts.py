"""Serving scripts of a release: command lines for vLLM and SGLang, with the drafter if the server supports it.

    write_scripts(directory, "math-tutor", target="models/...", drafter="models/...", serving=Serving(...), 3)
    speculative_config(VllmOptions("eagle3"), "<directory>", 3)      # vLLM's --speculative-config

Paths are relative to the lake; a script finds the lake from its own location.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_ops.atomic_files import write_text
from model_ops.speculators.serving import Serving, SglangOptions, VllmOptions


def write_scripts(
    directory: Path, workload: str, target: str, drafter: str | None, serving: Serving, num_speculative_tokens: int
) -> None:
    """Writes serve-vllm.sh and serve-sglang.sh.

    target, drafter: model directories, relative to the lake. serving: how servers run the drafter; unused without a drafter.
    """
    commands = {
        "vllm": _vllm(workload, target, drafter, serving.vllm, num_speculative_tokens),
        "sglang": _sglang(workload, target, drafter, serving.sglang, num_speculative_tokens),
    }
    for server, command in commands.items():
        script = directory / f"serve-{server}.sh"
        write_text(script, _script(server, command, _note(server, drafter, serving)))
        script.chmod(0o755)


def speculative_config(options: VllmOptions, directory: str, num_speculative_tokens: int) -> dict[str, Any]:
    """vLLM's --speculative-config for a drafter in `directory`."""
    return {"method": options.method, "model": directory, "num_speculative_tokens": num_speculative_tokens, **options.options}


def _vllm(workload: str, target: str, drafter: str | None, options: VllmOptions | None, k: int) -> str:
    command = f'vllm serve "$LAKE/{target}" --served-model-name {workload}'
    if drafter and options is not None:
        quoted = json.dumps(speculative_config(options, f"$LAKE/{drafter}", k)).replace('"', '\\"')
        command += f' --speculative-config "{quoted}"'
        if options.hf_overrides:
            command += f" --hf-overrides '{json.dumps(dict(options.hf_overrides))}'"
    return command


def _sglang(workload: str, target: str, drafter: str | None, options: SglangOptions | None, k: int) -> str:
    command = f'python -m sglang.launch_server --model "$LAKE/{target}" --served-model-name {workload}'
    if drafter and options is not None:
        command += f' --speculative-algorithm {options.algorithm} --speculative-draft-model-path "$LAKE/{drafter}"'
        if not options.drafts_in_one_step:
            command += f" --speculative-num-steps {k} --speculative-eagle-topk 1"
        command += f" --speculative-num-draft-tokens {k + 1}"
    return command


def _note(server: str, drafter: str | None, serving: Serving) -> str:
    """A line of shell for a server that does not run this kind of drafter; empty otherwise."""
    if drafter is None or getattr(serving, server) is not None:
        return ""
    return f"echo '{server} runs no drafter of kind {serving.architecture}: the target is served without it' >&2\n"


def _script(server: str, command: str, note: str) -> str:
    return f"""#!/usr/bin/env bash
# Serves this release with {server}. Arguments are passed on, e.g. --port 8000.
{note}set -euo pipefail
LAKE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")/../../.." && pwd)
exec {command} "$@"
"""
