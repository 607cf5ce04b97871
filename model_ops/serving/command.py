"""Command lines of inference servers: what serves a target, with its drafter if the server runs that kind.

    words_of("vllm", "models/tutor", "tutor", drafter="models/drafter", serving=Serving(...), num_speculative_tokens=3)
    words_of("vllm", "models/tutor", "tutor", None, None, 0, Drafting(method="ngram", num_speculative_tokens=5))
    speculative_config(VllmOptions("eagle3"), "<directory>", 3)      # vLLM's --speculative-config

A release's scripts and the evaluation's server are started with the same words. Importing this file imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from model_ops.serving.drafting import LOOKUPS, NO_DRAFTING, Drafting, with_drafter
from model_ops.serving.service import ServerKind, Service, service_words
from model_ops.speculators.serving import Serving, SglangOptions, VllmOptions

SUFFIX = "suffix"
"""vLLM's method of drafting from earlier answers, which it keeps in memory."""


def words_of(server: ServerKind, target: str, name: str, drafter: str | None, serving: Serving | None,
             num_speculative_tokens: int, drafting: Drafting | None = None, *, service: Service | None = None) -> list[str]:
    """What follows the program: `vllm serve` or `python -m sglang.launch_server`.

    target, drafter: model directories. name: how requests call the model. serving: how servers run the drafter; unused without
    a drafter. drafting: what to draft with; None: the drafter, if there is one, with num_speculative_tokens. A server that
    does not run such a drafting gets the target alone. service: what a release's server says in answers and does not keep;
    None, as the evaluation starts servers, for the server's own defaults.
    """
    chosen = drafting or (with_drafter(num_speculative_tokens) if drafter else NO_DRAFTING)
    used = serving_of(chosen, serving if drafter else None)
    directory = drafter if chosen.method == "drafter" else None
    if server == "vllm":
        options = used.vllm if used is not None else None
        if options is not None and options.method == SUFFIX and service is not None and service.zero_retention:
            options = replace(options, options={**options.options, "suffix_decoding_max_cached_requests": 0})
        words = [target, "--served-model-name", name, *_vllm(directory, options, chosen)]
    else:
        options = used and used.sglang
        words = ["--model", target, "--served-model-name", name, *_sglang(directory, options, chosen)]
    return words + (service_words(server, service, drafts=options is not None) if service is not None else [])


def serving_of(drafting: Drafting, drafter: Serving | None) -> Serving | None:
    """How servers run a drafting; None for no drafting. drafter: how they run the trained drafter, if there is one."""
    return drafter if drafting.method == "drafter" else LOOKUPS.get(drafting.method)


def runs_drafter(server: ServerKind, serving: Serving) -> bool:
    """Whether the server runs drafters of this kind."""
    return getattr(serving, server) is not None


def varies_by_batch_size(server: ServerKind, drafting: Drafting, drafter: Serving | None) -> bool:
    """Whether the server can draft fewer tokens of this kind, or none, where more requests are in a step.

    vLLM 0.32 can for n-gram lookups and for drafters that it runs token by token: its suffix lookup refuses another number, and
    drafters that draft all tokens at once have buffers for one number."""
    used = serving_of(drafting, drafter)
    options = used.vllm if used is not None and server == "vllm" else None
    return options is not None and options.method in ("ngram", "eagle3") and not options.options.get("parallel_drafting")


def speculative_config(options: VllmOptions, directory: str | None, num_speculative_tokens: int,
                       by_batch_size: Sequence[tuple[int, int, int]] = (), as_if_tau: float | None = None) -> dict[str, Any]:
    """vLLM's --speculative-config. directory: of the drafter; None for a method that has no weights. by_batch_size: see
    `Drafting`. as_if_tau: drafts are accepted at random so that this is the acceptance length, to measure speed alone: the text
    is meaningless. vLLM's CPU build has it for no request."""
    model = {} if directory is None else {"model": directory}
    varying = {"num_speculative_tokens_per_batch_size": [list(each) for each in by_batch_size]} if by_batch_size else {}
    synthetic = {} if as_if_tau is None else {
        "rejection_sample_method": "synthetic", "synthetic_acceptance_length": as_if_tau}
    return {"method": options.method, **model, "num_speculative_tokens": num_speculative_tokens, **options.options, **varying,
            **synthetic}


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
