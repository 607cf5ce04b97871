"""The EAGLE-3 draft model (Li et al. 2025, arXiv 2503.01840), by the tensor names servers load ("midlayer").

    config = Eagle3Config.for_target(target.config, draft_vocab_size=2_000)
    drafter = Eagle3(config)

One decoder layer, or several (num_layers). It reads the target's hidden states at three block boundaries (fused by `fc`)
beside the embedding of the next token, and predicts the token after that one; on later draft steps it reads its own
output instead:

    residual = hidden; x = concat(input_layernorm(embedding), hidden_norm(hidden))
    hidden = residual + attention(x); hidden = hidden + mlp(post_attention_layernorm(hidden))
    logits = lm_head(norm(hidden)); the next step is fed `hidden` before `norm`

Further layers are plain Llama layers between the first one's output and `norm`, each with keys and values of its own.

EAGLE-3.1 differs in two places: `fc_norm` normalises each of the three states before they are fused, so that none drowns
the others, and `norm_output` feeds the next step `norm(hidden)`, so that what is fed back stays of one size however long
the chain. A server reads both as flags; weights trained with one and served without it draft badly and say nothing.

Boundary k is the INPUT of block k (0 is the embedding's output), as vLLM counts. At index j the layer sees the
embedding of x[j+1] and the states at j, stands at rotary position j, and predicts x[j+2].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from model_ops.decoding.incremental import IncrementalModel
from model_ops.errors import ModelError
from model_ops.speculators.draft_layers import DraftLayer, Norm
from model_ops.speculators.repeated_body import RepeatedBody
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.verify_drafter import mask_token

CAPTURED = 3
"""How many boundary states are fused."""


def default_layer_ids(layers: int) -> tuple[int, int, int]:
    """The boundaries servers read when a config names none: 2, n // 2, n - 3.

    Below 7 layers these are not three distinct numbers (servers treat them as a set), so others are chosen and must be
    written into the config. Raises ModelError below 4 layers: there are no three boundaries between blocks.
    """
    if layers >= 7:
        return 2, layers // 2, layers - 3
    if layers < 4:
        raise ModelError(f"EAGLE-3 reads three boundaries between blocks; a target of {layers} layers has fewer")
    return 1, layers // 2, layers - 1


class Eagle3Config(BaseModel):
    """Everything the module's shapes and rotary positions follow from. layer_ids are boundaries of the target."""

    model_config = ConfigDict(extra="forbid")

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = Field(ge=2)
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    layer_ids: tuple[int, int, int]
    target_layers: int
    num_layers: int = Field(1, ge=1)
    fc_norm: bool = False
    norm_output: bool = False
    eos_token_id: int | list[int] | None = None
    bos_token_id: int | None = None
    pad_token_id: int | None = None

    @classmethod
    def for_target(cls, target: Any, draft_vocab_size: int, **own: Any) -> Self:
        """The drafter that fits a target's Hugging Face config: same width, heads, rotary positions and length.

        own: fields that the target does not decide, such as num_layers and the flags.
        """
        heads = target.num_attention_heads
        return cls(
            hidden_size=target.hidden_size, intermediate_size=target.intermediate_size, num_attention_heads=heads,
            num_key_value_heads=target.num_key_value_heads,
            head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
            vocab_size=target.vocab_size, draft_vocab_size=draft_vocab_size,
            max_position_embeddings=target.max_position_embeddings, rms_norm_eps=target.rms_norm_eps,
            rope_parameters=dict(target.rope_parameters), layer_ids=default_layer_ids(target.num_hidden_layers),
            target_layers=target.num_hidden_layers, eos_token_id=target.eos_token_id,
            bos_token_id=target.bos_token_id, pad_token_id=target.pad_token_id, **own,
        )

    def rotary(self) -> nn.Module:
        """transformers' rotary embedding for these positions."""
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        return LlamaRotaryEmbedding(LlamaConfig(
            hidden_size=self.hidden_size, num_attention_heads=self.num_attention_heads, head_dim=self.head_dim,
            max_position_embeddings=self.max_position_embeddings, rope_parameters=self.rope_parameters))


class Eagle3(RepeatedBody):
    """The draft model. `embed_tokens` is the target's and stays frozen; `d2t` maps draft ids: target = id + d2t[id]."""

    config: Eagle3Config

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.embed_tokens.weight.requires_grad_(False)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(hidden, config.rms_norm_eps) for _ in range(CAPTURED))
        self.fc = nn.Linear(CAPTURED * hidden, hidden, bias=False)
        self.midlayer = DraftLayer(config, first=True)
        if config.num_layers > 1:  # named as servers name them: layers.1, layers.2, ...
            self.layers = nn.ModuleDict({str(number): DraftLayer(config, first=False)
                                         for number in range(1, config.num_layers)})
        self.norm = Norm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.rotary = config.rotary()

    @property
    def body(self) -> list[DraftLayer]:
        return [self.midlayer, *(self.layers.values() if self.config.num_layers > 1 else ())]

    @property
    def kind(self) -> str:
        return "eagle3.1" if self.config.fc_norm or self.config.norm_output else "eagle3"

    @property
    def capture(self) -> tuple[int, ...]:
        return tuple(self.config.layer_ids)

    @classmethod
    def new(cls, settings: SpeculatorSettings, target: IncrementalModel,
            target_ids: Int[Tensor, " draft_vocab"]) -> Eagle3:
        newer = settings.architecture == "eagle3.1"
        config = Eagle3Config.for_target(target.config, len(target_ids), num_layers=settings.num_layers, fc_norm=newer,
                                         norm_output=newer)
        return cls(config).to(target.device).begun_from(target, target_ids)

    def begun_from(self, target: IncrementalModel, target_ids: Int[Tensor, " draft_vocab"]) -> Self:
        """Itself, with its draft vocabulary set and warm-started from the target."""
        self.set_draft_vocabulary(target_ids)
        self.warm_start(target.embedding.float(), target.head.weight.float(), target.final_norm.float())
        return self

    @property
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        """The target's id of every draft id."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def set_draft_vocabulary(self, target_ids: Int[Tensor, " draft_vocab"]) -> None:
        """Which of the target's tokens can be drafted; ascending and distinct, else ValueError."""
        if len(target_ids) != self.config.draft_vocab_size or (target_ids.diff() <= 0).any():
            raise ValueError("the draft vocabulary must be ascending, distinct ids of the config's draft_vocab_size")
        self.d2t.copy_(target_ids - torch.arange(len(target_ids)))
        self.t2d.zero_()
        self.t2d[target_ids] = True

    def warm_start(self, embedding: Float[Tensor, "vocab hidden"], head: Float[Tensor, "vocab hidden"],
                   final_norm: Float[Tensor, " hidden"]) -> None:
        """Take embedding, output rows and final norm from the target, and let `fc` begin as the deepest state."""
        with torch.no_grad():
            self.embed_tokens.weight.copy_(embedding)
            self.lm_head.weight.copy_(head[self.target_ids.to(head.device)])
            self.norm.weight.copy_(final_norm)
            hidden = self.config.hidden_size
            nn.init.normal_(self.fc.weight, std=0.02)
            self.fc.weight[:, -hidden:] += torch.eye(hidden, device=self.fc.weight.device)
        for layer in self.body:
            layer.warm_start()

    def fuse(self, captured: Float[Tensor, "*tokens captured*hidden"]) -> Float[Tensor, "*tokens hidden"]:
        if self.config.fc_norm:
            parts = captured.unflatten(-1, (CAPTURED, -1)).unbind(-2)
            captured = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(captured)

    def fed_back(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        return self.norm(hidden) if self.config.norm_output else hidden

    def embed(self, tokens: Int[Tensor, "*tokens"], positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        return self.embed_tokens(tokens)

    def file_tensors(self) -> dict[str, Tensor]:
        """Its tensors by the names of the midlayer layout."""
        return self.state_dict()

    def save(self, directory: Path, num_speculative_tokens: int, dtype: torch.dtype = torch.bfloat16,
             verifier: str = "target", verifier_architectures: list[str] | None = None) -> None:
        from model_ops.speculators.export_eagle3 import save_eagle3

        save_eagle3(self, directory, num_speculative_tokens, dtype, verifier, verifier_architectures)

    @staticmethod
    def reads(raw: dict[str, Any]) -> bool:
        return raw.get("architectures") == ["LlamaForCausalLMEagle3"] and mask_token(raw) is None

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> Eagle3:
        from model_ops.speculators.export_eagle3 import read_midlayer_config

        return cls(read_midlayer_config(directory, raw))

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Raises ModelError for a tensor that the module has no place for: a further layer, or a bias, cannot be left out."""
        strange = sorted(name for name in weights if name not in self.state_dict() and not name.endswith(".inv_freq"))
        if strange:
            raise ModelError(f"{strange[0]} belongs to a head of another build: heads without biases, of the layers that their "
                             "config names, are known here")
        return weights
