"""How inference servers run a drafter, and notes for the release report. A release is made from these values alone, so nothing
here imports a network or its training: a change there leaves the versions of releases alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class VllmOptions:
    """vLLM's options for the drafter (--speculative-config)."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields in addition to method, model and num_speculative_tokens."""
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the target's own config that vLLM needs."""


@dataclass(frozen=True)
class SglangOptions:
    """SGLang's options for the drafter."""

    algorithm: str
    drafts_in_one_step: bool = False
    """Whether the server takes no number of steps."""


@dataclass(frozen=True)
class DrafterServing:
    """How a drafter of one architecture is served."""

    architecture: str
    vllm: VllmOptions | None = None
    sglang: SglangOptions | None = None
    """vllm, sglang: options of the server; None if it cannot run such a drafter."""
    note: str = ""
    """Note of the release report for users of the drafter."""
    untrained: str = ""
    """Name of the model that training began from, in evaluations."""
    untrained_note: str = ""
    """The report's note about that model."""
