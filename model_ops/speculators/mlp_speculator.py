"""MLP speculator (Wertheimer et al. 2024, arXiv 2404.19124). Tensor names as in IBM's checkpoints.

    model = MlpSpeculator(MlpConfig(hidden_size=256, inner_dim=256, vocab_size=8_192, num_heads=3))

A recurrence that begins with the target's last state and reads one token per step:

    s = gelu(norm_k(proj_k(s) + c emb_k(token))), logits = head_k(s);  c = emb_weight / state_weight,
    state_weight = 0.5 ** (0.5 / n), emb_weight = sqrt((1 - state_weight ** 2) inner_dim / 2), n the number of steps

At index j it begins with the state after the final norm (with scale_input scaled to unit variance and by sqrt(1/2)), reads
x[j+1] and predicts x[j+2]; then it reads x[j+2], in training the true one. Unlike in MEDUSA, each draft depends on the drafts
before it. A draft costs one small MLP and one output product; there is no cache.

tie_weights: all steps share embedding, norm and output matrix, and all but the first share the projection. Servers support only
the target's whole vocabulary. The constants assume embeddings of variance 1 / inner_dim, so embeddings begin as the target's,
scaled to it. If inner_dim is the target's width, projections begin as the identity and the output matrix as the target's rows;
otherwise they are random.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from model_ops.decoding.runner import Runner
from model_ops.errors import ModelError
from model_ops.speculators.documents import Documents
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.draft_model_files import in_dtype, name_of, write_directory
from model_ops.speculators.last_state_drafter import LastStateDrafter

EPSILON = 1e-6
PREFIX = "speculator."
"""Prefix of tensor names in IBM's files; vLLM removes it, TGI requires it."""


class MlpConfig(BaseModel):
    """Config that determines the module's shapes. num_heads: number of drafts, n_predict in config.json."""

    model_config = ConfigDict(extra="forbid", strict=True)

    hidden_size: int = Field(ge=1)
    inner_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    tie_weights: bool = True
    scale_input: bool = True

    @model_validator(mode="after")
    def _something_to_tie(self):
        if self.tie_weights and self.num_heads == 1:
            raise ValueError("tie_weights needs at least two drafted tokens; set it to false")
        return self


def _norm(hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], None, EPSILON)


class _ScaledNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, hidden: Tensor) -> Tensor:
        return _norm(hidden.to(self.weight.dtype)) * self.weight + self.bias


class MlpSpeculator(DraftModel):
    """The draft model. Each list has one module per step; tied steps share theirs."""

    config: MlpConfig

    def __init__(self, config: MlpConfig):
        super().__init__()
        self.config = config
        inner, steps = config.inner_dim, config.num_heads
        own = 1 if config.tie_weights else steps
        self.emb = nn.ModuleList(nn.Embedding(config.vocab_size, inner) for _ in range(own))
        self.proj = nn.ModuleList(nn.Linear(inner if step else config.hidden_size, inner, bias=False)
                                  for step in range(2 if config.tie_weights else steps))
        self.ln = nn.ModuleList(_ScaledNorm(inner) for _ in range(own))
        self.head = nn.ModuleList(nn.Linear(inner, config.vocab_size, bias=False) for _ in range(own))
        self.register_buffer("every_id", torch.arange(config.vocab_size), persistent=False)
        state_weight = 0.5 ** (0.5 / steps)
        self.embedding_scale = math.sqrt((1 - state_weight**2) * inner / 2) / state_weight

    @property
    def capture(self) -> tuple[int, ...]:
        return ()

    @property
    def longest_chain(self) -> int:
        return self.config.num_heads

    @property
    def target_ids(self) -> Int[Tensor, " vocab"]:
        return self.every_id

    @classmethod
    def for_target(cls, target: Runner, num_heads: int, inner_dim: int | None = None, tie_weights: bool = True,
                   scale_input: bool = True) -> MlpSpeculator:
        """A new speculator, initialised from the target if widths agree. inner_dim None: the target's width."""
        vocab, hidden = target.embedding.shape
        inner = inner_dim or hidden
        model = cls(MlpConfig(hidden_size=hidden, inner_dim=inner, vocab_size=vocab, scale_input=scale_input,
                              num_heads=num_heads, tie_weights=tie_weights)).to(target.device)
        with torch.no_grad():
            for module in (*model.emb, *model.proj, *model.head):
                nn.init.normal_(module.weight, std=inner**-0.5)
            if inner == hidden:
                embedding = target.embedding.float()
                for module in model.emb:
                    module.weight.copy_(embedding * (inner**-0.5 / embedding.std()))
                for module in model.proj:
                    nn.init.eye_(module.weight)
                for module in model.head:
                    module.weight.copy_(target.head.weight.float())
        return model

    def first_state(self, final: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        """The first state of the recurrence."""
        return _norm(final) * 0.5**0.5 if self.config.scale_input else final

    def next_state(self, state: Float[Tensor, "*tokens width"], tokens: Int[Tensor, "*tokens"],
                   step: int) -> Float[Tensor, "*tokens inner"]:
        """One step of the recurrence; returns the input of head `step`."""
        taken = _of(self.proj, step)(state) + self.embedding_scale * _of(self.emb, step)(tokens)
        return F.gelu(_of(self.ln, step)(taken))

    def unroll(self, documents: Documents, steps: int) -> list[Float[Tensor, "documents window inner"]]:
        ids, last = documents.ids, documents.ids.shape[1] - 1
        index = documents.start[:, None] + torch.arange(documents.window, device=ids.device)
        state, states = self.first_state(documents.final.to(self.proj[0].weight.dtype)), []
        for step in range(min(steps, self.config.num_heads)):
            state = self.next_state(state, ids.gather(1, (index + 1 + step).clamp(max=last)), step)
            states.append(state)
        return states

    def scored(self, hidden: Float[Tensor, "rows inner"],
               step: int) -> tuple[Float[Tensor, "rows inner"], Float[Tensor, "vocab inner"]]:
        return hidden.float(), _of(self.head, step).weight

    def draft_step(self, state: Float[Tensor, "rows width"], tokens: Int[Tensor, " rows"],
                   step: int) -> tuple[Float[Tensor, "rows inner"], Float[Tensor, "rows vocab"]]:
        """(state for the next step, logits of this step); see `LastStateDrafter`."""
        state = self.next_state(self.first_state(state) if step == 0 else state, tokens, step)
        return state, _of(self.head, step)(state).float()

    def drafter(self, greedy: bool = False) -> LastStateDrafter:
        return LastStateDrafter(self, greedy)

    def save(self, directory: Path, num_speculative_tokens: int, dtype: torch.dtype = torch.bfloat16,
             verifier: str = "target", verifier_architectures: list[str] | None = None) -> None:
        if num_speculative_tokens != self.config.num_heads:
            raise ValueError(f"servers run all {self.config.num_heads} steps: set num_speculative_tokens to that")
        weights = in_dtype(self.state_dict(), dtype)
        if self.config.tie_weights:  # some loaders expect an output matrix for each step
            weights.update({f"head.{step}.weight": weights["head.0.weight"].clone()
                            for step in range(1, self.config.num_heads)})
        write_directory(directory, {PREFIX + name: tensor for name, tensor in weights.items()},
                        mlp_config(self.config, dtype))

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> MlpSpeculator:
        try:
            return cls(MlpConfig(
                hidden_size=raw.get("emb_dim"), inner_dim=raw.get("inner_dim") or raw.get("emb_dim"),
                vocab_size=raw.get("vocab_size"), num_heads=raw.get("n_predict"), tie_weights=raw.get("tie_weights", False),
                scale_input=raw.get("scale_input", False)))
        except ValidationError as error:
            problem = error.errors()[0]
            where = problem["loc"][0] if problem["loc"] else "tie_weights"
            raise ModelError(f"{directory / 'config.json'}: {where}: {problem['msg']}") from error

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}


def _of(modules: nn.ModuleList, step: int) -> nn.Module:
    return modules[min(step, len(modules) - 1)]


def mlp_config(config: MlpConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json. top_k_tokens_per_head must have one number per step, or vLLM refuses the config."""
    return {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "dtype": name_of(dtype),
        "emb_dim": config.hidden_size,
        "inner_dim": config.inner_dim,
        "model_type": "mlp_speculator",
        "n_candidates": 1,
        "n_predict": config.num_heads,
        "num_lookahead_tokens": config.num_heads,
        "scale_input": config.scale_input,
        "tie_weights": config.tie_weights,
        "top_k_tokens_per_head": [1] * config.num_heads,
        "torch_dtype": name_of(dtype),
        "vocab_size": config.vocab_size,
    }
