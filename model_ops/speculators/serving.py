"""How inference servers run a drafter: options of vLLM and SGLang, and notes for the release report.

A release is made from these values alone, so nothing here imports a drafter's network or its training: a change there
leaves the versions of releases alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class VllmOptions:
    """vLLM's options for the drafter (--speculative-config).

    options: fields in addition to method, model and num_speculative_tokens.
    hf_overrides: changes of the target's own config that vLLM needs. fixed_length: it drafts as many tokens as the drafter was
    trained for, and no other number.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    fixed_length: bool = False


@dataclass(frozen=True)
class SglangOptions:
    """SGLang's options for the drafter. drafts_in_one_step: it takes no number of steps."""

    algorithm: str
    drafts_in_one_step: bool = False


@dataclass(frozen=True)
class Serving:
    """How a drafter of one architecture is served.

    vllm, sglang: the server's options; None where the server does not run such a drafter.
    note: what the release report tells whoever serves the drafter.
    untrained: name, in evaluations, of the model that training began from. untrained_note: the report's note about that model.
    """

    architecture: str
    vllm: VllmOptions | None = None
    sglang: SglangOptions | None = None
    note: str = ""
    untrained: str = ""
    untrained_note: str = ""
