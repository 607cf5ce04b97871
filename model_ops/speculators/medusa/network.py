"""MEDUSA draft model (Cai et al. 2024, arXiv 2401.10774): K heads on the target's last state. Tensor names as in vLLM.

    model = Medusa(MedusaConfig(hidden_size=256, vocab_size=8_192, draft_vocab_size=2_000, num_heads=3))
    drafter = load_draft_model(directory).drafter()
    decode(runner, prompts, ..., drafter=drafter, num_speculative_tokens=3)

    x = h; x = x + silu(W_i x) for each residual layer i; logits = lm_head(x)

h is the target's state after its final norm at index j, from which its head drew x[j+1]. Head k predicts x[j+2+k] only from h:
it reads neither x[j+1] nor the drafts of other heads. So all heads run at once, and later heads are much less accurate. After
verification a server passes h of the last accepted token, as in training; only this state is kept between rounds, without a
cache.

All heads share one output matrix (`shared_head`, vLLM's original_lm_head); separate matrices, as in the paper, have K times the
target's vocabulary. The format allows a draft vocabulary (`token_map`, absolute ids, with a shared matrix only). Heads of other
tools with one can be read, but vLLM 0.32 refuses to load them (its loader takes token_map for a missing weight), so none is
written here. Residual layers begin as the identity, output matrices as the target's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from model_ops.decoding import FINAL, Proposal, Runner, independent_drafts
from model_ops.jobs import ModelError
from model_ops.speculators.draft_model import DocumentWindows, DraftModel
from model_ops.speculators.draft_model_files import in_dtype, name_of, write_directory

PREFIX = "medusa_heads."
"""Prefix of tensor names in some files; servers remove it."""


class MedusaConfig(BaseModel):
    """Config that determines the module's shapes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    hidden_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    draft_vocab_size: int = Field(ge=1)
    """Rows of each output matrix."""
    num_heads: int = Field(ge=1)
    num_hidden_layers: int = Field(1, ge=1, description="residual layers of each head")
    shared_head: bool = True
    fc_bias: bool = False


class _Block(nn.Module):
    def __init__(self, config: MedusaConfig):
        super().__init__()
        width = config.hidden_size
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=config.fc_bias) for _ in range(config.num_hidden_layers))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = hidden + F.silu(layer(hidden))
        return hidden


class Medusa(DraftModel):
    """The draft model. token_map[i]: the target's id of draft id i; absent if all ids can be drafted."""

    config: MedusaConfig

    def __init__(self, config: MedusaConfig):
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_heads))
        if config.shared_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        else:
            self.lm_heads = nn.ModuleList(
                nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False) for _ in range(config.num_heads)
            )
        whole = config.draft_vocab_size == config.vocab_size
        self.register_buffer("token_map", torch.arange(config.draft_vocab_size), persistent=not whole)

    @property
    def capture(self) -> tuple[int, ...]:
        return ()

    @property
    def served_greedily(self) -> bool:
        return True

    @property
    def longest_chain(self) -> int:
        return self.config.num_heads

    @property
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        return self.token_map

    @classmethod
    def for_target(
        cls,
        target: Runner,
        target_ids: Int[Tensor, " draft_vocab"],
        num_heads: int,
        residual_layers: int = 1,
        shared_head: bool = True,
    ) -> Medusa:
        """New heads, initialised from the target's head."""
        vocab, hidden = target.embedding.shape
        model = cls(
            MedusaConfig(
                hidden_size=hidden,
                vocab_size=vocab,
                draft_vocab_size=len(target_ids),
                num_heads=num_heads,
                num_hidden_layers=residual_layers,
                shared_head=shared_head,
            )
        ).to(target.device)
        with torch.no_grad():
            model.token_map.copy_(target_ids)
            for name, parameter in model.named_parameters():
                if name.startswith("blocks."):
                    parameter.zero_()  # silu(0) = 0 with slope 1/2: the layer is the identity and has gradients
                else:
                    parameter.copy_(target.head.weight.float()[model.token_map])
        return model

    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        final = documents.final.to(self.blocks[0].layers[0].weight.dtype)
        return [block(final) for block in self.blocks[:steps]]

    def scored(
        self, hidden: Float[Tensor, "*rows hidden"], step: int
    ) -> tuple[Float[Tensor, "*rows hidden"], Float[Tensor, "draft_vocab hidden"]]:
        head = self.lm_head if self.config.shared_head else self.lm_heads[step]
        return hidden.float(), head.weight

    def logits(self, state: Float[Tensor, "rows hidden"], head: int) -> Float32[Tensor, "rows draft_vocab"]:
        """What a head says after the target's last states."""
        output = self.lm_head if self.config.shared_head else self.lm_heads[head]
        return output(self.blocks[head](state)).float()

    def drafter(self, greedy: bool = False) -> MedusaDrafter:
        return MedusaDrafter(self, greedy)

    def save(
        self,
        directory: Path,
        num_speculative_tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        verifier: str = "target",
        verifier_architectures: list[str] | None = None,
    ) -> None:
        if num_speculative_tokens != self.config.num_heads:
            raise ValueError(f"servers run all {self.config.num_heads} heads: set num_speculative_tokens to that")
        write_directory(directory, in_dtype(self.state_dict(), dtype), medusa_config(self.config, dtype))

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> Medusa:
        vocab = raw.get("vocab_size")
        try:
            return cls(
                MedusaConfig(
                    hidden_size=raw.get("hidden_size"),
                    vocab_size=vocab,
                    num_heads=raw.get("num_heads"),
                    draft_vocab_size=raw.get("truncated_vocab_size") or vocab,
                    num_hidden_layers=raw.get("num_hidden_layers", 1),
                    shared_head=raw.get("original_lm_head", False),
                    fc_bias=raw.get("medusa_fc_bias", False),
                )
            )
        except ValidationError as error:
            problem = error.errors()[0]
            raise ModelError(f"{directory / 'config.json'}: {problem['loc'][0]}: {problem['msg']}") from error

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        named = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
        if self.config.shared_head and "lm_head.weight" not in named and "lm_heads.0.weight" in named:
            named["lm_head.weight"] = named["lm_heads.0.weight"]
        if "token_map" in named and self.config.shared_head and "lm_head.weight" in named:  # other tools sort by frequency
            order = named["token_map"].argsort()
            named |= {name: named[name][order] for name in ("token_map", "lm_head.weight")}
        return named


def medusa_config(config: MedusaConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json. No other key may contain `num` and `heads` or `layers`, because vLLM would read it as one of these two."""
    return {
        "architectures": ["MedusaModel"],
        "dtype": name_of(dtype),
        "hidden_size": config.hidden_size,
        "medusa_fc_bias": config.fc_bias,
        "model_type": "medusa",
        "num_heads": config.num_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "original_lm_head": config.shared_head,
        "torch_dtype": name_of(dtype),
        "truncated_vocab_size": config.draft_vocab_size,
        "vocab_size": config.vocab_size,
    }


class _Heads(Protocol):
    target_ids: Tensor
    longest_chain: int

    def logits(self, state: Tensor, head: int) -> Tensor:
        """Logits of a head, float32."""


class MedusaDrafter:
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and otherwise samples each draft
    independently.

    greedy: propose the argmax at any temperature, as vLLM does.
    """

    capture = (FINAL,)

    def __init__(self, model: _Heads, greedy: bool = False):
        self.model, self.greedy = model, greedy
        self.state: Tensor | None = None
        """The target's final state at each row's last verified index. [rows, hidden]"""

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        first: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens hidden"] | None,
    ) -> None:
        self._take(captured, torch.tensor([len(prompt) for prompt in prompts], device=first.device))

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes `count` drafts. Raises ModelError if the drafter was trained for fewer."""
        if count > self.model.longest_chain:
            raise ModelError(
                f"this drafter was trained for {self.model.longest_chain} tokens; set num_speculative_tokens to at most that"
            )
        logits = torch.stack([self.model.logits(self.state, head) for head in range(count)], dim=1)
        return independent_drafts(logits, 0 if self.greedy else temperature, uniforms, self.model.target_ids)

    def advance(
        self,
        emitted: Int[Tensor, "rows tokens"],
        counts: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens hidden"] | None,
    ) -> None:
        self._take(captured, counts)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.state = self.state[rows]

    def _take(self, states: Tensor, counts: Tensor) -> None:
        """Takes the state of each row's last valid token."""
        self.state = states[torch.arange(len(counts), device=counts.device), counts - 1]
