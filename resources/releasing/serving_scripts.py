"""Writes the serving files of a release: scripts for vLLM, SGLang and llama.cpp, and YAML for Docker and Kubernetes.

    write_serving_files(directory, ServingPlan(...))

Paths are relative to the lake; a script finds the lake from its own location.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import yaml

from model_ops.atomic_files import write_json, write_text
from model_ops.serving.service import LOGGING_CONFIG, logging_config
from resources.releasing.serving_manifests import compose, kubernetes
from resources.releasing.serving_plan import LLAMA_CPP, PROGRAMS, ServingPlan

IN_SCRIPTS = "$LAKE"
YAML_FILES = {
    "docker-compose.yaml": (compose, "Started in this directory: docker compose up. The lake, or the package, is mounted."),
    "kubernetes.yaml": (kubernetes, "kubectl apply -f kubernetes.yaml. The claim {claim} holds the lake, or the package."),
}


def write_serving_files(directory: Path, plan: ServingPlan) -> None:
    """Writes serve-vllm.sh, serve-sglang.sh, serve-llama-cpp.sh where the target has a GGUF file, the YAML files, and vLLM's
    logging for a release that retains nothing."""
    for server in plan.servers:
        _write_script(directory / f"serve-{server}.sh", server, [*PROGRAMS[server], *plan.words(server, IN_SCRIPTS)],
                      plan.environment(server, IN_SCRIPTS), plan, plan.left_out(server))
    if plan.gguf is not None and plan.adapter is None:
        _write_script(directory / "serve-llama-cpp.sh", "llama.cpp", [LLAMA_CPP, *plan.llama_cpp_words(IN_SCRIPTS)], {}, plan,
                      "llama.cpp is served without the drafter" if plan.drafter else "")
    if plan.service.zero_retention:
        write_json(directory / LOGGING_CONFIG, logging_config())
    for name, (make, about) in YAML_FILES.items():
        said, made = about.format(claim=plan.settings.claim), make(plan)
        text = yaml.safe_dump_all(made if isinstance(made, list) else [made], sort_keys=False, allow_unicode=True, width=10_000)
        write_text(directory / name, f"# Release {plan.version} of {plan.workload}. {said}\n{text}")


def _write_script(path: Path, server: str, words: list[str], environment: Mapping[str, str], plan: ServingPlan,
                  note: str) -> None:
    said = f"echo {shlex.quote(note)} >&2\n" if note else ""
    exports = "".join(f"export {name}={_quoted(value)}\n" for name, value in environment.items())
    limits = "ulimit -c 0   # no core dump, which would hold prompts\n" if plan.service.zero_retention else ""
    write_text(path, f"""#!/usr/bin/env bash
# Serves this release with {server}. Arguments are passed on, e.g. --port 8000.
{said}set -euo pipefail
LAKE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")/../../.." && pwd)
{exports}{limits}exec {" ".join(map(_quoted, words))} "$@"
""")
    path.chmod(0o755)


def _quoted(word: str) -> str:
    """The word for the shell, which replaces $LAKE in it."""
    return '"' + word.replace('"', '\\"') + '"' if IN_SCRIPTS in word else shlex.quote(word)
