"""Serving scripts of a release: command lines for vLLM and SGLang, with the drafting that the release chose, if the server
supports it.

    write_scripts(directory, "math-tutor", target="models/...", drafter="models/...", serving=Serving(...), 3)

Paths are relative to the lake; a script finds the lake from its own location.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from model_ops.atomic_files import write_text
from model_ops.serving.command import ServerKind, runs_drafter, serving_of, words_of
from model_ops.serving.drafting import NO_DRAFTING, Drafting, with_drafter
from model_ops.speculators.serving import Serving

PROGRAMS: dict[ServerKind, str] = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server"}


def write_scripts(
    directory: Path, workload: str, target: str, drafter: str | None, serving: Serving, num_speculative_tokens: int,
    drafting: Drafting | None = None,
) -> None:
    """Writes serve-vllm.sh and serve-sglang.sh.

    target, drafter: model directories, relative to the lake. serving: how servers run the drafter; unused without a drafter.
    drafting: what to draft with; None: the drafter, if there is one, with num_speculative_tokens.
    """
    chosen = drafting or (with_drafter(num_speculative_tokens) if drafter else NO_DRAFTING)
    in_lake = f"$LAKE/{drafter}" if drafter else None
    for server, program in PROGRAMS.items():
        words = words_of(server, f"$LAKE/{target}", workload, in_lake, serving, num_speculative_tokens, chosen)
        script = directory / f"serve-{server}.sh"
        command = " ".join([program, *map(_quoted, words)])
        write_text(script, _script(server, command, _note(server, chosen, serving)))
        script.chmod(0o755)


def _quoted(word: str) -> str:
    """The word for the shell, which replaces $LAKE in it."""
    return '"' + word.replace('"', '\\"') + '"' if "$LAKE" in word else shlex.quote(word)


def _note(server: ServerKind, drafting: Drafting, drafter: Serving) -> str:
    """A line of shell for a server that does not run this kind of drafting; empty otherwise."""
    used = serving_of(drafting, drafter)
    if used is None or runs_drafter(server, used):
        return ""
    return f"echo '{server} runs no drafter of kind {used.architecture}: the target is served without it' >&2\n"


def _script(server: str, command: str, note: str) -> str:
    return f"""#!/usr/bin/env bash
# Serves this release with {server}. Arguments are passed on, e.g. --port 8000.
{note}set -euo pipefail
LAKE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")/../../.." && pwd)
exec {command} "$@"
"""
