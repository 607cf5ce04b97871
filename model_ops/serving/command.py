"""Command lines and programs of inference servers: what serves a target, with its drafter if the server runs that kind.

A release's scripts and the evaluation's server are started with the same words. Importing this file imports no torch."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from model_ops.drafting import LOOKUPS, NO_DRAFTING, Drafting, with_drafter
from model_ops.jobs import ModelError
from model_ops.serving.service import ServerKind, Service, service_words
from model_ops.speculators import DrafterServing, SglangOptions, VllmOptions

SUFFIX = "suffix"
"""vLLM's method of drafting from earlier answers, which it keeps in memory."""


def words_of(
    server: ServerKind,
    target: str,
    name: str,
    drafter: str | None,
    serving: DrafterServing | None,
    num_speculative_tokens: int,
    drafting: Drafting | None = None,
    *,
    service: Service | None = None,
) -> list[str]:
    """What follows the program: `vllm serve` or `python -m sglang.launch_server`.

    target, drafter: model directories. name: how requests call the model. serving: how servers run the drafter; unused without
    a drafter. drafting: what to draft with; None: the drafter, if there is one, with num_speculative_tokens. A server that
    does not run such a drafting gets the target alone. service: what a release's server says in answers and does not keep;
    None, as the evaluation starts servers, for the server's own defaults."""
    chosen = drafting or (with_drafter(num_speculative_tokens) if drafter else NO_DRAFTING)
    used = serving_of(chosen, serving if drafter else None)
    directory = drafter if chosen.method == "drafter" else None
    if server == "vllm":
        options = used.vllm if used is not None else None
        if options is not None and options.method == SUFFIX and service is not None and service.zero_retention:
            options = replace(options, options={**options.options, "suffix_decoding_max_cached_requests": 0})
        words = [target, "--served-model-name", name, *_vllm(directory, options, chosen)]
    else:
        words = ["--model", target, "--served-model-name", name, *_sglang(directory, used.sglang if used else None, chosen)]
    drafts = used is not None and runs_drafter(server, used)
    return words + (service_words(server, service, drafts) if service is not None else [])


def serving_of(drafting: Drafting, drafter: DrafterServing | None) -> DrafterServing | None:
    """How servers run a drafting; None for no drafting. drafter: how they run the trained drafter, if there is one."""
    return drafter if drafting.method == "drafter" else LOOKUPS.get(drafting.method)


def runs_drafter(server: ServerKind, serving: DrafterServing) -> bool:
    """Whether the server runs drafters of this kind."""
    return getattr(serving, server) is not None


def varies_by_batch_size(server: ServerKind, drafting: Drafting, drafter: DrafterServing | None) -> bool:
    """Whether the server can draft fewer tokens of this kind, or none, where more requests are in a step. vLLM 0.32 can for
    n-gram lookups and for drafters that it runs token by token: its suffix lookup refuses another number, and drafters that
    draft all tokens at once have buffers for one number."""
    used = serving_of(drafting, drafter)
    options = used.vllm if used is not None and server == "vllm" else None
    return options is not None and options.method in ("ngram", "eagle3")


def speculative_config(
    options: VllmOptions,
    directory: str | None,
    num_speculative_tokens: int,
    by_batch_size: Sequence[tuple[int, int, int]] = (),
    as_if_tau: float | None = None,
) -> dict[str, Any]:
    """vLLM's --speculative-config. directory: of the drafter; None for a method that has no weights. by_batch_size: see
    `Drafting`. as_if_tau: drafts are accepted at random so that this is the acceptance length, to measure speed alone: the text
    is meaningless. vLLM's CPU build has it for no request."""
    model = {} if directory is None else {"model": directory}
    varying = {"num_speculative_tokens_per_batch_size": [list(each) for each in by_batch_size]} if by_batch_size else {}
    synthetic = {} if as_if_tau is None else {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": as_if_tau}
    return {
        "method": options.method,
        **model,
        "num_speculative_tokens": num_speculative_tokens,
        **options.options,
        **varying,
        **synthetic,
    }


def _vllm(directory: str | None, options: VllmOptions | None, drafting: Drafting) -> list[str]:
    if options is None:
        return []
    config = speculative_config(options, directory, drafting.num_speculative_tokens, drafting.by_batch_size)
    words = ["--speculative-config", json.dumps(config)]
    return words + (["--hf-overrides", json.dumps(dict(options.hf_overrides))] if options.hf_overrides else [])


def _sglang(directory: str | None, options: SglangOptions | None, drafting: Drafting) -> list[str]:
    if options is None:
        return []
    k = drafting.num_speculative_tokens
    words = ["--speculative-algorithm", options.algorithm]
    if directory is not None:
        words += ["--speculative-draft-model-path", directory]
    if not options.drafts_in_one_step:
        words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(k + 1)]


MODULES: dict[ServerKind, tuple[str, ...]] = {
    "vllm": ("vllm.entrypoints.cli.main", "serve"),
    "sglang": ("sglang.launch_server",),
}
LOOKS_FOR_S = 60.0
NOT_PASSED_ON = ("PYTHONPATH", "PYTHONSAFEPATH", "VLLM_API_KEY")
"""Variables of this process that a server of another environment does not get: it would import this project's packages, or ask
for a key that nobody sends."""
OF_TORCHRUN = re.compile("TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)")
"""Variables of a process that torchrun started, by which a server's own processes would wait for those of this run."""


def program_of(server: ServerKind, python: str | None, section: str = "evaluation.server") -> list[str]:
    """The words before a server's own arguments. python: interpreter of an environment that has the server; None: this
    environment, or else the server's command on PATH. section: of the recipe, for messages. Raises ModelError if the server is
    in neither, with what to do."""
    module = MODULES[server]
    if python is not None:
        if not has_package(python, server):
            raise ModelError(
                f"{section}.python: {python} runs no Python that has {server}: name the interpreter of an "
                f"environment in which {server} is installed"
            )
        return [python, "-m", *module]
    if importlib.util.find_spec(server) is not None:
        return [sys.executable, "-m", *module]
    if server == "vllm" and (command := shutil.which(server)) is not None:
        return [command, *module[1:]]
    raise ModelError(
        f"{section}: {server} is not installed in this environment"
        f"{' and not on PATH' if server == 'vllm' else ''}: name the interpreter of one that has it in "
        f"{section}.python, or leave the server out"
    )


def server_environment() -> dict[str, str]:
    """This process's environment for a server: weights are on this machine, so nothing is fetched or reported."""
    meshed = "TORCHELASTIC_RUN_ID" in os.environ
    left_out = [name for name in os.environ if name in NOT_PASSED_ON or (meshed and OF_TORCHRUN.fullmatch(name))]
    passed_on = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**passed_on, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def has_package(python: str, package: str) -> bool:
    """Whether `python` is an interpreter that can import the package. It is looked for, not imported."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        return (
            subprocess.run(
                [python, "-c", look],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=LOOKS_FOR_S,
                env=server_environment(),
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
