"""Command lines of inference servers: what serves a target, with its drafter if the server runs that kind.

    words_of("vllm", "models/tutor", "tutor", drafter="models/drafter", serving=Serving(...), num_speculative_tokens=3)
    speculative_config(VllmOptions("eagle3"), "<directory>", 3)      # vLLM's --speculative-config

A release's scripts and the evaluation's server are started with the same words. Importing this file imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from model_ops.serving.service import ServerKind, Service, service_words
from model_ops.speculators.serving import Serving, SglangOptions, VllmOptions

SUFFIX = "suffix"
"""vLLM's method of drafting from earlier answers, which it keeps in memory."""


def words_of(server: ServerKind, target: str, name: str, drafter: str | None, serving: Serving | None,
             num_speculative_tokens: int, *, service: Service | None = None) -> list[str]:
    """What follows the program: `vllm serve` or `python -m sglang.launch_server`.

    target, drafter: model directories. name: how requests call the model. serving: how servers run the drafter; unused without
    a drafter. A server that does not run such a drafter gets the target alone. service: what a release's server says in answers
    and does not keep; None, as the evaluation starts servers, for the server's own defaults.
    """
    drafting = serving if drafter else None
    if server == "vllm":
        options = drafting and drafting.vllm
        if options is not None and options.method == SUFFIX and service is not None and service.zero_retention:
            options = replace(options, options={**options.options, "suffix_decoding_max_cached_requests": 0})
        words = [target, "--served-model-name", name, *_vllm(drafter, options, num_speculative_tokens)]
    else:
        options = drafting and drafting.sglang
        words = ["--model", target, "--served-model-name", name, *_sglang(drafter, options, num_speculative_tokens)]
    return words + (service_words(server, service, drafts=options is not None) if service is not None else [])


def runs_drafter(server: ServerKind, serving: Serving) -> bool:
    """Whether the server runs drafters of this kind."""
    return getattr(serving, server) is not None


def speculative_config(options: VllmOptions, directory: str, num_speculative_tokens: int) -> dict[str, Any]:
    """vLLM's --speculative-config for a drafter in `directory`."""
    return {"method": options.method, "model": directory, "num_speculative_tokens": num_speculative_tokens, **options.options}


def _vllm(drafter: str | None, options: VllmOptions | None, k: int) -> list[str]:
    if drafter is None or options is None:
        return []
    words = ["--speculative-config", json.dumps(speculative_config(options, drafter, k))]
    return words + (["--hf-overrides", json.dumps(dict(options.hf_overrides))] if options.hf_overrides else [])


def _sglang(drafter: str | None, options: SglangOptions | None, k: int) -> list[str]:
    if drafter is None or options is None:
        return []
    words = ["--speculative-algorithm", options.algorithm, "--speculative-draft-model-path", drafter]
    if not options.drafts_in_one_step:
        words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(k + 1)]
